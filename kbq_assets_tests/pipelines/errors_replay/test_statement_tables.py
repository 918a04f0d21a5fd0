"""Replayed records of a table that shows the newest record of each key: one is applied if it is newer than its key."""

from __future__ import annotations

import itertools
import json
import struct
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from kbq_assets.adapters.duckdb.errors_replay import DuckDbErrorReplays
from kbq_assets.core.loading.table_options import table_options
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol.names import table_state_path
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.replay.model import Bounds, Phase, Replay, replay_path
from kbq_assets.core.statements import upsert
from kbq_assets.extras.reconcile.records import reconcile
from kbq_assets.pipelines.errors_replay.reparse import ReplayPorts, ReplayReport, Selection, replay_errors
from kbq_assets.pipelines.operate import commands as operate
from kbq_assets.pipelines.protocol import state
from kbq_assets.ports.errors_replay import ErrorReplay, Replayed
from kbq_assets.worker.unit import extract_unit
from kbq_assets_tests.pipelines.bench import ERRORS, TOPIC, A
from kbq_assets_tests.pipelines.statements.test_upsert_load import OPTIONS, VALUES, UpsertBench

#: An id that the registry does not know.
BAD = 99


class ErrorBench(UpsertBench):
    """With records of a schema that is registered later; ``last`` is what the topic says once it is."""

    def __init__(self, path: Path, **changes: Any) -> None:
        super().__init__(path, error_share=1, **changes)

    def cycle(self, **changes: Any) -> Any:
        super().cycle(**changes)
        while stops := self.extract().stops:
            for stop in stops:
                partition = stop.topic_partition.partition
                operate.propose_resume(self.store, TOPIC, partition, as_errors=True).apply()
        return self.load_all()

    def register(self) -> None:
        self.registry.schemas[BAD] = self.registry.schemas[1]

    def verdict(self) -> str:
        self.warehouse = self.duckdb  # type: ignore[assignment]
        found = reconcile(self.reconcile_ports())
        assert found.verdict == "yes" or found.upserts[0].findings, found
        return found.verdict

    def waiting(self) -> int:
        return sum(self.duckdb.kafka_ranges(ERRORS).values())

    def replay(self, **selection: Any) -> ReplayReport:
        settings = {TOPIC: self.settings}
        ports = ReplayPorts(
            self.store,
            self.duckdb,
            lambda unit, source: extract_unit(unit, self.worker(source), again=True),
            lambda topics: settings,
            lambda table, topics: table_options(table, topics, settings),
        )
        return replay_errors(ports, Selection(**selection))


def broken(path: Path, **changes: Any) -> ErrorBench:
    """A good record of each of four keys, and bad records: older than their key's, newer, of a deleted key, of a new
    key."""
    bench = ErrorBench(path, **changes)
    for key, x, schema in (
        (b"older", 1, BAD),
        (b"older", 2, 1),
        (b"newer", 3, 1),
        (b"newer", 4, BAD),
        (b"gone", 5, BAD),
        (b"gone", None, 1),
        (b"alone", 6, BAD),
    ):
        bench.change(key, x, schema=schema)
    bench.cycle()
    assert bench.waiting() == 4
    return bench


def test_a_record_is_applied_if_it_is_newer_than_its_key_and_otherwise_superseded(tmp_path: Path) -> None:
    bench = broken(tmp_path)
    assert sorted(bench.rows(VALUES)) == [(b"newer", 3), (b"older", 2)]
    bench.register()
    report = bench.replay()
    assert (report.rows, report.superseded, report.left) == ({A: 2}, {A: 2}, {})
    assert dict(bench.rows(VALUES)) == bench.expected() == {b"older": 2, b"newer": 4, b"alone": 6}
    replayed = bench.rows("SELECT _kafka_key FROM d.A WHERE _kbq_replayed_at IS NOT NULL ORDER BY 1")
    assert replayed == [(b"alone",), (b"newer",)]
    assert bench.waiting() == 0
    again = bench.replay()
    assert (again.rows, again.superseded, again.left) == ({}, {}, {})
    assert bench.verdict() == "yes"


def test_a_reconciliation_does_not_judge_rows_that_a_function_repaired(tmp_path: Path) -> None:
    bench = ErrorBench(tmp_path)
    bench.change(b"k", 1)
    bench.change(b"k", 2, schema=BAD)
    bench.change(b"old", 3, schema=BAD)
    bench.change(b"old", 4)
    bench.cycle()
    assert bench.verdict() == "yes"
    report = bench.replay(repair=lambda row: row.value.replace(bytes([0, 0, 0, BAD]), bytes([0, 0, 0, 1])))
    assert (report.rows, report.superseded) == ({A: 1}, {A: 1})
    assert dict(bench.rows(VALUES)) == bench.expected()
    assert bench.verdict() == "unknown"  # the key may be what the function repaired
    bench.change(b"k", 5)
    bench.cycle()
    assert bench.verdict() == "yes"


def test_marked_deletions_stay(tmp_path: Path) -> None:
    bench = broken(tmp_path, deletes="mark")
    bench.register()
    report = bench.replay()
    assert (report.rows, report.superseded) == ({A: 2}, {A: 2})
    shown = bench.rows(f"{VALUES} WHERE NOT COALESCE(_kbq_deleted, FALSE)")
    assert dict(shown) == bench.expected()


@pytest.mark.parametrize("deletes", ["remove", "mark"])
def test_a_tombstone_that_was_an_error_deletes_its_key_unless_that_is_newer(
    tmp_path: Path, deletes: str
) -> None:
    bench = ErrorBench(tmp_path, tombstones="error_table", deletes=deletes)
    for key, x in ((b"gone", 1), (b"gone", None), (b"back", None), (b"back", 2)):
        bench.change(key, x)
    bench.cycle()
    assert bench.waiting() == 2
    bench.settings = bench.settings.with_options(tombstones="row")
    report = bench.replay()
    assert (report.rows, report.superseded) == ({A: 1}, {A: 1})
    where = " WHERE NOT COALESCE(_kbq_deleted, FALSE)" if deletes == "mark" else ""
    assert bench.rows(VALUES + where) == [(b"back", 2)]


def test_later_batches_take_the_place_of_replayed_rows_and_of_their_mark(tmp_path: Path) -> None:
    bench = broken(tmp_path)
    bench.register()
    bench.replay()
    bench.change(b"newer", 7)
    bench.change(b"alone", None)
    assert {table.state for table in bench.cycle().tables} <= {"idle", "loaded"}
    rows = bench.rows("SELECT _kafka_key, x, _kbq_replayed_at FROM d.A ORDER BY 1")
    assert rows == [(b"newer", 7, None), (b"older", 2, None)]


def test_without_the_condition_of_the_statement_an_older_record_would_win(tmp_path: Path) -> None:
    bench = broken(tmp_path)
    bench.register()
    with patch.object(upsert, "is_newer", lambda *args: "TRUE"):
        bench.replay()
    assert dict(bench.rows(VALUES)) != bench.expected()
    assert bench.verdict() == "no"


def test_the_time_decides_if_the_rule_says_so(tmp_path: Path) -> None:
    bench = ErrorBench(tmp_path, tie="timestamp")
    for partition, schema, at, x in ((0, 1, 2000, 1), (1, BAD, 1000, 2), (1, BAD, 3000, 3)):
        body = struct.pack(">bI", 0, schema) + bytes([2 * x])
        bench.kafka.produce(TopicPartition(TOPIC, partition), body, key=b"k", timestamp=at)
    bench.cycle()
    bench.register()
    report = bench.replay()
    assert (report.rows, report.superseded) == ({A: 1}, {A: 1})  # one batch: its newest row
    assert bench.rows(VALUES) == [(b"k", 3)]


def test_a_key_in_two_partitions_changes_nothing_and_the_error_rows_stay(tmp_path: Path) -> None:
    bench = ErrorBench(tmp_path)
    bench.change(b"k", 1)
    bench.change(b"k", 2, schema=BAD, partition=1)
    bench.cycle()
    bench.register()
    report = bench.replay()
    assert (report.rows, report.left) == ({}, {"d.A refuses them": 1})
    assert "a key is in two partitions: 1:0 and 0:0" in report.examples["d.A refuses them"]
    assert (bench.waiting(), bench.rows(VALUES)) == (1, [(b"k", 1)])


def test_a_batch_in_flight_comes_first(tmp_path: Path) -> None:
    bench = broken(tmp_path)
    bench.register()
    bench.change(b"k", 8)
    bench.extract()
    expected = bench.rows(VALUES)
    for point in itertools.count(1):
        bench.load_until(point)
        if bench.table().in_flight is not None:
            break
    report = bench.replay()
    assert (report.rows, report.left) == ({}, {"d.A refuses them": 4})
    assert "in flight" in report.examples["d.A refuses them"]
    assert bench.rows(VALUES) == expected
    bench.load_all()
    assert bench.replay().rows == {A: 2}
    assert dict(bench.rows(VALUES)) == bench.expected()


@pytest.mark.thorough
def test_a_load_that_ends_before_the_transaction_keeps_the_replay_out(tmp_path: Path) -> None:
    """The state was idle when it was read, and the ledger says that it no longer is what was read."""
    bench = broken(tmp_path)
    bench.register()
    replays = bench.duckdb.errors_replay
    assert isinstance(replays, DuckDbErrorReplays)
    first = replays.replay

    def late(replay: ErrorReplay) -> Replayed:
        bench.change(b"newer", 9)
        bench.cycle()
        return first(replay)

    with patch.object(replays, "replay", late):
        report = bench.replay()
    assert (report.rows, report.left) == ({}, {"d.A refuses them": 4})
    assert "the ledger of d.A is not at batch 2" in report.examples["d.A refuses them"]
    assert bench.replay().superseded == {A: 3}
    assert dict(bench.rows(VALUES)) == bench.expected()


def test_a_load_that_planned_before_the_replay_loses_its_swap(tmp_path: Path) -> None:
    """Else its text would not know the column that the replay adds, and a newer row would keep the older one's mark."""
    bench = broken(tmp_path)
    bench.register()
    bench.change(b"newer", 9)
    bench.extract()
    planned = bench.duckdb.find_table
    done: list[ReplayReport] = []

    def meanwhile(table: Any) -> Any:
        found = planned(table)
        if table == A and not done:
            done.append(ReplayReport())
            done.append(bench.replay())
        return found

    with patch.object(bench.duckdb, "find_table", meanwhile):
        bench.load_all()
    bench.load_all()
    assert done[-1].rows == {A: 2}
    assert dict(bench.rows(VALUES)) == bench.expected()
    assert bench.rows("SELECT _kbq_replayed_at FROM d.A WHERE _kafka_key = 'newer'") == [(None,)]


@pytest.mark.parametrize("commits", [True, False])
def test_a_replay_that_dies_is_repeated(tmp_path: Path, commits: bool) -> None:
    bench = broken(tmp_path)
    bench.register()
    replays = bench.duckdb.errors_replay
    assert isinstance(replays, DuckDbErrorReplays)
    whole = replays.replay

    def dies(replay: ErrorReplay) -> Replayed:
        if commits:
            whole(replay)
        raise KeyboardInterrupt

    with patch.object(replays, "replay", dies), pytest.raises(KeyboardInterrupt):
        bench.replay()
    report = bench.replay()
    assert (report.rows, report.superseded) == (({}, {}) if commits else ({A: 2}, {A: 2}))
    assert dict(bench.rows(VALUES)) == bench.expected()
    assert bench.waiting() == 0


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (
            {"load": "append", "key": ""},
            {"tombstones": "skip"},
            "its next batch will be the first one under its topics' new `load`",
        ),
        ({"order": "offset", "load": "append", "key": ""}, None, "shows its rows in order"),
        ({"load": "insert_new"}, None, "depends on earlier records (load=insert_new)"),
        ({"load": "scd2"}, None, "depends on earlier records (load=scd2)"),
        ({"order": "offset", "gate": "person"}, None, "each row must pass a gate"),
    ],
)
def test_other_tables_leave_the_rows_with_the_reason(
    tmp_path: Path, before: dict[str, Any], after: dict[str, Any] | None, why: str
) -> None:
    bench = ErrorBench(tmp_path, **{"tombstones": "skip", **before})
    bench.change(b"k", 1, schema=BAD)
    bench.change(b"k", 2)
    bench.cycle()
    if after is not None:
        bench.settings = bench.settings.of(**{**OPTIONS, **after})
    bench.register()
    report = bench.replay()
    assert (report.rows, report.superseded, report.left) == ({}, {}, {"d.A refuses them": 1})
    assert why in report.examples["d.A refuses them"]
    assert bench.rows(VALUES) == [(b"k", 2)]


def test_records_of_a_table_without_a_batch_are_read_again(tmp_path: Path) -> None:
    bench = ErrorBench(tmp_path)
    bench.change(b"k", 1, schema=BAD)
    bench.change(b"k", 2, schema=BAD)
    bench.cycle()
    bench.register()
    report = bench.replay()
    assert "kbq reset --topic T --at earliest" in report.examples["d.A refuses them"]
    operate.propose_reset(bench.store, bench.kafka, TOPIC, None, operate.StartAt("earliest")).apply()
    bench.cycle()
    assert bench.rows(VALUES) == [(b"k", 2)]
    bench.replay()
    assert bench.rows(VALUES) == [(b"k", 2)]


def test_a_record_whose_key_has_another_type_stays_an_error_row(tmp_path: Path) -> None:
    """In a variant column, it would be a further row without a key."""
    bench = ErrorBench(tmp_path, key="x", tombstones="skip", on_incompatible="variant_column")
    bench.change(b"k", 1)
    bench.change(b"k", 2, schema=BAD)
    bench.cycle()
    schema = json.loads(bench.registry.schemas[1])
    bench.registry.schemas[BAD] = json.dumps({**schema, "fields": [{"name": "x", "type": "boolean"}]})
    report = bench.replay(repair=lambda row: row.value[:5] + b"\x01")
    assert (report.rows, report.left) == ({}, {"d.A refuses them": 1})
    assert "its records have x__bool instead of x" in report.examples["d.A refuses them"]
    assert bench.rows(VALUES) == [(b"k", 1)]


def test_an_upsert_table_in_offset_order_takes_newer_records(tmp_path: Path) -> None:
    bench = broken(tmp_path, order="offset", tombstones="skip")
    bench.register()
    report = bench.replay()
    assert (report.superseded, report.left) == ({A: 1}, {})
    assert dict(bench.rows(VALUES)) == {b"older": 2, b"newer": 4, b"gone": 5, b"alone": 6}


@pytest.mark.parametrize("commits", [False, True])
def test_a_replay_that_dies_leaves_no_row_out_of_order_that_no_decision_names(
    tmp_path: Path, commits: bool
) -> None:
    bench = ErrorBench(tmp_path, order="offset", load="append", key="", tombstones="skip")
    bench.change(b"k", 1, schema=BAD)
    bench.change(b"k", 2)
    bench.cycle()
    bench.register()
    replays = bench.duckdb.errors_replay
    assert isinstance(replays, DuckDbErrorReplays)
    whole = replays.replay

    def decisions() -> list[str]:
        known = state.read(bench.store, TableState, table_state_path(A)).value
        return [each.reason for each in known.order.audit if each.action == "out_of_order"]

    def dies(replay: ErrorReplay) -> Replayed:
        assert decisions() == [f"{TOPIC}[0] offsets 0 to 0: ticket 12"]
        if commits:
            whole(replay)
        raise KeyboardInterrupt

    with patch.object(replays, "replay", dies), pytest.raises(KeyboardInterrupt):
        bench.replay(out_of_order="ticket 12")
    report = bench.replay(out_of_order="ticket 13")
    assert (report.rows, report.left) == ({} if commits else {A: 1}, {})
    assert len(decisions()) == (1 if commits else 2)
    late = bench.rows("SELECT _kafka_offset, _kbq_replayed_at IS NOT NULL FROM d.A ORDER BY 1")
    assert late == [(0, True), (1, False)]
    assert bench.waiting() == 0


def test_rows_wait_while_a_promotion_can_be_rolled_back(tmp_path: Path) -> None:
    """A promoted row may keep an older one out, and a rollback would not bring that (R11)."""
    bench = broken(tmp_path)
    bench.register()
    promoted = Replay(7, TOPIC, 1, {0: Bounds(0, 3)}, phase="promoted", tables=(str(A),))
    bench.store.create(replay_path(7), codec.dumps(promoted))
    report = bench.replay()
    assert (report.rows, sum(report.left.values())) == ({}, 4)
    assert "kbq replay accept 7" in str(report)
    state.change(bench.store, Replay, replay_path(7), lambda now: now.at(Phase.ACCEPTED))
    assert bench.replay().rows == {A: 2}
