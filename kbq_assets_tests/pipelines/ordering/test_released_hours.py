"""With `order: hour`, no row of an hour is visible before all partitions have passed the hours before it."""

from __future__ import annotations

import contextlib

import pytest

from kbq_assets.core.errors import ConfigurationError, Refused
from kbq_assets.core.extraction.units import WindowLimits
from kbq_assets.core.loading.completeness import HOUR_MS
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.ordering import transitions
from kbq_assets.core.ordering.table_order import AuditEntry
from kbq_assets.core.protocol.names import table_state_path
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.pipelines.loading.load import LoadReport, plan
from kbq_assets.pipelines.loading.view import read_view
from kbq_assets.pipelines.ordering.decisions import decide
from kbq_assets.pipelines.ordering.orders import order_status
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.state_cache import StateCache
from kbq_assets.wire.files.hour_files import MOST_HOURS
from kbq_assets_tests.fakes.faults import Call, Crash, Outcome
from kbq_assets_tests.pipelines.bench import SETTINGS, TOPIC, A, Bench, value

HOURLY = SETTINGS.with_options(order="hour", complete_after_seconds="60")
#: The beginning of the hour in which the bench's time is.
NOON = 1_700_000_000_000 // HOUR_MS * HOUR_MS - 2 * HOUR_MS


class HourlyBench(Bench):
    """Records have Kafka times, which are their business times."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.kafka.chunk_records = 1

    def at(self, partition: int, *minutes: int, schema: int = 1) -> None:
        """Append records, at minutes after noon."""
        for minute in minutes:
            self.kafka.produce(
                TopicPartition(TOPIC, partition), value(schema), timestamp=NOON + minute * 60_000
            )

    def cycle(self) -> LoadReport:
        self.extract()
        return self.load_all()

    def load_all(self) -> LoadReport:
        return self.load(topics=lambda topics: dict.fromkeys(topics, self.settings))

    def shown(self) -> list[tuple[int, int]]:
        """Partition and offset of the table's rows."""
        rows = self.warehouse.rows(A) if A in self.warehouse.stored else []
        return sorted((row.partition, row.offset) for row in rows)

    def why(self) -> tuple[str, str]:
        found = order_status(
            read_view(StateCache(self.store)), A, lambda topics: dict.fromkeys(topics, self.settings)
        )
        assert found is not None
        return found.state, found.why


def hourly(partitions: int = 3) -> HourlyBench:
    return HourlyBench(settings=HOURLY, partitions=partitions, window=WindowLimits(records=1))


def test_an_hour_waits_for_the_partition_that_is_an_hour_behind() -> None:
    bench = hourly()
    bench.at(0, 5, 30, 65)
    bench.at(1, 10, 70)
    bench.at(2, 2, 50)
    report = bench.cycle()
    assert bench.shown() == [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1)]
    [table] = report.tables
    assert table.state == "waiting"
    assert f"{TOPIC}[2] has passed" in table.message
    assert bench.why() == ("waits", table.message)
    assert not plan(bench.store, topics=lambda topics: dict.fromkeys(topics, HOURLY)).batches
    bench.at(2, 59)
    bench.cycle()
    assert len(bench.shown()) == 6
    bench.at(2, 62)
    bench.cycle()
    assert len(bench.shown()) == 9
    assert bench.why() == ("ready", "")


def test_rows_of_an_hour_that_is_passed_are_late_and_become_visible_at_once() -> None:
    bench = hourly(1)
    bench.at(0, 5, 70)
    bench.cycle()
    bench.cycle()
    bench.at(0, 6)
    bench.cycle()
    assert len(bench.shown()) == 3
    assert state.read(bench.store, TableState, table_state_path(A)).value.hours.late_rows == 1


def late_batch(late_rows: str) -> HourlyBench:
    """An hour is complete, and a record of it comes after that."""
    settings = HOURLY.with_options(late_rows=late_rows)
    bench = HourlyBench(settings=settings, partitions=1, window=WindowLimits(records=1))
    bench.at(0, 5, 70)
    bench.cycle()
    bench.cycle()
    bench.at(0, 6, 71)
    bench.cycle()
    return bench


def let_in(bench: HourlyBench) -> None:
    decide(bench.store, A, lambda now: transitions.go_on(now, AuditEntry(0, "", 0, "known", "me")))


def parked(bench: HourlyBench) -> str:
    found = state.read(bench.store, TableState, table_state_path(A)).value.parked
    return f"{found.reason}: {found.error}" if found else ""


def test_late_rows_stop_their_table_until_somebody_lets_their_batch_in() -> None:
    bench = late_batch("park")
    assert len(bench.shown()) == 2
    assert parked(bench).startswith("late_rows: batch 3 is late: 1 row belongs to complete hours before ")
    assert bench.why()[0] == "parked"
    bench.store.time_ms += HOUR_MS
    bench.load_all()
    assert "late_rows" in parked(bench)  # asking again lets nothing in
    let_in(bench)
    bench.load_all()
    assert ((0, 2) in bench.shown(), parked(bench)) == (True, "")
    with pytest.raises(Refused):
        let_in(bench)


def test_a_decision_about_late_rows_counts_for_one_batch_alone() -> None:
    bench = late_batch("park")
    let_in(bench)
    bench.load_all()
    bench.load_all()
    shown = len(bench.shown())
    bench.at(0, 7)
    bench.cycle()
    assert "late_rows" in parked(bench)
    assert len(bench.shown()) == shown


def test_late_rows_are_applied_once_the_option_is_gone() -> None:
    bench = late_batch("park")
    bench.settings = HOURLY
    bench.store.time_ms += HOUR_MS
    bench.load_all()
    assert ((0, 2) in bench.shown(), parked(bench)) == (True, "")


def test_rows_that_are_not_late_stop_nothing() -> None:
    bench = HourlyBench(settings=HOURLY.with_options(late_rows="park"), partitions=1)
    for minutes in ((5, 70), (80, 100), (110, 125)):
        bench.at(0, *minutes)
        bench.cycle()
        bench.cycle()
    assert parked(bench) == ""
    assert len(bench.shown()) == 6


def test_late_rows_need_hours() -> None:
    with pytest.raises(ConfigurationError, match="without order=hour"):
        SETTINGS.with_options(order="offset", late_rows="park")


def test_a_record_of_another_century_neither_moves_nor_waits() -> None:
    bench = hourly(2)
    bench.at(0, 5, 70_000_000, 6)
    bench.at(1, 7)
    bench.cycle()
    assert len(bench.shown()) == 4
    bench.at(0, 70)
    bench.cycle()
    assert len(bench.shown()) == 4  # partition 1 is still before one o'clock


def test_a_partition_without_new_records_holds_nothing_back_once_it_is_read_to_its_end() -> None:
    bench = hourly(2)
    bench.at(0, 5, 70)
    bench.at(1, 7)
    bench.cycle()
    assert len(bench.shown()) == 2
    for _ in range(3):
        bench.clock.seconds += 700
        bench.store.time_ms += 700_000
        bench.cycle()
    assert len(bench.shown()) == 3


@pytest.mark.parametrize("options", [{"order": "none"}, {"order": "offset"}])
def test_without_the_option_what_waits_goes_on(options: dict[str, str]) -> None:
    bench = hourly(2)
    bench.at(0, 5, 70)
    bench.at(1, 7)
    bench.cycle()
    bench.settings = HOURLY.with_options(**options)
    bench.load_all()
    assert len(bench.shown()) == 3
    [entry] = state.read(bench.store, TableState, table_state_path(A)).value.order.audit
    assert (entry.action, entry.reason) == (
        "order", f"order={options['order']} from here on, order=hour before"
    )  # fmt: skip


def test_a_table_that_never_loaded_waits_with_its_rule() -> None:
    bench = hourly(2)
    bench.at(0, 70)
    bench.at(1, 7, schema=3)  # of another table
    for _ in range(3):
        assert bench.cycle().tables[0].state == "waiting"
    assert bench.shown() == []
    bench.at(1, 65, schema=3)
    bench.cycle()
    assert bench.shown() == [(0, 0)]


@pytest.mark.parametrize("calls", range(0, 60, 7))
def test_a_loader_that_dies_shows_no_hour_early(calls: int) -> None:
    bench, count = hourly(2), 0

    def dies(call: Call) -> Outcome:
        nonlocal count
        count += call.process == "loader"
        return Outcome.CRASH_AFTER if count == calls + 1 and call.process == "loader" else Outcome.OK

    bench.at(0, 5, 70, 130)
    bench.at(1, 7, 65)
    bench.extract()
    bench.faults = dies
    with contextlib.suppress(Crash):
        bench.load_all()
    bench.faults = lambda call: Outcome.OK
    bench.load_all()
    assert bench.shown() == [(0, 0), (0, 1), (1, 0), (1, 1)]


def staged_hours(bench: HourlyBench) -> list[list[tuple[int, list[int]]]]:
    """Per window its files: the first offset, and the hours after noon of the rows."""
    windows = bench.commit().partitions[0].windows
    return [
        [(f.name.first_offset, [hour - NOON // HOUR_MS for hour in f.events.hours]) for f in window.files]
        for window in windows
    ]


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_no_file_crosses_an_hour_and_a_window_ends_where_a_new_hour_begins(chunk: int) -> None:
    bench = hourly(1)
    bench.window, bench.kafka.chunk_records = WindowLimits(records=1_000), chunk
    bench.at(0, 5, 30, 59, 65, 66, 125, 61, 126, 10, 62, 3)
    bench.extract()
    assert staged_hours(bench) == [[(0, [0])], [(3, [1])], [(5, [2]), (6, [1]), (8, [0])]]
    bench.at(0, 200)
    bench.cycle()
    bench.cycle()
    assert len(bench.shown()) == 11
    without = HourlyBench(settings=SETTINGS, window=WindowLimits(records=1_000))
    without.at(0, 5, 30, 59, 65, 66, 125, 61)
    without.extract()
    assert staged_hours(without) == [[(0, [0, 1, 2])]]


def test_hours_in_turn_make_few_files() -> None:
    bench = hourly(1)
    bench.window, bench.kafka.chunk_records = WindowLimits(records=1_000), 100
    bench.at(0, 110, *(-60 * (n % 40) for n in range(400)))
    bench.extract()
    [window] = staged_hours(bench)
    assert sorted(len(hours) for _, hours in window) == [*[1] * MOST_HOURS, 41 - MOST_HOURS]


def test_a_unit_goes_on_at_the_hour_that_its_partition_has_reached() -> None:
    bench = hourly(1)
    bench.window, bench.kafka.chunk_records = WindowLimits(records=1_000), 100
    bench.at(0, 5, 70)
    bench.extract()
    bench.at(0, 6, 71, 7)
    bench.extract()
    assert staged_hours(bench)[2:] == [[(2, [0]), (3, [1])]]


def test_a_window_with_a_record_of_another_century_ends_where_it_would_have_ended() -> None:
    bench = hourly(1)
    bench.window, bench.kafka.chunk_records = WindowLimits(records=1_000), 100
    bench.at(0, 5, 70_000_000, 6, 65)
    bench.extract()
    [first, second] = staged_hours(bench)
    assert ([offset for offset, _ in first], second) == ([0, 1], [(3, [1])])
