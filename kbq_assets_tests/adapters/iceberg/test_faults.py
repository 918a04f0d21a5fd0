"""Damage and other people's tables in a lake: each fault is an error of its own table, and none is a traceback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kbq_assets.adapters.iceberg import IcebergWarehouse
from kbq_assets.adapters.iceberg.housekeeping import MAX_AGE, delete_orphans, keep_house
from kbq_assets.adapters.iceberg.job_records import PREFIX
from kbq_assets.adapters.iceberg.lake import lake_errors
from kbq_assets.core.erasure.offset_sets import RowPlaces
from kbq_assets.core.errors import ConfigurationError, CorruptState, Unavailable
from kbq_assets.core.loading.tables import TableOptions, columns_of
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.ports.erasure import ErasureJob
from kbq_assets_tests.adapters.iceberg.test_compaction import KAFKA, Lake
from kbq_assets_tests.adapters.iceberg.test_housekeeping import LATER
from kbq_assets_tests.adapters.iceberg.test_warehouse import opened
from kbq_assets_tests.contracts.erasure import no_tasks
from kbq_assets_tests.contracts.warehouse import SCHEMA, TABLE

OTHER = TableReference("shop", "other")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    found = Lake(tmp_path)
    found.load(1)
    found.load(2)
    return found


def manifest_list(lake: Lake) -> Path:
    snapshot = lake.table.current_snapshot()
    assert snapshot is not None
    return Path(snapshot.manifest_list.removeprefix("file://"))


def manifest(lake: Lake) -> Path:
    snapshot = lake.table.current_snapshot()
    assert snapshot is not None
    return Path(snapshot.manifests(lake.table.io)[0].manifest_path.removeprefix("file://"))


def emptied(data: bytes) -> bytes:
    """What a file system may leave of a file after a power failure."""
    return b""


def of_another_kind(data: bytes) -> bytes:
    return data.replace(b'"long"', b'"lung"')


def bad_block(data: bytes) -> bytes:
    return data[:-100] + bytes(byte ^ 0xFF for byte in data[-100:-16]) + data[-16:]


@pytest.mark.parametrize("damage", [emptied, of_another_kind, bad_block])
@pytest.mark.parametrize("find", [manifest_list, manifest])
@pytest.mark.parametrize(
    "use",
    [
        lambda warehouse: warehouse.positions(TABLE, KAFKA),
        lambda warehouse: warehouse.doubled_offsets([TABLE]),
        lambda warehouse: warehouse.compaction.view(TABLE),
    ],
)
def test_a_damaged_manifest_is_an_error_of_its_table(
    lake: Lake,
    find: Callable[[Lake], Path],
    damage: Callable[[bytes], bytes],
    use: Callable[[IcebergWarehouse], object],
) -> None:
    path = find(lake)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(Unavailable, match="Iceberg warehouse failed"):
        use(lake.warehouse)


def test_a_mistake_of_kbq_itself_is_no_fault_of_the_lake() -> None:
    with pytest.raises(TypeError), lake_errors("a table"):
        TableReference(1, 2)  # type: ignore[arg-type]


def test_a_dataset_that_is_dropped_during_the_list_of_tables_has_none(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = lake.warehouse.lake.catalog
    listed = [*catalog.list_namespaces(), ("gone",)]
    monkeypatch.setattr(catalog, "list_namespaces", lambda: listed)
    assert lake.warehouse.tables() == (TABLE,)


def test_a_table_whose_dataset_is_dropped_before_it_is_created_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warehouse = opened(tmp_path)
    monkeypatch.setattr(warehouse.lake, "create_namespace", lambda dataset: None)
    with pytest.raises(Unavailable, match="NoSuchNamespaceError"):
        warehouse.create_table(TABLE, columns_of(SCHEMA), TableOptions())


def test_someone_elses_table_in_other_storage_hides_no_table(lake: Lake) -> None:
    lake.warehouse.create_table(OTHER, columns_of(SCHEMA), TableOptions())
    found = lake.warehouse.lake.table(OTHER)
    assert found is not None
    metadata = Path(found.metadata_location.removeprefix("file://"))
    metadata.write_text(metadata.read_text().replace(f"{found.location()}", "s3://theirs/other"))
    assert lake.warehouse.tables() == (TABLE,)


def test_an_age_that_is_no_number_is_reported(lake: Lake) -> None:
    with lake.table.transaction() as transaction:
        transaction.set_properties({MAX_AGE: "5 days"})
    erasures = lake.warehouse.erasures
    assert erasures is not None
    with pytest.raises(ConfigurationError, match="5 days"):
        list(erasures.keeps([TABLE]))
    with pytest.raises(ConfigurationError, match="5 days"):
        lake.compaction.tidy(TABLE)
    lake.load(3)  # no job depends on it


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"last": 1, "jobs": [5]}', '{"last": null, "jobs": []}'])
def test_a_damaged_record_of_jobs_stops_its_table(lake: Lake, text: str) -> None:
    with lake.table.transaction() as transaction:
        transaction.set_properties({f"{PREFIX}kbq-1a2b": text})
    with pytest.raises(CorruptState, match="kbq-1a2b"):
        lake.load(3)
    assert lake.offsets() == [1, 2]


# Files that were cut short --------------------------------------------------------------------------------------------


def after_its_header(data: bytes) -> bytes:
    return data[: data.index(data[-16:]) + 16]


def within_its_first_block(data: bytes) -> bytes:
    return data[: data.index(data[-16:]) + 17]


def without_its_last_entry(data: bytes) -> bytes:
    """pyiceberg writes a block per entry of a manifest."""
    return data[: data.rindex(data[-16:], 0, -16) + 16]


def erase(lake: Lake) -> None:
    erasures = lake.warehouse.erasures
    assert erasures is not None
    rows = RowPlaces("t", ((0, 0, (1, 2)),))
    erasures.erase(ErasureJob("kbq-erase-1-0", rows, (TABLE,)), no_tasks)


CHANGES: dict[str, Callable[[Lake], object]] = {
    "replace": lambda lake: lake.replace_all(9),
    "compact": Lake.compact,
    "erase": erase,
    "tidy": lambda lake: delete_orphans(lake.table, LATER),
    "expire": lambda lake: keep_house(lake.table, batch=1, now_ms=LATER),
}


@pytest.mark.parametrize(
    ("change", "cut"),
    [("load", within_its_first_block), *((name, after_its_header) for name in ("load", "burn", *CHANGES))],
)
def test_nothing_is_built_on_a_list_that_was_cut_short(
    lake: Lake, change: str, cut: Callable[[bytes], bytes]
) -> None:
    acts = CHANGES | {
        "load": lambda lake: lake.load(3),
        "burn": lambda lake: lake.warehouse.burn_job("kbq-1a2b-9", "local", "local", TABLE),
    }
    nothing_is_lost(lake, manifest_list(lake), cut, acts[change])


@pytest.mark.parametrize("cut", [after_its_header, without_its_last_entry])
@pytest.mark.parametrize("change", CHANGES)
def test_nothing_is_built_on_a_manifest_that_was_cut_short(
    lake: Lake, cut: Callable[[bytes], bytes], change: str
) -> None:
    lake.load(3, 4)
    nothing_is_lost(lake, manifest(lake), cut, CHANGES[change])


def nothing_is_lost(
    lake: Lake, path: Path, cut: Callable[[bytes], bytes], change: Callable[[Lake], object]
) -> None:
    """The change names the file, and once it is restored, the table has all of its rows."""
    before, whole = lake.offsets(), path.read_bytes()
    path.write_bytes(cut(whole))
    with pytest.raises(CorruptState, match=path.name):
        change(lake)
    path.write_bytes(whole)
    assert lake.offsets() == before
    lake.load(9)
    assert lake.offsets() == [*before, 9]


def test_manifests_that_are_merged_are_whole(lake: Lake) -> None:
    with lake.table.transaction() as transaction:
        transaction.set_properties(
            {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "1"}
        )
    nothing_is_lost(lake, manifest(lake), after_its_header, lambda lake: lake.load(3))


def test_a_persons_rows_are_not_counted_by_a_manifest_that_was_cut_short(lake: Lake) -> None:
    path, erasures = manifest(lake), lake.warehouse.erasures
    path.write_bytes(after_its_header(path.read_bytes()))
    assert erasures is not None
    with pytest.raises(CorruptState):
        erasures.count([TABLE], RowPlaces("t", ((0, 0, (1, 3)),)))
    with pytest.raises(CorruptState):
        erasures.find([TABLE], "t", "_kafka_offset", "1", 10)
