"""State written by earlier releases is read, continued, and upgraded in place."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from kbq_assets.core.errors import UnsupportedFormat
from kbq_assets.core.loading.origins import LABEL
from kbq_assets.core.loading.table_registry import TableRegistry
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol.manifests import LIMITS, Limits
from kbq_assets.core.protocol.names import TABLE_REGISTRY, TOPIC_REGISTRY, table_state_path
from kbq_assets.pipelines.loading.load import LoadOptions, LoadPorts, load
from kbq_assets.pipelines.loading.register_warehouses import register
from kbq_assets.pipelines.operate.commands import propose_resume_table
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.warehouse_store import WarehouseStore
from kbq_assets_tests.fakes.warehouse import FakeWarehouse
from kbq_assets_tests.fixtures import golden_state
from kbq_assets_tests.fixtures.tiny_manifests import NO_TAIL, tiny_manifests
from kbq_assets_tests.pipelines.bench import A, B, Bench

FOLDERS = {n: Path(golden_state.__file__).parent / f"state_format_{n}" for n in (1, 2)}


def restored(format_: int) -> Bench:
    """A world with the staging area of a release, whose warehouse holds what that release loaded."""
    bench = Bench(partitions=2)
    golden_state.first_loads(bench)
    golden_state.last_records(bench)
    bench.store.objects.clear()
    folder = FOLDERS[format_]
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        bench.store.create(str(file.relative_to(folder)), file.read_bytes())
    own = state.table_registry(bench.store).staging_id
    for table in bench.warehouse.stored.values():
        table.labels = {LABEL: own} if own else {}  # the release of format 1 set none
    return bench


def formats(bench: Bench) -> dict[str, int]:
    """The format number of each state object that this world's runs change."""
    paths = [p for prefix in ("commits/", "tables/") for p in bench.paths(prefix)]
    return {path: json.loads(bench.store.get(path).data)["format"] for path in paths}


@pytest.mark.parametrize("format_", FOLDERS)
@pytest.mark.parametrize("limits", [LIMITS, NO_TAIL], ids=["small", "with-manifests"])
def test_the_state_of_an_earlier_release_is_continued_without_loss_or_doubling(
    format_: int, limits: Limits
) -> None:
    bench = restored(format_)
    assert set(formats(bench).values()) == {format_}
    with tiny_manifests(limits):
        _continue(bench, format_)
    assert bool(bench.paths("manifests/")) == (limits is NO_TAIL)


def _continue(bench: Bench, format_: int) -> None:
    assert bench.paths("backlog/")
    assert state.read(bench.store, TableState, table_state_path(B)).value.in_flight is not None
    propose_resume_table(bench.store, A).apply()
    bench.produce(1)
    bench.extract()  # packs the commit
    bench.load()
    assert sorted(bench.offsets(A)) == [0, 0, 1, 3, 4, 5, 6, 7]
    assert sorted(bench.offsets(B)) == [1, 2, 2, 3]
    assert bench.warehouse.duplicates() == {}
    own = state.table_registry(bench.store).staging_id
    assert bench.warehouse.stored[A].labels[LABEL] == own
    bench.extract()  # prunes the commit
    assert formats(bench) == {
        "commits/_topics.json": format_,  # nothing new to note
        "commits/shop.events.json": 3,
        "tables/_tables.json": format_,
        "tables/d.A.json": 3,
        "tables/d.B.json": 3,
    }


def test_a_second_warehouse_added_to_the_state_of_an_earlier_release_gets_later_windows() -> None:
    bench = restored(2)
    register(["lake"], lambda: bench.store, lambda: bench.store)
    for path in (TABLE_REGISTRY, TOPIC_REGISTRY):
        with patch.object(codec, "HIGHEST", 2), pytest.raises(UnsupportedFormat, match="format 3"):
            codec.loads(TableRegistry, bench.store.get(path).data, path)  # the earlier release
    propose_resume_table(bench.store, A).apply()
    destination = replace(bench.settings.destination, warehouses=("", "lake"))
    bench.settings = replace(bench.settings, destination=destination)
    lake = FakeWarehouse(bench.store, bench.store.path_of)
    for _ in range(2):
        bench.extract()
        bench.load()
        load(
            LoadPorts(WarehouseStore(bench.store, "lake"), lake, bench.clock), LoadOptions(wait_seconds=100.0)
        )
        bench.produce(1, 3)
    assert sorted(bench.offsets(A))[:7] == [0, 0, 1, 3, 4, 5, 6]
    assert bench.warehouse.duplicates() == lake.duplicates() == {}
    first, second = (sorted(w.log, key=str) for w in (bench.warehouse, lake))
    assert second
    assert set(second) < set(first)
    assert bench.paths("staging/") == []


def test_the_golden_state_has_every_kind_of_state_object() -> None:
    now = {path.partition("/")[0] for path in golden_state.staging_area().paths("")} - {"costs"}
    for format_, folder in FOLDERS.items():
        assert {path.name for path in folder.iterdir()} == now
        for path, value in golden_state.OTHERS.items():
            assert state.read(restored(format_).store, type(value), path).value == value
