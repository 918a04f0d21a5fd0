"""With `late_rows=table`, rows of complete hours go to a separate table, and complete hours stay unchanged."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import pytest

from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.extraction.units import WindowLimits
from kbq_assets.core.loading.completeness import HOUR_MS
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.ordering.rules import order_rule
from kbq_assets.core.ordering.table_order import OrderRule
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.names import TableReference, table_state_path
from kbq_assets.pipelines.protocol import state
from kbq_assets_tests.fakes.faults import Call, Crash, Outcome
from kbq_assets_tests.pipelines.bench import SETTINGS, TOPIC, A
from kbq_assets_tests.pipelines.operate.test_restage import restage
from kbq_assets_tests.pipelines.ordering.test_released_hours import HOURLY, NOON, HourlyBench

TO_TABLE = HOURLY.with_options(late_rows="table")
LATE = TableReference(A.dataset, f"{A.table}_late")


def one_complete_hour() -> HourlyBench:
    """Noon is complete, with one row."""
    bench = HourlyBench(settings=TO_TABLE, partitions=1, window=WindowLimits(records=100))
    bench.kafka.chunk_records = 100
    bench.at(0, 5, 70)
    bench.cycle()
    bench.cycle()
    assert table(bench).hours.until == NOON // HOUR_MS + 1
    return bench


def table(bench: HourlyBench, name: TableReference = A) -> TableState:
    return state.read(bench.store, TableState, table_state_path(name)).value


def rows(bench: HourlyBench) -> dict[str, list[int]]:
    """The offsets in the table, and in that of its late rows."""
    stored = bench.warehouse.stored
    return {str(t): sorted(bench.offsets(t)) if t in stored else [] for t in (A, LATE)}


def files_of(bench: HourlyBench, wanted: TableReference) -> list[StagedFile]:
    return [file for file in bench.commit().files if file.table == wanted]


def test_late_rows_go_to_their_own_table_and_complete_hours_stay() -> None:
    bench = one_complete_hour()
    noon = NOON // HOUR_MS
    bench.at(0, 6, 71, 7, 72)
    bench.cycle()
    bench.at(0, 130)
    bench.cycle()
    assert rows(bench) == {str(A): [0, 1, 3, 5, 6], str(LATE): [2, 4]}
    known = table(bench)
    assert (known.hours.rows[noon], table(bench, LATE).hours.rows[noon]) == (1, 2)
    assert (known.hours.late_rows, known.parked) == (0, None)
    assert bench.reconcile().accounted


def test_the_table_of_late_rows_has_no_order_and_waits_for_nothing() -> None:
    bench = one_complete_hour()
    bench.settings = TO_TABLE.with_options(hold_until="history")
    bench.at(0, 6, 71)
    bench.cycle()
    assert rows(bench) == {str(A): [0, 1], str(LATE): [2]}
    late = table(bench, LATE)
    assert (late.order.rule.by, late.parked) == ("", None)
    gated = {TOPIC: TO_TABLE.with_options(gate="person")}
    assert order_rule(LATE, [TOPIC], gated, OrderRule()) == OrderRule()
    assert order_rule(A, [TOPIC], gated, OrderRule()).by == "hour"


@pytest.mark.parametrize("wanted", [A, LATE], ids=str)
def test_a_lost_file_is_read_again_for_its_own_table(wanted: TableReference) -> None:
    bench = one_complete_hour()
    bench.at(0, 6, 71, 7, 72)
    bench.extract()
    [lost] = files_of(bench, wanted)
    bench.store.delete(lost.path)
    restage(bench, lost.path)
    bench.load_all()
    assert rows(bench) == {str(A): [0, 1, 3, 5], str(LATE): [2, 4]}


def test_a_table_whose_state_is_damaged_stops_no_extraction() -> None:
    bench = one_complete_hour()
    path = table_state_path(A)
    bench.store.swap(path, b"{", bench.store.get(path).generation)
    bench.at(0, 6, 71)
    bench.extract()
    assert bench.commit().partitions[0].next == 4
    assert bench.commit().partitions[0].stop is None
    assert files_of(bench, LATE) == []


def calls() -> Iterable[int]:
    return (4, 12, 21)


@pytest.mark.parametrize("died_after", calls())
@pytest.mark.parametrize("process", ["extractor", "loader"])
def test_a_row_is_in_one_of_both_tables_whoever_dies(process: str, died_after: int) -> None:
    bench, count = one_complete_hour(), 0

    def dies(call: Call) -> Outcome:
        nonlocal count
        count += call.process == process
        return Outcome.CRASH_AFTER if count == died_after + 1 and call.process == process else Outcome.OK

    bench.at(0, 6, 71, 7, 72)
    bench.faults = dies
    with contextlib.suppress(Crash):
        bench.cycle()
    bench.faults = lambda call: Outcome.OK
    bench.cycle()
    bench.at(0, 8, 130)
    bench.cycle()
    bench.cycle()
    found = rows(bench)
    assert sorted(found[str(A)] + found[str(LATE)]) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert table(bench).hours.late_rows == 0


def test_without_the_option_late_rows_come_back_to_their_table() -> None:
    bench = one_complete_hour()
    bench.at(0, 6, 71)
    bench.cycle()
    bench.settings = HOURLY
    bench.at(0, 7, 72)
    bench.cycle()
    assert rows(bench) == {str(A): [0, 1, 3, 4, 5], str(LATE): [2]}
    assert table(bench).hours.late_rows == 1


@pytest.mark.parametrize("options", [{"order": "offset"}, {"order": "hour", "load": "upsert", "key": "x"}])
def test_the_option_needs_hours_and_appended_rows(options: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="late_rows=table"):
        SETTINGS.with_options(late_rows="table", **options)
