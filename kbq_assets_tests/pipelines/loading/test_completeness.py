"""Which hours are complete, over the real pipelines: idle, empty, behind, stopped, new, reset, crashed."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import pytest

from kbq_assets.core.errors import ConfigurationError, KbqError, Refused, Unavailable
from kbq_assets.core.loading.completeness import HOUR_MS, TableHours, Verdict
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.observation.checks import LoadBlock
from kbq_assets.core.protocol.names import COMPLETENESS_TABLE, TableReference, table_state_path
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.topics.source_list import SourceEntry, SourceLines, parse_source_list
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.pipelines.loading.completeness import judge_tables
from kbq_assets.pipelines.loading.completeness_table import PAUSE_MS, publish_hours
from kbq_assets.pipelines.loading.load import LoadPorts
from kbq_assets.pipelines.loading.load_blocks import LoadBlocks, default_options
from kbq_assets.pipelines.loading.view import LoadView, read_view
from kbq_assets.pipelines.operate import commands as operate
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.state_cache import StateCache
from kbq_assets.ports.warehouse import JobError
from kbq_assets_tests.fakes.faults import Crash, Outcome
from kbq_assets_tests.fakes.platform import GOOD, FakePlatform
from kbq_assets_tests.fakes.platform import TOPIC as FAST
from kbq_assets_tests.fakes.script import Script
from kbq_assets_tests.fakes.warehouse import FakeWarehouse
from kbq_assets_tests.pipelines.bench import ERRORS, SETTINGS, TOPIC, TP, A, B, Bench, value
from kbq_assets_tests.sizes import thinned
from kbq_assets_tests.wire.samples import avro_body, framed

#: The fakes' clocks begin in the hour before.
HOUR = 472_223
MINUTE = 60_000
HOURS_TABLE = TableReference("d", COMPLETENESS_TABLE)
_REFUSED = JobError("notFound", "the file is gone", transient=False)


class Times(Bench):
    """A bench whose clocks stand at a given time: minutes after `HOUR`."""

    def at(self, minutes: int) -> Self:
        """Set all clocks to this many minutes after `HOUR`."""
        self.store.time_ms = HOUR * HOUR_MS + minutes * MINUTE
        self.clock.seconds = (self.store.time_ms - 1_700_000_000_000) / 1000
        return self

    def record(self, minutes: int, *, partition: int = 0, schema_id: int = 1) -> None:
        """A record with this business time."""
        tp, when = TopicPartition(TOPIC, partition), HOUR * HOUR_MS + minutes * MINUTE
        self.kafka.produce(tp, value(schema_id), timestamp=when)

    def run(self) -> Verdict:
        """One extraction, one load; what is known of table A."""
        self.extract()
        return self.load().verdicts[A]

    def hours(self, table: TableReference = A) -> TableHours:
        """The hours in the table's state."""
        return state.read(self.store, TableState, table_state_path(table)).value.hours

    def until(self, table: TableReference = A) -> int:
        """Complete hours, counted from `HOUR`; -1 where nothing is known."""
        until = self.hours(table).until
        return until - HOUR if until else -1

    def publish(self, pause_ms: int = PAUSE_MS) -> set[TableReference]:
        """Write the table of hours; return what was tagged."""
        ports = LoadPorts(self.store.view("loader"), self.warehouse.view("loader"), self.clock)
        return publish_hours(ports, read_view(StateCache(ports.store)), pause_ms)

    def published(self) -> list[Mapping[str, Any]]:
        """Its rows."""
        return list(self.warehouse.records(HOURS_TABLE))


def test_an_hour_is_complete_once_its_end_is_passed_by_the_threshold() -> None:
    bench = Times().at(20)
    bench.record(16)
    assert bench.run().until == HOUR
    bench.at(75)
    bench.record(74)
    assert (bench.run().why, bench.until()) == ("shop.events[0] has passed 2023-11-15 00:14", 0)
    bench.at(77)
    bench.record(76)
    assert bench.run().held_by == "shop.events[0]"
    assert bench.until() == 1
    assert bench.hours().rows == {HOUR: 1, HOUR + 1: 2}


def test_an_active_partition_is_judged_by_its_business_time_alone() -> None:
    bench = Times().at(20)
    bench.record(16)
    bench.run()
    bench.at(200)
    bench.record(30)  # what is read up to the log's end now happened long ago
    bench.run()
    assert bench.until() == 0
    bench.at(214)
    bench.run()
    assert bench.until() == 0
    bench.at(225)  # nothing more for a quarter of an hour: it is idle, by a mark that is not ten minutes old
    bench.run()
    assert bench.until() == 3


TIMED = SETTINGS.with_options(event_date="at", tombstones="row", error_share=1.0)
_AT = ["null", {"type": "long", "logicalType": "timestamp-millis"}]
_TIMED_SCHEMA = {"type": "record", "name": "A", "fields": [{"name": "at", "type": _AT}]}


def _timed(at: int | None) -> bytes:
    """A record with this business time, in minutes after `HOUR`."""
    time = None if at is None else HOUR * HOUR_MS + at * MINUTE
    return framed(avro_body(_TIMED_SCHEMA, {"at": time}), 8)


class Replay(Times):
    """A topic whose records have other times than Kafka's."""

    def tell(self, *values: bytes | None) -> None:
        """Records that come now."""
        self.registry.schemas[8] = json.dumps(_TIMED_SCHEMA)
        for each in values:
            self.kafka.produce(TP, each, key=b"k", timestamp=self.store.time_ms)


_BAD = b"\x01 no Confluent prefix"


@pytest.mark.parametrize("other", [_BAD, _timed(None), None], ids=["bad", "without-time", "tombstone"])
def test_records_without_a_business_time_complete_no_hour(other: bytes | None) -> None:
    bench = Replay(settings=TIMED).at(6000)
    bench.tell(_timed(16), other)
    bench.run()
    mark = bench.commit().partitions[0].watermark
    assert (mark.event_ms, mark.rows_ms > 0) == (HOUR * HOUR_MS + 16 * MINUTE, True)
    assert bench.until() == 0
    bench.at(6005).tell(other)
    bench.run()
    assert bench.until() == 0
    bench.at(6006).tell(_timed(76))
    bench.run()
    assert (bench.until(), bench.hours().late_rows) == (1, 0)


@pytest.mark.parametrize("only", [_BAD, _timed(None)], ids=["bad", "without-time"])
def test_a_partition_without_a_business_time_is_judged_by_its_log_end(only: bytes) -> None:
    bench = Replay(settings=TIMED).at(59)
    table = ERRORS if only == _BAD else A
    for minutes in range(59, 90, 5):
        bench.at(minutes).tell(only)
        bench.extract()
        bench.load()
        assert bench.until(table) == (-1 if minutes < 74 else 0 if minutes < 75 else 1)


def test_empty_and_idle_partitions_are_judged_by_their_log_end() -> None:
    bench = Times(partitions=3).at(20)
    bench.record(16)
    bench.run()
    bench.at(76)
    bench.record(76)
    bench.record(20, partition=1)
    assert bench.run().held_by == "shop.events[1]"
    bench.at(91)
    bench.record(90)
    assert bench.run().until == HOUR + 1


def test_a_partition_that_is_stopped_holds_its_tables_and_is_named() -> None:
    bench = Times(partitions=2).at(20)
    bench.record(16)
    bench.record(17, partition=1)
    bench.run()
    bench.record(18, partition=1, schema_id=99)
    bench.at(200)
    verdict = bench.run()
    assert (verdict.until, verdict.held_by) == (HOUR, "shop.events[1]")
    assert verdict.why.endswith(": it is stopped: unknown_schema")


def test_files_that_are_staged_and_not_loaded_hold_their_hour() -> None:
    bench = Times(auto_run=False).at(20)
    bench.record(16)
    bench.extract()
    bench.at(200)
    bench.extract()
    verdict = bench.load(wait_seconds=0.0).verdicts[A]
    assert (verdict.held_by, verdict.until) == ("staged files", HOUR)
    bench.warehouse.step()
    assert bench.run().until == HOUR + 3


def test_a_parked_table_is_not_complete_and_says_why() -> None:
    bench = Times().at(20)
    bench.record(16)
    bench.run()
    operate.propose_park_table(bench.store, A).apply()
    bench.at(200)
    verdict = bench.run()
    assert (verdict.until, verdict.why) == (HOUR, "parked: operator")


def test_rows_in_quarantine_hold_their_hour_until_an_operator_gives_them_up() -> None:
    bench = Times().at(20)
    bench.record(16)
    bench.extract()
    bench.warehouse.bad_paths.update(bench.paths("staging/"))
    assert bench.load().verdicts[A].until == HOUR
    bench.at(200)
    bench.record(199)
    verdict = bench.run()
    assert (bench.until(), verdict.held_by) == (0, "quarantined files")
    assert verdict.why == (
        "1 file is in quarantine, the first with rows of 2023-11-14 23:00; "
        "to continue without such files: kbq resume --table d.A"
    )
    proposal = operate.propose_resume_table(bench.store, A)
    assert ["1 row that the warehouse rejected" in line for line in proposal.lines] == [True]
    proposal.apply()
    assert bench.run().until == HOUR + 3
    assert (bench.hours().rows, bench.hours().late_rows) == ({HOUR + 3: 1}, 0)
    with pytest.raises(Refused):
        operate.propose_resume_table(bench.store, A)


def test_a_job_that_loaded_another_number_of_rows_stops_its_table_until_somebody_accepts_it() -> None:
    bench = Times(auto_run=False).at(20)
    bench.record(16)
    bench.extract()
    bench.load(wait_seconds=0.0)
    bench.warehouse.step()
    [job] = bench.warehouse.jobs.values()
    job.status = dataclasses.replace(job.status, output_rows=0)
    bench.at(200)
    assert "loaded 0 rows of files with 1" in bench.run().why
    assert bench.until() == -1
    operate.propose_resume_table(bench.store, A).apply()
    assert bench.run().until == HOUR + 3


def test_a_table_all_of_whose_rows_were_given_up_is_complete() -> None:
    bench = Times().at(20)
    bench.record(16)
    bench.extract()
    bench.warehouse.bad_paths.update(bench.paths("staging/"))
    bench.at(200)
    bench.run()
    bench.at(216)
    assert bench.run().held_by == "quarantined files"
    operate.propose_resume_table(bench.store, A).apply()
    assert bench.run().until == HOUR + 3


def test_a_new_partition_holds_its_topic_until_it_is_read() -> None:
    bench = Times().at(20)
    bench.record(16)
    bench.run()
    bench.kafka.add_partitions(TOPIC, 2)
    bench.record(20, partition=1)
    bench.at(200)
    bench.faults = Script("close", outcome=Outcome.UNAVAILABLE)
    assert bench.run().why == "shop.events[1] is not read to its end yet"
    assert bench.until() == 0
    bench.run()
    bench.at(216)
    assert bench.run().until == HOUR + 3
    assert bench.hours().late_rows == 0


def test_a_commit_that_cannot_be_read_holds_its_tables() -> None:
    bench = Times().at(20)
    bench.record(16)
    bench.run()
    bench.store.objects[f"commits/{TOPIC}.json"] = bench.store.objects["tables/_tables.json"]
    bench.at(200)
    verdict = bench.load().verdicts[A]
    assert verdict.until == HOUR
    assert f"commits/{TOPIC}.json cannot be read" in verdict.why


def test_rows_that_come_into_a_complete_hour_are_counted_as_late() -> None:
    bench = Times().at(20)
    bench.record(16)
    bench.run()
    bench.at(200)
    bench.run()
    assert bench.until() == 3
    bench.record(30)
    bench.record(199)
    bench.run()
    assert (bench.hours().late, bench.hours().rows) == ({HOUR: 1}, {HOUR: 2, HOUR + 3: 1})


def test_what_a_reset_reads_again_is_late_and_nothing_goes_back() -> None:
    bench = Times().at(20)
    bench.record(16)
    bench.run()
    bench.at(200)
    bench.run()
    operate.propose_reset(bench.store, bench.kafka, TOPIC).apply()
    assert bench.load().verdicts[A].why == "shop.events[0] is not read to its end yet"
    bench.run()
    assert (bench.until(), bench.hours().late_rows) == (3, 1)


def test_a_topic_that_is_extracted_no_more_or_not_judged_is_not_waited_for() -> None:
    bench = Times().at(20)
    bench.record(16)
    bench.run()
    view = read_view(StateCache(bench.store))
    assert judge_tables(view, lambda topics: {})[A].why == "no extracted topic has records for it"
    off = dict.fromkeys([TOPIC], TopicSettings.of(complete_after_seconds=0))
    assert judge_tables(view, lambda topics: off)[A].held_by == "nobody"
    assert judge_tables(view, default_options)[A].held_by == "shop.events[0]"


def test_a_topic_whose_options_nobody_knows_has_passed_no_hour() -> None:
    bench = Times().at(20)
    bench.record(16)
    bench.run()
    blocks = LoadBlocks(unknown=SourceLines(parse_source_list(f"{TOPIC} tabel=x", "list")).unknown)
    verdict = judge_tables(read_view(StateCache(bench.store), blocks), lambda topics: {})[A]
    assert (verdict.held_by, "unknown option 'tabel'" in verdict.why) == (f"{TOPIC}[0]", True)


@pytest.mark.parametrize("step", ["load", "advance_hours"])
def test_a_mistake_that_is_written_between_the_view_and_the_judgement_completes_no_hour(
    tmp_path: Path, step: str
) -> None:
    """A view lasts as long as the load's jobs. The slower topic was known when it was read, and is not any more."""
    slow, line = "shop.slow", f"{FAST} dataset=shop table=orders\n"
    world = FakePlatform(tmp_path, sources=f"{line}{slow} dataset=shop table=orders\n", partitions=1)
    world.kafka.create_topic(slow, 1)
    for minutes, topic in ((20, FAST), (20, slow), (20 + 5 * 60, FAST)):
        world.store.time_ms = now_ms = HOUR * HOUR_MS + minutes * MINUTE
        world.clock.skew_ms = now_ms - 1_700_000_000_000
        world.kafka.produce(TopicPartition(topic, 0), GOOD, timestamp=now_ms)
        world.parts.extractor.extract(only=frozenset({topic}))
    loader, deployment = world.parts.loader, world.parts.deployment
    loader.load()
    [(table, before)] = world.parts.observer.known_hours().items()

    class Edited(LoadBlocks):
        def __call__(self, view: LoadView) -> Mapping[str, LoadBlock]:
            found = super().__call__(view)
            world.source_topics.write_text(f"{line}{slow} dataset=shop tabel=orders\n")
            return found

    blocks = deployment.blocks
    vars(deployment)["blocks"] = Edited(deployment.sources.select, deployment.sources.unknown)
    with contextlib.suppress(ConfigurationError):
        getattr(loader, step)()
    assert world.parts.observer.known_hours()[table] == before
    world.source_topics.write_text(line)
    vars(deployment)["blocks"] = blocks
    loader.load()
    assert world.parts.observer.known_hours()[table].until == before.until + 5, "nobody waits for it any more"


def test_an_idle_topic_costs_a_swap_every_ten_minutes() -> None:
    bench = Times().at(0)
    bench.record(0)
    bench.run()
    bench.extract()  # drops what is loaded
    swaps = []
    for minutes in range(1, 31):
        bench.at(minutes)
        bench.faults = script = Script("none")
        bench.extract()
        swaps += [minutes for call in script.calls if call.operation == "swap"]
    assert swaps == [10, 20, 30]


def test_a_clock_that_is_ahead_completes_no_hour_before_the_stores_time() -> None:
    bench = Times().at(20)
    bench.record(16)
    bench.run()
    bench.clock.seconds += 7 * 24 * 3600
    bench.run()
    assert bench.until() == 0


def test_every_crash_leaves_hours_that_count_each_row_once() -> None:
    """Before and after every write of an extraction and a load."""
    writes = ("swap", "create", "close", "insert_job", "create_table", "delete_many")
    outcomes = (Outcome.CRASH_BEFORE, Outcome.CRASH_AFTER, Outcome.LOST_REPLY)
    crashed = 0
    for operation in writes:
        for outcome in outcomes:
            for nth in range(1, 9):
                bench = Times(partitions=2).at(20)
                bench.record(16)
                bench.record(17, partition=1, schema_id=3)
                bench.faults = script = Script(operation, outcome=outcome, nth=nth)
                try:
                    bench.extract()
                    bench.load()
                except Crash:
                    crashed += 1
                except KbqError:
                    pass
                if script.nth > 0:
                    break
                bench.faults = lambda call: Outcome.OK
                bench.at(200).run()
                bench.at(216).run()
                assert (bench.hours(A).rows, bench.hours(B).rows) == ({HOUR: 1}, {HOUR: 1})
                assert (bench.until(A), bench.until(B)) == (3, 3)
                assert bench.hours(A).late_rows == bench.hours(B).late_rows == 0
    assert crashed > 10


def _schedule(seed: int) -> Counter[str]:
    """Random runs with faults; asserts after every recorded job what may be known only there. Returns what happened."""
    chance, seen = random.Random(seed), Counter[str]()
    bench = Times(partitions=2, auto_run=chance.random() < 0.5)
    minutes, until, loaded = 0, 0, 0
    for _ in range(30):
        minutes += chance.choice((1, 7, 20, 70))
        bench.at(minutes)
        for _ in range(chance.randrange(4)):
            back = chance.choice((0, 1, 5, 30, 90))
            bench.record(
                max(0, minutes - back), partition=chance.randrange(2), schema_id=chance.choice((1, 2))
            )
        if not bench.auto_run:
            bench.warehouse.step()
        script = Script(
            chance.choice(("swap", "get", "insert_job", "read", "none")),
            outcome=chance.choice(
                (Outcome.CRASH_AFTER, Outcome.LOST_REPLY, Outcome.UNAVAILABLE, Outcome.LATE)
            ),
            nth=chance.randint(1, 4),
        )
        bench.faults = script if chance.random() < 0.5 else lambda call: Outcome.OK
        try:
            bench.extract() if chance.random() < 0.6 else bench.load(wait_seconds=0.0)
        except (Crash, KbqError) as error:
            seen[type(error).__name__] += 1
        bench.faults = lambda call: Outcome.OK
        if not bench.store.objects.get(table_state_path(A)):
            continue
        hours = bench.hours()
        assert hours.until >= until
        counted = sum(hours.rows.values()) + hours.older_rows
        assert counted == sum(state.read(bench.store, TableState, table_state_path(A)).value.rows.values())
        until, loaded = hours.until, counted
        seen["complete"] += until > 0
    rows = Counter[int]()
    for row in bench.warehouse.rows(A):
        message = bench.kafka.log(TopicPartition(row.topic, row.partition)).records[row.offset]
        rows[message.timestamp // HOUR_MS] += 1
    assert bench.auto_run is False or rows.total() >= loaded
    if rows.total() == loaded:
        assert hours.rows == rows
        seen["compared"] += 1
    seen["late"] += hours.late_rows
    return seen


def test_random_runs_with_faults_keep_every_hour_true() -> None:
    seeds = thinned(range(15))
    seen = sum(map(_schedule, seeds), Counter[str]())
    assert min(seen["complete"], seen["compared"], seen["late"]) > len(seeds) * 2 // 3


# The table of hours --------------------------------------------------------------------------------------------------


def _row(hour: int, complete: bool, rows: int, late: int = 0) -> tuple[int, bool, int, int]:
    return hour, complete, rows, late


def _shown(bench: Times, table: str = "A") -> list[tuple[int, bool, int, int]]:
    rows = [row for row in bench.published() if row["table_name"] == table]
    hours = [round(row["hour"].timestamp() * 1000) // HOUR_MS - HOUR for row in rows]
    return [(h, r["complete"], r["row_count"], r["late_rows"]) for h, r in zip(hours, rows, strict=True)]


def _with_hours() -> Times:
    bench = Times().at(20)
    bench.record(16)
    bench.run()
    bench.at(140)
    bench.record(139)
    bench.run()
    bench.publish()
    return bench


def test_the_table_of_hours_shows_them_all() -> None:
    bench = _with_hours()
    assert _shown(bench) == [_row(0, True, 1), _row(1, True, 0), _row(2, False, 1)]
    assert [row["completed_at"] is None for row in bench.published()] == [False, False, True]


def test_it_is_replaced_when_something_changed_and_not_too_often() -> None:
    bench = _with_hours()
    bench.publish()
    bench.record(20)
    bench.run()
    bench.publish()
    assert len(_jobs(bench)) == 1
    bench.store.time_ms += PAUSE_MS
    bench.publish()
    bench.publish()
    assert len(_jobs(bench)) == 2
    assert _shown(bench) == [_row(0, True, 2, 1), _row(1, True, 0), _row(2, False, 1)]
    assert bench.paths("completeness/") == ["completeness/d.json"]


def test_a_state_that_cannot_be_read_now_takes_no_hour_away() -> None:
    bench = Times().at(20)
    for schema_id in (1, 3):
        bench.record(16, schema_id=schema_id)
    bench.run()
    bench.publish()
    bench.at(80).record(79)  # only table A has a new row
    bench.run()
    bench.faults = Script("get", "tables/d.B.json", Outcome.UNAVAILABLE)
    bench.publish()
    assert {row["table_name"] for row in bench.published()} == {"A", "B"}
    bench.publish()
    assert [(row["table_name"], row["complete"]) for row in bench.published()] == [
        ("A", True), ("A", False), ("B", True),
    ]  # fmt: skip


def test_its_pause_is_a_setting() -> None:
    bench = _with_hours()
    bench.record(20)
    bench.run()
    bench.store.time_ms += 100_000
    bench.publish(pause_ms=200_000)
    assert len(_jobs(bench)) == 1
    bench.publish(pause_ms=100_000)
    assert len(_jobs(bench)) == 2


class Tags(FakeWarehouse):
    """Notes the hours that are tagged. It ``refuses`` a table."""

    tagged: dict[TableReference, int]
    refuses: TableReference | None = None

    def view(self, process: str) -> Any:
        """Its calls do not fail otherwise."""
        return self

    def mark_complete(self, table: TableReference, until_hour: int) -> bool:
        """Name it."""
        if table == self.refuses:
            raise Unavailable("no answer")
        is_news = self.tagged.get(table) != until_hour
        self.tagged[table] = until_hour
        return is_news


def test_a_tag_that_fails_is_set_by_the_next_run_and_holds_back_nothing_else() -> None:
    bench = Times().at(20)
    bench.warehouse = tags = Tags(bench.store, bench.store.path_of)
    tags.now_ms, tags.tagged, tags.refuses = bench.store.now_ms, {}, A
    for schema_id in (1, 3):
        bench.record(16, schema_id=schema_id)
    bench.run()
    bench.at(140).record(139)
    bench.run()
    assert bench.publish() == {B}
    assert tags.tagged == {B: HOUR + 2}
    assert len(bench.published()) == 5
    tags.refuses = None
    bench.store.time_ms += PAUSE_MS
    assert bench.publish() == {A}
    assert tags.tagged == {A: HOUR + 2, B: HOUR + 2}
    bench.store.time_ms += PAUSE_MS
    bench.publish()
    assert len(_jobs(bench)) == 2


def test_it_is_no_table_of_kafka_rows() -> None:
    bench = _with_hours()
    assert HOURS_TABLE in bench.warehouse.stored
    assert HOURS_TABLE not in bench.warehouse.tables()
    assert HOURS_TABLE not in read_view(StateCache(bench.store)).tables
    assert bench.reconcile().accounted


@pytest.mark.parametrize(
    "outcome", [Outcome.CRASH_BEFORE, Outcome.CRASH_AFTER, Outcome.LOST_REPLY, Outcome.LATE]
)
@pytest.mark.parametrize(
    "operation", ["create", "swap", "insert_job", "create_table", "get_job", "delete_many"]
)
def test_whatever_write_fails_the_next_runs_write_it(operation: str, outcome: Outcome) -> None:
    for nth in (1, 2, 3):
        bench = Times().at(20)
        bench.record(16)
        bench.run()
        bench.faults = Script(operation, outcome=outcome, nth=nth)
        with contextlib.suppress(Crash):
            bench.publish()
        bench.faults = lambda call: Outcome.OK
        while bench.store.late or bench.warehouse.late:
            (bench.store if bench.store.late else bench.warehouse).deliver_late()
        for _ in range(3):
            bench.store.time_ms += PAUSE_MS
            bench.publish()
        assert _shown(bench) == [_row(0, False, 1)]
        assert bench.paths("completeness/") == ["completeness/d.json"]


def test_a_job_that_failed_is_made_anew() -> None:
    bench = Times().at(20)
    bench.record(16)
    bench.run()
    bench.warehouse.job_errors = lambda job: _REFUSED if job.replace else None
    bench.publish()
    assert bench.published() == []
    bench.warehouse.job_errors = None
    bench.store.time_ms += PAUSE_MS
    bench.publish()
    assert _shown(bench) == [_row(0, False, 1)]


def _jobs(bench: Times) -> list[str]:
    return [job.status.job_id for job in bench.warehouse.jobs.values() if job.load and job.load.replace]


def test_a_topic_may_have_its_own_threshold() -> None:
    bench = Times().at(20)
    bench.record(16)
    bench.run()
    settings = bench.settings.with_options(complete_after_seconds=7200)
    bench.at(179)
    bench.extract(sources=[SourceEntry(TOPIC, settings)])
    assert bench.load(topics=lambda topics: {TP.topic: settings}).verdicts[A].until == HOUR
    bench.at(190)
    bench.extract(sources=[SourceEntry(TOPIC, settings)])
    assert bench.load(topics=lambda topics: {TP.topic: settings}).verdicts[A].until == HOUR + 1


def test_a_topic_that_nobody_waits_for_is_not_marked() -> None:
    bench = Times(settings=SETTINGS.with_options(complete_after_seconds=0)).at(20)
    bench.record(16)
    bench.run()
    bench.extract()
    bench.at(100)
    bench.faults = script = Script("none")
    bench.extract()
    assert not [call for call in script.calls if call.operation == "swap"]
    assert bench.commit().partitions[0].watermark.end_ms == 0
