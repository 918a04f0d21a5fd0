"""Old snapshots expire with everything that only they need. Job ids, readers' tags and files in flight stay."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import pytest
from pyiceberg.table import Table

from kbq_assets.adapters.iceberg import IcebergWarehouse
from kbq_assets.adapters.iceberg.connect import embedded
from kbq_assets.adapters.iceberg.housekeeping import (
    MAX_AGE,
    MIN_SNAPSHOTS,
    delete_orphans,
    expirable,
    keep_house,
)
from kbq_assets.adapters.iceberg.job_records import REMEMBERED
from kbq_assets.core.config.locations import LakeAddress
from kbq_assets.core.loading.tables import TableOptions, columns_of
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.ports.warehouse import KafkaRange, LoadJob
from kbq_assets.wire.arrow.staged import open_file_uri
from kbq_assets_tests.contracts.warehouse import SCHEMA, TABLE, avro_file, load_job, records

DAY_MS = 24 * 3600 * 1000
LATER = int(time.time() * 1000) + 10 * DAY_MS


@pytest.fixture
def lake(tmp_path: Path) -> IcebergWarehouse:
    """With `TABLE` and three loaded jobs."""
    lake = IcebergWarehouse(*embedded(LakeAddress(tmp_path / "lake"), tmp_path))
    lake.create_table(TABLE, columns_of(SCHEMA), TableOptions())
    for number in (1, 2, 3):
        lake.insert_job(job(tmp_path, number))
    return lake


def job(folder: Path, number: int) -> LoadJob:
    path = folder / f"{number}.avro"
    path.write_bytes(avro_file(records([number])))
    return load_job(f"kbq-1a2b-{number}", path.as_uri())


def stored(lake: IcebergWarehouse) -> Table:
    found = lake.lake.table(TABLE)
    assert found is not None
    return found


def files(folder: Path, pattern: str) -> set[str]:
    return {path.name for path in (folder / "lake").rglob(pattern)}


def test_old_snapshots_go_and_their_rows_and_ids_stay(lake: IcebergWarehouse, tmp_path: Path) -> None:
    assert not keep_house(stored(lake), batch=1)  # none is old
    assert not keep_house(stored(lake), batch=3, now_ms=LATER)  # too few
    assert keep_house(stored(lake), batch=2, now_ms=LATER)
    assert len(stored(lake).snapshots()) == 1
    assert len(files(tmp_path, "snap-*.avro")) == 1
    assert lake.positions(TABLE, KafkaRange("t", 0, 0)) == {1: 1, 2: 1, 3: 1}
    found = lake.get_job("kbq-1a2b-1", "local", "local", TABLE)
    assert found is not None
    assert found.output_rows == 1


def test_replaced_files_go_with_their_snapshot(lake: IcebergWarehouse, tmp_path: Path) -> None:
    lake.insert_job(replace(job(tmp_path, 4), replace=True))
    assert len(files(tmp_path, "*.parquet")) == 4  # a reader may still use the old ones
    assert keep_house(stored(lake), batch=1, now_ms=LATER)
    assert len(files(tmp_path, "*.parquet")) == 1
    assert lake.positions(TABLE, KafkaRange("t", 0, 0)) == {4: 1}


@pytest.mark.parametrize(
    ("name", "value", "left"), [(MIN_SNAPSHOTS, "2", 1), (MAX_AGE, str(100 * DAY_MS), 0)]
)
def test_the_tables_own_properties_rule(lake: IcebergWarehouse, name: str, value: str, left: int) -> None:
    table = stored(lake)
    with table.transaction() as change:
        change.set_properties({name: value})
    assert len(expirable(stored(lake), LATER)) == left


def test_a_tag_keeps_its_snapshot(lake: IcebergWarehouse) -> None:
    first = stored(lake).snapshots()[0].snapshot_id
    stored(lake).manage_snapshots().create_tag(first, "audit").commit()
    assert keep_house(stored(lake), batch=1, now_ms=LATER)
    assert first in {snapshot.snapshot_id for snapshot in stored(lake).snapshots()}


def test_orphans_go_when_their_job_has_ended_and_the_grace_time_is_over(
    lake: IcebergWarehouse, tmp_path: Path
) -> None:
    data = tmp_path / "lake" / "shop" / "orders-v1" / "data"
    for name in (
        "kbq-1a2b-2-0123456789ab-00000.parquet",  # an attempt that lost
        "kbq-1a2b-9-0123456789ab-00000.parquet",  # its job may still commit, at any age
        "kbq-9999-1-0123456789ab-00000.parquet",
        "part-0000.parquet",  # another program's
    ):
        (data / name).write_bytes(b"")
    before = files(tmp_path, "*.parquet")
    assert delete_orphans(stored(lake), int(time.time() * 1000)) == []
    removed = delete_orphans(stored(lake), LATER)
    assert [path.rpartition("/")[2] for path in removed] == ["kbq-1a2b-2-0123456789ab-00000.parquet"]
    assert files(tmp_path, "*.parquet") == before - {"kbq-1a2b-2-0123456789ab-00000.parquet"}
    assert lake.positions(TABLE, KafkaRange("t", 0, 0)) == {1: 1, 2: 1, 3: 1}


def test_lists_of_sources_that_no_record_names_go_too(lake: IcebergWarehouse, tmp_path: Path) -> None:
    lost = tmp_path / "lake" / "shop" / "orders-v1" / "metadata" / "kbq-kbq-1a2b-1-0123456789ab.json"
    lost.write_text("[]")
    os.utime(lost, (0, 0))
    assert len(delete_orphans(stored(lake), LATER)) == 1
    assert len(files(tmp_path, "kbq-*.json")) == min(3, REMEMBERED)


def test_a_failing_expiry_fails_no_job(
    lake: IcebergWarehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stored(lake).transaction() as change:
        change.set_properties({MAX_AGE: "no number"})
    lake.insert_job(job(tmp_path, 4))
    assert lake.kafka_ranges(TABLE) == {KafkaRange("t", 0, 0): 4}


# Complete hours


def test_the_tag_of_complete_hours_moves_forward_alone_and_keeps_its_snapshot(
    lake: IcebergWarehouse, tmp_path: Path
) -> None:
    def tagged() -> tuple[int, str]:
        table = stored(lake)
        return table.metadata.refs["complete_until"].snapshot_id, table.properties["kbq.complete-until"]

    first = stored(lake).current_snapshot()
    assert first is not None
    lake.mark_complete(TABLE, 474_757)
    assert tagged() == (first.snapshot_id, "2024-02-28T13:00:00Z")
    lake.insert_job(job(tmp_path, 4))
    for earlier in (474_757, 474_700):
        lake.mark_complete(TABLE, earlier)
        assert tagged() == (first.snapshot_id, "2024-02-28T13:00:00Z")
    assert stored(lake).scan(snapshot_id=first.snapshot_id).count() == 3
    assert keep_house(stored(lake), batch=1, now_ms=LATER)
    assert first.snapshot_id in {snapshot.snapshot_id for snapshot in stored(lake).snapshots()}
    lake.mark_complete(TABLE, 474_758)
    assert tagged()[0] != first.snapshot_id
    lake.mark_complete(TableReference("shop", "missing"), 1)


def test_a_tag_between_a_jobs_read_and_its_commit_stops_no_job(
    lake: IcebergWarehouse, tmp_path: Path
) -> None:
    def tagging(uri: str) -> BinaryIO:
        lake.mark_complete(TABLE, 474_757)
        return open_file_uri(uri)

    slow = IcebergWarehouse(*embedded(LakeAddress(tmp_path / "lake"), tmp_path), open_uri=tagging)
    slow.insert_job(job(tmp_path, 4))
    assert lake.kafka_ranges(TABLE) == {KafkaRange("t", 0, 0): 4}
    assert "complete_until" in stored(lake).metadata.refs
