"""A record that stops its partition stops it at its own offset: good records before it are rows (PROTOCOL E10)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from kbq_assets.core.errors import Unavailable
from kbq_assets.core.extraction.units import WindowLimits
from kbq_assets.core.protocol.commits import PartitionCommit, Stop
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.pipelines.operate.commands import propose_resume
from kbq_assets_tests.fakes.engine import InProcessEngine
from kbq_assets_tests.pipelines.bench import SCHEMAS, SETTINGS, TOPIC, TP, A, B, Bench, value
from kbq_assets_tests.pipelines.ordering.test_released_hours import HOURLY, HourlyBench

PROTO = 'syntax="proto3"; message A {int64 x=1;}'
TEXT = '{"type":"record","name":"R","fields":[{"name":"x","type":"string"}]}'
JSON = '{"properties":{"x":{"type":"integer"}}}'
MINUTE_MS = 60_000


def framed(schema_id: int, body: bytes) -> bytes:
    return struct.pack(">bI", 0, schema_id) + body


@dataclass(frozen=True)
class Format:
    """A topic, its good and its stopping record, and what makes the latter good."""

    settings: TopicSettings
    reason: str
    good: bytes
    stopping: bytes
    fix: Callable[[Bench], object]
    table: TableReference = A

    def bench(self) -> Bench:
        bench = Bench(self.settings)
        bench.registry.documents = {11: JSON}
        bench.registry.messages = {21: PROTO}
        bench.registry.schemas[31] = TEXT
        return bench


AVRO = Format(
    SETTINGS, "unknown_schema", value(1), value(99), lambda b: b.registry.schemas.update({99: SCHEMAS[1]})
)
FORMATS = {
    "avro": AVRO,
    "avro of one table": Format(
        TopicSettings.of(dataset="d", table="A"), "unknown_schema", value(1), value(99), AVRO.fix
    ),
    "a table per record": Format(
        TopicSettings.of(dataset="d", table="{field.x}"),
        "unknown_schema",
        framed(31, b"\x02A"),
        framed(32, b"\x02A"),
        lambda b: b.registry.schemas.update({32: TEXT}),
        TableReference("d", "a"),
    ),
    "json": Format(
        TopicSettings.of(dataset="d", table="A", format="json_schema"),
        "unknown_schema",
        framed(11, b'{"x":1}'),
        framed(12, b'{"x":2}'),
        lambda b: b.registry.documents.update({12: JSON}),
    ),
    "protobuf": Format(
        TopicSettings.of(dataset="d", table="A", format="protobuf"),
        "unknown_schema",
        framed(21, b"\x00\x08\x01"),
        framed(22, b"\x00\x08\x02"),
        lambda b: b.registry.messages.update({22: PROTO}),
    ),
    "no table can hold it": Format(
        SETTINGS, "unstageable_schema", value(1), value(5), lambda b: None
    ),
    "bad, in order": Format(
        TopicSettings.of(dataset="d", table="A", order="offset", errors="fail"),
        "bad_record", value(1), b"\x01", lambda b: None,
    ),
}  # fmt: skip


def at(bench: Bench) -> PartitionCommit:
    return bench.commit().partitions[0]


def stop_of(bench: Bench) -> Stop:
    stop = at(bench).stop
    assert stop is not None
    return stop


@pytest.mark.parametrize("place", [0, 1, 2, 4])
@pytest.mark.parametrize("name", FORMATS)
def test_records_before_a_stop_are_rows_and_all_of_them_once_it_is_fixed(name: str, place: int) -> None:
    format_ = FORMATS[name]
    bench = format_.bench()
    for offset in range(5):
        bench.kafka.produce(TP, format_.stopping if offset == place else format_.good, key=b"k")
    [stop] = bench.extract().stops
    assert (stop.reason, f"offset {place}: " in stop.message) == (format_.reason, True)
    assert (at(bench).next, stop_of(bench).first) == (place, place)
    assert at(bench).totals.records == place
    bench.load()
    assert bench.offsets(format_.table) == [*range(place)]
    assert bench.paths("staging/") == []
    format_.fix(bench)
    is_bad = format_.reason != "unknown_schema"
    propose_resume(bench.store, TOPIC, as_errors=is_bad).apply()
    assert not bench.extract().stops
    bench.load()
    assert sorted(bench.offsets(format_.table)) == [
        offset for offset in range(5) if offset != place or not is_bad
    ]
    assert bench.reconcile().accounted


def test_the_first_of_several_stops_counts() -> None:
    bench = Bench(SETTINGS.with_options(errors="fail"))
    bench.produce(1)
    bench.kafka.produce(TP, b"\x01")
    bench.kafka.chunk_records = 10
    bench.produce(3, 98, 1, 99)
    [stop] = bench.extract().stops
    assert (stop.reason, at(bench).next) == ("bad_record", 1)
    propose_resume(bench.store, TOPIC, as_errors=True).apply()
    bench.extract()  # from the bad record on, its whole window takes bad records as error rows
    bench.load()
    assert (bench.offsets(A), bench.offsets(B)) == ([0, 4], [2])


def test_a_second_try_publishes_nothing_and_counts_as_failed() -> None:
    bench = Bench()
    bench.produce(1, 99, 1)
    bench.extract()
    published = bench.paths("staging/")
    for tries in (1, 2):
        bench.store.time_ms += 10 * MINUTE_MS
        bench.extract()
        assert (stop_of(bench).tries, stop_of(bench).first, bench.paths("staging/")) == (tries, 1, published)


def test_positions_without_records_before_it_are_published_too() -> None:
    """The stop is written only if the partition is at it: otherwise no run would know of it."""
    bench = Bench()
    bench.produce(1)
    bench.extract()
    bench.kafka.gap(TP, 3)
    bench.kafka.elect_leader(TP)
    bench.produce(99)
    bench.extract()
    assert (at(bench).next, stop_of(bench).first, at(bench).totals.gaps) == (4, 4, 3)
    assert at(bench).leader_epoch == 0, "no record of the new leader is published"
    AVRO.fix(bench)
    propose_resume(bench.store, TOPIC).apply()
    bench.extract()
    assert (at(bench).next, at(bench).leader_epoch, at(bench).stop) == (5, 1, None)


def test_the_last_record_before_it_says_the_leader_epoch() -> None:
    bench = Bench()
    bench.kafka.chunk_records = 10
    bench.produce(1)
    bench.kafka.elect_leader(TP)
    bench.produce(99, 1)
    bench.extract()
    assert (at(bench).next, at(bench).leader_epoch, at(bench).epoch_until) == (1, 0, 1)


def test_a_schema_that_changed_stops_at_its_first_record() -> None:
    bench = Bench()
    bench.kafka.chunk_records = 10
    bench.produce(1)
    bench.extract()
    bench.registry.schemas[1] = SCHEMAS[2]
    bench.produce(3, 3, 3, 1, 3, 1)
    [stop] = bench.extract().stops
    assert (stop.reason, at(bench).next, stop_of(bench).first) == ("schema_changed", 4, 4)
    bench.load()
    assert (bench.offsets(A), bench.offsets(B)) == ([0], [1, 2, 3])
    bench.registry.schemas[1] = SCHEMAS[1]
    bench.store.time_ms += MINUTE_MS
    bench.extract()
    bench.load()
    assert (bench.offsets(A), bench.offsets(B)) == ([0, 4, 6], [1, 2, 3, 5])


def test_a_registry_that_is_down_publishes_no_part_of_the_window() -> None:
    bench = Bench()
    bench.produce(1, 1, 1)
    bench.registry.defect = Unavailable("the registry is down", next_step="start it")
    report = bench.extract()
    assert (report.stops, [*report.failures], at(bench).next) == ((), [TP], 0)


def test_the_share_of_errors_is_that_of_a_whole_window() -> None:
    bench = Bench(SETTINGS.with_options(error_share_records=4))
    for record in (value(1), b"\x01", b"\x01", value(1), value(1)):
        bench.kafka.produce(TP, record)
    [stop] = bench.extract().stops
    assert (stop.reason, at(bench).next, stop_of(bench).first) == ("error_share", 0, 0)


def test_a_window_that_ends_before_a_stop_has_its_own_share_of_errors() -> None:
    bench = Bench(SETTINGS.with_options(error_share_records=4))
    for record in (value(1), b"\x01", b"\x01", value(1), value(99)):
        bench.kafka.produce(TP, record)
    [stop] = bench.extract().stops
    assert (stop.reason, at(bench).next, stop_of(bench).until) == ("error_share", 0, 4)


def test_a_backup_of_the_same_reading_goes_on() -> None:
    bench = Bench(SETTINGS.with_options(backup="true"))
    bench.produce(1, 1, 1, 99, 1, 1)
    bench.extract()
    assert (at(bench).next, bench.backup_commit().partitions[0].next) == (3, 6)
    AVRO.fix(bench)
    propose_resume(bench.store, TOPIC).apply()
    bench.extract()
    bench.load()
    assert sorted(bench.offsets(A)) == [0, 1, 2, 3, 4, 5]
    assert bench.reconcile().accounted


def test_other_partitions_and_slices_behind_it_are_not_touched() -> None:
    bench = Bench(window=WindowLimits(records=2), partitions=2)
    bench.produce(1, 1, 1, 99, 1, 1, 1)
    bench.produce(1, 1, partition=1)
    bench.extract()
    assert [each.next for each in bench.commit().partitions.values()] == [3, 2]


def test_a_published_part_ends_the_count_of_dead_tasks() -> None:
    bench = Bench()
    bench.produce(1, 99)
    bench.extract(open_engine=lambda worker: InProcessEngine(worker, kills=lambda unit: True))
    assert at(bench).deaths == 1
    bench.extract()
    assert (at(bench).next, at(bench).deaths) == (1, 0)


def test_files_of_an_hour_end_before_it() -> None:
    bench = HourlyBench(settings=HOURLY)
    bench.kafka.chunk_records = 10
    bench.at(0, 5, 30, 65)
    bench.at(0, 70, schema=99)
    bench.at(0, 130)
    bench.extract()
    assert ([w.until for w in at(bench).windows], stop_of(bench).first) == ([2, 3], 3)
    AVRO.fix(bench)
    propose_resume(bench.store, TOPIC).apply()
    bench.extract()
    assert [w.until for w in at(bench).windows] == [2, 3, 4, 5]
