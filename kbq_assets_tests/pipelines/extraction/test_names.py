"""A topic or table whose files cannot be named stops alone, before any of its data is committed."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext

import pytest

from kbq_assets.core.errors import InvalidName
from kbq_assets.core.protocol.done_files import check_fits
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.topics.source_list import SourceEntry
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.pipelines.protocol.done_files import list_done_files, write_done_files
from kbq_assets_tests.fakes.memory_store import FaultyMemoryStore
from kbq_assets_tests.pipelines.bench import TP, Bench, value
from kbq_assets_tests.strategies import staged_file

ALL = (SourceEntry("*", TopicSettings.of(dataset="d")),)


def bench_with(topic: str) -> Bench:
    """The usual topic and another one, a record each."""
    bench = Bench()
    bench.kafka.create_topic(topic, 1)
    for tp in (TP, TopicPartition(topic, 0)):
        bench.kafka.produce(tp, value(1))
    return bench


@pytest.mark.parametrize("topic", ["_topics", "t" * 100, "t" * 118, "t" * 200])
def test_a_topic_whose_files_cannot_be_named_stops_no_other(topic: str) -> None:
    bench = bench_with(topic)
    for _ in range(2):
        report = bench.extract(sources=ALL)
        assert [(s.topic_partition.topic, s.reason) for s in report.stops] == [(topic, "unfit_name")]
        assert report.failures == {}
    assert bench.commit().partitions[0].next == 1
    assert [name.topic_partition for name in list_done_files(bench.store)] == [TP]


def test_a_shorter_table_lets_a_long_topic_continue() -> None:
    topic = "t" * 118
    bench = bench_with(topic)
    assert len(bench.extract(sources=ALL).stops) == 1
    short = (SourceEntry(topic, TopicSettings.of(dataset="d", table="short")), *ALL)
    assert bench.extract(sources=short).stops == ()
    bench.load()
    assert bench.reconcile().accounted
    assert bench.offsets(TableReference("d", "short")) == [0]


def test_a_record_name_that_makes_names_too_long_stops_its_partition_alone() -> None:
    topic = "t" * 36
    bench = bench_with(topic)
    name = "R" * 200
    bench.registry.schemas[30] = (
        f'{{"type":"record","name":"{name}","fields":[{{"name":"x","type":"long"}}]}}'
    )
    bench.kafka.produce(TopicPartition(topic, 0), b"\x00\x00\x00\x00\x1e\x02")
    sources = (SourceEntry("*", TopicSettings.of(dataset="d", route="record_name")),)
    for _ in range(2):
        report = bench.extract(sources=sources)
        assert [(s.topic_partition.topic, s.reason) for s in report.stops] == [(topic, "unstageable_schema")]
        assert "can grow beyond 255 bytes" in report.stops[0].message
    assert bench.commit().partitions[0].next == 1


@pytest.mark.parametrize(("length", "fits"), [(184, True), (185, False)])
def test_a_name_fits_if_it_still_does_at_the_largest_offset(length: int, fits: bool) -> None:
    with nullcontext() if fits else pytest.raises(InvalidName, match="can grow beyond 255 bytes"):
        check_fits("t" * length, TableReference("d", "t"))


def test_a_done_file_that_cannot_be_named_stops_no_run(caplog: pytest.LogCaptureFixture) -> None:
    store, good = FaultyMemoryStore(), staged_file(0, 5).done
    unfit = dataclasses.replace(good, topic_partition=TopicPartition("t" * 249, 0))
    write_done_files(store, [unfit, good])
    assert list(list_done_files(store)) == [good]
    assert "no done file" in caplog.text
