"""The DuckDB file keeps the contract of erasures, and no trace of an erased person remains in it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from kbq_assets.adapters.duckdb import DuckDbWarehouse
from kbq_assets.core.erasure.selection import PersonRecords
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.ports.warehouse import Warehouse
from kbq_assets_tests.adapters.duckdb.test_replay_promotion import DuckDbPlatform
from kbq_assets_tests.cli.test_erase import named
from kbq_assets_tests.contracts.erasure import ErasureTablesContract
from kbq_assets_tests.fakes.platform import POISON, TOPIC

SALES, ERRORS = (TableReference("shop", name) for name in ("sales", "kbq_errors"))
CANARY = "canary-7f3a@example.com"


class TestDuckDbErasureTables(ErasureTablesContract):
    @pytest.fixture
    def warehouse(self, tmp_path: Path) -> Warehouse:
        return DuckDbWarehouse(tmp_path / "w.duckdb")


def test_a_canary_person_is_gone_and_every_other_row_is_the_same(tmp_path: Path) -> None:
    world = DuckDbPlatform(tmp_path)
    world.source_topics.write_text(f"{TOPIC} dataset=shop table=sales error_share=1\n")
    for name, key in (("bert", "bert"), (CANARY, CANARY), ("carla", "carla")):
        for value in (named(name), POISON + name.encode()):
            world.kafka.produce(TopicPartition(TOPIC, 0), value, key=key.encode())
    world.cycle()
    before = {table: hashes(world, table) for table in (SALES, ERRORS)}
    erasures = world.opened().erasures
    erasures.propose(TOPIC, PersonRecords(frozenset({CANARY.encode()})))[1].apply()
    after = {table: hashes(world, table) for table in (SALES, ERRORS)}
    assert {table: sorted(before[table].keys() - after[table].keys()) for table in after} == {
        SALES: [6],
        ERRORS: [7],
    }
    assert all(after[table][at] == before[table][at] for table in after for at in after[table])
    assert not [row for table in after for row in world.rows(table, "*") if CANARY in str(row)]
    assert not [path for path, data in world.objects().items() if CANARY.encode() in data]
    assert world.is_whole()


def hashes(world: DuckDbPlatform, table: TableReference) -> dict[int, str]:
    """The hash of each row by its offset."""
    rows = world.rows(table, "_kafka_offset, *")
    return {int(str(row[0])): hashlib.sha256(repr(row).encode()).hexdigest() for row in rows}
