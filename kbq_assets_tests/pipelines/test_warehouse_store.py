"""Each warehouse sees its own tables, backlogs and quarantine under current names, and shares everything else."""

from __future__ import annotations

import pytest

from kbq_assets.core.errors import InvalidName
from kbq_assets.core.protocol.names import check_warehouse
from kbq_assets.pipelines.protocol.warehouse_store import WarehouseStore
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets_tests.contracts.object_store import ObjectStoreContract, paths
from kbq_assets_tests.fakes.memory_store import FaultyMemoryStore

OWN = (
    "tables/d.a.json",
    "tables/_tables.json",
    "backlog/d.a/3-t.0.10.json",
    "quarantine/3-x/t.0.d.a.1.10.avro",
    "completeness/lake.json",
    "completeness/lake/1-x.avro",
)
SHARED = ("commits/t.json", "staging/3-x/t.0.d.a.1.10.avro", "done/t.done", "placements/d.a.json")


class TestWarehouseStore(ObjectStoreContract):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return WarehouseStore(FaultyMemoryStore(), "lake")


def test_warehouses_share_everything_but_tables_backlogs_quarantine_and_hours() -> None:
    shared = FaultyMemoryStore()
    views = [WarehouseStore.of(shared), WarehouseStore.of(shared, "lake"), WarehouseStore.of(shared, "bq")]
    for number, view in enumerate(views):
        for path in OWN:
            view.create(path, b"%d" % number)
    for path in SHARED:
        views[0].create(path, b"all")
    for number, view in enumerate(views):
        for folder in ("tables/", "backlog/", "quarantine/", "completeness/", "completeness/lake/"):
            assert paths(view, folder) == sorted(path for path in OWN if path.startswith(folder))
        assert {view.get(path).data for path in OWN} == {b"%d" % number}
        assert {view.get(path).data for path in SHARED} == {b"all"}
    assert sorted(shared.objects) == sorted(
        [*SHARED, *OWN]
        + [f"{f}/{m}{name}/{rest}" for name in ("lake", "bq") for f, m, rest in map(_parts, OWN)]
    )
    assert WarehouseStore.of(views[1]).get(OWN[0]).data == b"0"
    assert views[1].delete_many(OWN) == {}
    assert paths(views[1], "tables/") == []
    assert len(paths(views[0], "tables/")) == 2


def _parts(path: str) -> tuple[str, str, str]:
    folder, _, rest = path.partition("/")
    return folder, "@" if folder == "completeness" else "", rest


@pytest.mark.parametrize("name", ["", "Lake", "1a", "a.b", "a/b", "@a", "a" * 31])
def test_names_that_could_be_taken_for_other_paths_are_refused(name: str) -> None:
    with pytest.raises(InvalidName):
        check_warehouse(name)
