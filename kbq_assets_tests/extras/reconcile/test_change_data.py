"""Reconciliation covers tables of change data: the newest change of each key, and rows that a truncation removed."""

from __future__ import annotations

import random
from pathlib import Path

import duckdb
import pytest

from kbq_assets.core.topics.source_list import SourceEntry
from kbq_assets.extras.reconcile.records import Reconciliation, reconcile
from kbq_assets_tests.pipelines.bench import TOPIC
from kbq_assets_tests.pipelines.statements.test_change_data import Database


def settled(database: Database) -> Reconciliation:
    bench = database.bench
    bench.warehouse = database.duckdb  # type: ignore[assignment]
    return reconcile(bench.reconcile_ports([SourceEntry(TOPIC, bench.settings)]))


def by_hand(path: Path, sql: str) -> None:
    with duckdb.connect(str(path / "w.duckdb")) as connection:
        connection.execute(sql)


@pytest.mark.parametrize("deletes", ["remove", "mark"])
def test_any_changes_and_truncations_in_any_batches_are_accounted_for(tmp_path: Path, deletes: str) -> None:
    chance, changes = random.Random(5), 0
    database = Database(tmp_path, records=8, deletes=deletes)
    for turn in range(2):
        for number in range(12):
            key = chance.randrange(5)
            if key in database.rows and chance.random() < 0.3:
                database.delete(key, says_row=chance.random() < 0.5)
            else:
                database.put(key, unavailable=chance.choice(["", "tags"]), name=f"n{number}")
            changes += 1
            if (turn, number) == (1, 5):
                database.truncate()
        database.cycle()
    assert database.shown("NOT _kbq_deleted" if deletes == "mark" else "TRUE") == database.expected
    result = settled(database)
    [account] = result.upserts
    assert (result.verdict, account.findings) == ("yes", ())
    living = account.rows if deletes == "remove" else account.rows - account.deleted
    assert (living, account.rows + account.superseded > 5) == (len(database.rows), True)


def test_rows_from_before_a_truncation_older_changes_and_missing_keys_are_named(tmp_path: Path) -> None:
    path, database = tmp_path, Database(tmp_path, records=20)
    database.put(1, name="before")
    database.cycle()
    by_hand(path, "CREATE TABLE d.kept AS SELECT * FROM d.A")
    database.truncate()
    for name in ("older", "newest"):
        database.put(3, name=name)
        database.put(4, name=name)
    database.cycle()
    by_hand(path, "INSERT INTO d.A SELECT * FROM d.kept")
    by_hand(path, "UPDATE d.A SET _kafka_offset = _kafka_offset - 2 WHERE _key.id = 4")
    by_hand(path, "DELETE FROM d.A WHERE _key.id = 3")
    result = settled(database)
    assert result.verdict == "no"
    for named in (
        f"rows of records before the last truncation: {TOPIC}[0] offset 0",
        f"rows that are older than their key's newest record: {TOPIC}[0] offset 3 (newest: {TOPIC}[0] offset 5)",
        f"keys without their newest row: {TOPIC}[0] offset 4",
    ):
        assert any(named in finding for finding in result.findings), result.findings
