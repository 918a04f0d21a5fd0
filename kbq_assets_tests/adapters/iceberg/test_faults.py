"""Damage and other people's tables in a lake: each fault is an error of its own table, and none is a traceback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kbq_assets.adapters.iceberg import IcebergWarehouse
from kbq_assets.adapters.iceberg.housekeeping import MAX_AGE
from kbq_assets.adapters.iceberg.job_records import PREFIX
from kbq_assets.adapters.iceberg.lake import lake_errors
from kbq_assets.core.errors import ConfigurationError, CorruptState, Unavailable
from kbq_assets.core.loading.tables import TableOptions, columns_of
from kbq_assets.core.protocol.names import TableReference
from kbq_assets_tests.adapters.iceberg.test_compaction import KAFKA, Lake
from kbq_assets_tests.adapters.iceberg.test_warehouse import opened
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
