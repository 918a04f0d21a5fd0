"""A worker compacts a lake with the packages of `kbq pack` alone."""

from __future__ import annotations

import importlib.metadata
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from kbq_assets.adapters.spark.environment import distributions
from kbq_assets.core.compaction.model import Rewritten
from kbq_assets.core.config.locations import LakeAddress
from kbq_assets.worker.compaction import RewriteOnWorker
from kbq_assets_tests.adapters.iceberg.test_compaction import Lake
from kbq_assets_tests.contracts.compaction import all_files, view_of

#: Runs a pickled task; the modules that its arguments name are not installed.
PROGRAM = """
import pickle, sys
class NotPacked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1:]:
            raise ModuleNotFoundError(f"{name} is not packed", name=name)
sys.meta_path.insert(0, NotPacked())
rewrite, task = pickle.load(sys.stdin.buffer)
sys.stdout.buffer.write(pickle.dumps(rewrite(task)))
"""


def not_packed(*, with_lake: bool) -> list[str]:
    """Modules that are installed here and not in the archive."""
    packed = {found.name for found in distributions(with_lake=with_lake)} | {"kbq-assets"}
    installed = importlib.metadata.packages_distributions()
    return [name for name, owners in installed.items() if not packed & {*owners}]


def test_workers_of_a_lake_compact_with_what_is_packed(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.load(1)
    lake.load(2)
    task = all_files(view_of(lake))
    missing = not_packed(with_lake=True)
    assert {"dagster", "duckdb", "pandas"} <= {*missing}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, *missing],
        input=pickle.dumps((RewriteOnWorker(LakeAddress(folder=lake.folder), tmp_path), task)),
        capture_output=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr.decode()
    result: Rewritten = pickle.loads(ran.stdout)
    assert (result.failure, result.difference, result.after.rows) == ("", "", 2)


@pytest.mark.parametrize("name", ["pyarrow", "pyiceberg"])
def test_without_a_lake_the_archive_stays_small(name: str) -> None:
    assert name in not_packed(with_lake=False)
    assert name not in not_packed(with_lake=True)
