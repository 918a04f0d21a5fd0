"""Error rows of a lake come back with three commits. Each lands once, whoever dies or comes late (PROTOCOL ER7)."""

from __future__ import annotations

import dataclasses
import itertools
from contextlib import suppress

import pytest

from kbq_assets.core.errors import JobFailed, KbqError, Unavailable, UnsupportedFormat
from kbq_assets.core.errors_replay.selection import Left
from kbq_assets.core.loading.replacing import Replacing
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.loading.tables import TableOptions
from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol.names import TableReference, table_state_path
from kbq_assets.pipelines.errors_replay.reparse import ReplayPorts, ReplayReport, Selection, replay_errors
from kbq_assets.pipelines.errors_replay.steps import give_up_replays
from kbq_assets.pipelines.operate import commands as operate
from kbq_assets.pipelines.protocol import state
from kbq_assets.ports.warehouse import KafkaRange
from kbq_assets.worker.unit import extract_unit
from kbq_assets_tests.fakes.faults import Call, Crash, Outcome
from kbq_assets_tests.fakes.warehouse import Row
from kbq_assets_tests.pipelines.bench import ERRORS, SETTINGS, TOPIC, A, Bench
from kbq_assets_tests.sizes import thinned

ELSEWHERE = TableReference("e", "A")
RANGE = KafkaRange(TOPIC, 0, 1)
STATE = table_state_path(ERRORS)
OUTCOMES = (
    Outcome.UNAVAILABLE,
    Outcome.CRASH_BEFORE,
    Outcome.CRASH_AFTER,
    Outcome.CRASH_LATE,
    Outcome.LOST_REPLY,
    Outcome.LATE,
    Outcome.OWN_RETRY,
)


def broken() -> Bench:
    """Offset 0 is a row, 1 and 2 are error rows whose schema is registered now."""
    made = Bench(settings=SETTINGS.with_options(error_share=1), keep_records=True, one_transaction=False)
    made.produce(1, 99, 99)
    made.extract()
    operate.propose_resume(made.store, TOPIC, 0, as_errors=True).apply()
    made.extract()
    made.load()
    made.registry.schemas[99] = made.registry.schemas[1]
    return made


@pytest.fixture
def bench() -> Bench:
    return broken()


def replay(bench: Bench, dataset: str = "d") -> ReplayReport:
    settings = bench.settings.with_options(dataset=dataset)
    ports = ReplayPorts(
        bench.store.view("mender"),
        bench.warehouse.view("mender"),
        lambda unit, source: extract_unit(unit, bench.worker(source), again=True),
        lambda topics: {TOPIC: settings} if TOPIC in topics else {},
        lambda table, topics: TableOptions(),
    )
    return replay_errors(ports, Selection())


def table_state(bench: Bench) -> TableState:
    return state.read(bench.store, TableState, table_state_path(ERRORS)).value


class Fault:
    """One call ends with an outcome. Who dies makes no call any more."""

    def __init__(self, outcome: Outcome, operation: str = "", number: int = 1) -> None:
        self.outcome, self.operation, self.number = outcome, operation, number
        self.seen = 0

    def __call__(self, call: Call) -> Outcome:
        if self.seen >= self.number and self.outcome.name.startswith("CRASH"):
            return Outcome.CRASH_BEFORE
        is_counted = call.operation == self.operation if self.operation else call.writes
        self.seen += is_counted
        return self.outcome if is_counted and self.seen == self.number else Outcome.OK


def fails(bench: Bench, fault: Fault) -> None:
    """A replay meets a fault."""
    bench.faults = fault
    with suppress(Crash, KbqError):
        replay(bench)
    bench.faults = lambda call: Outcome.OK


def dies_at(bench: Bench, operation: str, outcome: Outcome = Outcome.CRASH_BEFORE) -> None:
    """A replay dies at its first call of an operation."""
    fails(bench, Fault(outcome, operation))


def deliver(bench: Bench) -> None:
    while bench.store.late:
        bench.store.deliver_late()
    while bench.warehouse.late:
        bench.warehouse.deliver_late()


def is_whole(bench: Bench) -> None:
    """Each record is a row once, and no error row waits."""
    rows = [*bench.offsets(A), *bench.offsets(ELSEWHERE)]
    assert sorted(rows) == [0, 1, 2]
    assert bench.warehouse.positions(ERRORS, RANGE) == {}
    assert table_state(bench).definition.replaying is None
    assert bench.reconcile().verdict == "yes"


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("outcome", thinned(OUTCOMES))
def test_who_dies_at_any_write_is_continued_by_one_who_routes_elsewhere(
    outcome: Outcome, is_late: bool
) -> None:
    for number in itertools.count(1):
        bench, fault = broken(), Fault(outcome, number=number)
        fails(bench, fault)
        if not is_late:
            deliver(bench)
        replay(bench, "e")
        deliver(bench)
        replay(bench, "e")
        is_whole(bench)
        if fault.seen < number:
            break
    assert number > 6


def test_a_job_that_has_not_run_is_run_by_the_next_replay(bench: Bench) -> None:
    dies_at(bench, "land")
    intent = table_state(bench).definition.replaying
    assert intent is not None
    assert (intent.table, intent.offsets, bench.offsets(A)) == (A, (1, 3), [0])
    assert replay(bench, "e").rows == {A: 2}
    is_whole(bench)


def test_a_job_whose_files_are_gone_adds_nothing_and_the_rows_are_read_again(bench: Bench) -> None:
    dies_at(bench, "land")
    bench.store.delete_many(bench.paths("staging/"))
    assert replay(bench, "e").rows == {ELSEWHERE: 2}
    is_whole(bench)


def test_what_is_given_up_never_lands(bench: Bench) -> None:
    dies_at(bench, "land", Outcome.CRASH_LATE)
    give_up_replays(bench.store, bench.warehouse)
    assert table_state(bench).definition.replaying is None
    deliver(bench)
    assert (bench.offsets(A), set(bench.warehouse.positions(ERRORS, RANGE))) == ([0], {1, 2})
    assert replay(bench, "e").rows == {ELSEWHERE: 2}
    is_whole(bench)


def test_a_mark_that_comes_late_marks_no_error_row_that_came_since(bench: Bench) -> None:
    """A promotion has replaced rows and error rows of the range meanwhile: the record is an error row again."""
    dies_at(bench, "mark", Outcome.CRASH_LATE)
    give_up_replays(bench.store, bench.warehouse)
    assert set(bench.warehouse.positions(ERRORS, RANGE)) == set()
    errors, rows = bench.warehouse.stored[ERRORS], bench.warehouse.stored[A]
    added = set(rows.replayed)
    rows.rows = [row for row in rows.rows if row not in added]
    rows.replayed.clear()
    errors.replayed.clear()
    deliver(bench)
    assert set(bench.warehouse.positions(ERRORS, RANGE)) == {1, 2}


@pytest.mark.parametrize("table", [ERRORS, A])
def test_while_rows_are_replaced_nothing_lands(bench: Bench, table: TableReference) -> None:
    """The rows of the error table, or only of the target (a replay of selected tables)."""

    def waits(now: TableState) -> TableState:
        definition = dataclasses.replace(now.definition, replacing=Replacing(7, "kbq-replay-1-7-1"))
        return dataclasses.replace(now, definition=definition)

    state.change(bench.store, TableState, table_state_path(table), waits)
    report = replay(bench)
    assert (report.rows, report.left) == ({}, {"d.A refuses them": 2})
    assert table_state(bench).definition.replaying is None
    assert (bench.offsets(A), set(bench.warehouse.positions(ERRORS, RANGE))) == ([0], {1, 2})


def test_error_rows_that_cannot_be_marked_keep_the_intent(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their rows are there, and no other table gets them."""
    steps = type(bench.warehouse.errors_replay)

    def refuses(*_: object) -> None:
        raise JobFailed("another spec", next_step="rewrite the files")

    with monkeypatch.context() as patch:
        patch.setattr(steps, "mark", refuses)
        assert replay(bench).left == {"d.A refuses them": 2}
        with pytest.raises(JobFailed):
            replay(bench, "e")
    assert bench.offsets(A) == [0, 1, 2]
    assert replay(bench, "e").rows == {A: 2}
    is_whole(bench)


def test_a_job_that_has_not_ended_is_waited_for(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(type(bench.warehouse), "get_job", lambda *_: None)
        with pytest.raises(Unavailable, match="has not ended"):
            replay(bench)
    replay(bench)
    is_whole(bench)


def test_a_release_that_knows_no_such_replay_refuses_the_error_table(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    dies_at(bench, "land")
    monkeypatch.setattr(codec, "HIGHEST", codec.MERGING)
    with pytest.raises(UnsupportedFormat, match="format 8"):
        codec.loads(TableState, bench.store.get(STATE).data, STATE, keep=False)


def test_records_that_are_still_bad_stay_next_to_those_that_land(bench: Bench) -> None:
    bench.produce(98)
    bench.extract()
    operate.propose_resume(bench.store, TOPIC, 0, as_errors=True).apply()
    bench.extract()
    bench.load()
    report = replay(bench)
    assert (report.rows, report.left) == ({A: 2}, {Left.STILL_BAD: 1})
    marked = bench.warehouse.stored[ERRORS].replayed
    assert marked == {Row(1, TOPIC, 0, 1), Row(1, TOPIC, 0, 2)}
