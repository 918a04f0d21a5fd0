"""Files are replaced in one snapshot, also where pyiceberg skips the manifests of old files by mistake."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import ValidationException
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.visitors import manifest_evaluator
from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.table.update import snapshot

from kbq_assets.adapters.iceberg.overwrites import replace_files
from kbq_assets_tests.adapters.iceberg.test_compaction import Lake


@pytest.fixture
def skipping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every manifest is skipped that can be skipped at all."""

    def evaluator(
        spec: Any, schema: Any, only: BooleanExpression, case: bool
    ) -> Callable[[ManifestFile], bool]:
        found = manifest_evaluator(spec, schema, only, case)
        return found if only == AlwaysTrue() else lambda manifest: False

    monkeypatch.setattr(snapshot, "manifest_evaluator", evaluator)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    found = Lake(tmp_path)
    found.load(1, 2)
    found.load(3)
    return found


def files_of(lake: Lake) -> list[DataFile]:
    return sorted((task.file for task in lake.table.scan().plan_files()), key=lambda file: file.record_count)


@pytest.mark.usefixtures("skipping")
def test_a_file_whose_manifest_was_skipped_is_replaced_once(lake: Lake) -> None:
    snapshots = len(lake.table.snapshots())
    lake.compact()
    assert lake.offsets() == [1, 2, 3]
    lake.replace_all(7)
    assert (lake.offsets(), len(files_of(lake))) == ([7], 1)
    assert len(lake.table.snapshots()) == snapshots + 2


def test_a_file_that_the_table_does_not_have_is_reported(lake: Lake) -> None:
    one, _ = files_of(lake)
    lake.compact()
    with pytest.raises(ValidationException, match="Missing required files"):
        replace_files(lake.table, lake.table.transaction(), {}, [one], [])
    assert lake.offsets() == [1, 2, 3]
