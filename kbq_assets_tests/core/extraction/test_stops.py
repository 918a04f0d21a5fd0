"""A stop names its topic, its cause and the commands that end it."""

from __future__ import annotations

import pytest

from kbq_assets.core.errors import CorruptState, KbqError, Unavailable
from kbq_assets.core.extraction.stops import (
    PartitionStop,
    commit_stop,
    entry_stops,
    gone_stops,
    refused_stop,
    stop_of,
)
from kbq_assets.core.protocol.commits import Stop
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.protocol.waits import StopReason
from kbq_assets.core.topics.options import ExtractionOptions
from kbq_assets.core.topics.source_list import EntryMistake, SourceEntry
from kbq_assets.core.topics.topic_settings import TopicSettings

SETTINGS = TopicSettings()
MISTAKE = EntryMistake("sources.txt: line 3: wndow_bytes is no option", "window_bytes")


def entry(pattern: str, mistake: EntryMistake | None = None) -> SourceEntry:
    return SourceEntry(pattern, SETTINGS, mistake)


def stopped(message: str) -> PartitionStop:
    return PartitionStop(TopicPartition("t", 3), "failed", message, ())


@pytest.mark.parametrize(
    ("message", "text", "cause"),
    [
        ("t[3] [5, 10): no route", "[5, 10): no route", "no route"),
        ("t[3] [5, 10): a\nb", "[5, 10): a\nb", "a\nb"),
        ("t[3] lost 7 records", "lost 7 records", "lost 7 records"),
        ("no route", "no route", "no route"),
        ("t[33] [5, 10): no route", "t[33] [5, 10): no route", "t[33] [5, 10): no route"),
    ],
    ids=["a range", "two lines", "no range", "no partition", "another partition"],
)
def test_partitions_that_stopped_for_the_same_have_one_cause(message: str, text: str, cause: str) -> None:
    assert (stopped(message).text, stopped(message).cause) == (text, cause)


@pytest.mark.parametrize(
    ("problem", "missing", "reason", "message", "command"),
    [
        (CorruptState("bad sum", next_step="restore it"), (), "commit_unreadable", "bad sum", "restore it"),
        (
            CorruptState("bad sum"),
            (),
            "commit_unreadable",
            "bad sum",
            "restore the commit object, then kbq extract",
        ),
        (
            None,
            (1, 2),
            "commit_missing",
            "the commit of t is registered but missing (shards [1, 2])",
            "restore commits/ from a backup or an earlier version",
        ),
        (
            CorruptState("bad sum"),
            (1,),
            "commit_unreadable",
            "bad sum",
            "restore the commit object, then kbq extract",
        ),
    ],
    ids=["with advice", "without advice", "missing", "both"],
)
def test_a_commit_that_cannot_be_read_stops_the_whole_topic(
    problem: KbqError | None, missing: tuple[int, ...], reason: str, message: str, command: str
) -> None:
    expected = PartitionStop(TopicPartition("t", -1), reason, message, (command,))
    assert commit_stop("t", problem, missing) == expected


def test_a_commit_that_is_there_stops_nothing() -> None:
    assert commit_stop("t", None, ()) is None


@pytest.mark.parametrize(
    ("entries", "topics", "names"),
    [
        ([entry("a")], ["a"], []),
        ([entry("a", MISTAKE)], ["a", "b"], ["a"]),
        ([entry("a*", MISTAKE)], ["ab", "aa", "b"], ["aa", "ab"]),
        ([entry("a*", MISTAKE)], ["b"], ["a*"]),
        ([entry("a", MISTAKE), entry("*")], ["a", "b"], ["a"]),
        ([entry("b", MISTAKE), entry("a", MISTAKE)], [], ["a", "b"]),
    ],
    ids=[
        "no mistake",
        "a topic",
        "each topic of a pattern",
        "a pattern of no topic",
        "another entry has no mistake",
        "no topics",
    ],
)
def test_a_mistake_in_an_entry_stops_the_topics_that_it_decides_about(
    entries: list[SourceEntry], topics: list[str], names: list[str]
) -> None:
    found = list(entry_stops(entries, topics))
    assert found == [
        PartitionStop(TopicPartition(name, -1), "wrong_entry", MISTAKE.message, ("window_bytes",))
        for name in names
    ]


@pytest.mark.parametrize(
    ("entries", "read", "described", "names"),
    [
        ([entry("a")], ["a"], ["a"], []),
        ([entry("a")], ["a"], [], ["a"]),
        ([entry("a*")], ["ab", "b"], [], ["ab"]),
        ([entry("a", MISTAKE)], ["a"], [], []),
        ([entry("a")], [], [], []),
    ],
    ids=["shown", "gone", "only what an entry matches", "the mistake comes first", "never read"],
)
def test_a_topic_that_was_read_and_is_gone_stops(
    entries: list[SourceEntry], read: list[str], described: list[str], names: list[str]
) -> None:
    found = list(gone_stops(entries, read, described))
    assert [(each.topic_partition, each.reason) for each in found] == [
        (TopicPartition(name, -1), StopReason.TOPIC_GONE) for name in names
    ]


@pytest.mark.parametrize(
    ("pattern", "command"), [("ab", "remove the entry of ab"), ("a*", "kbq resume --topic ab --gone")]
)
def test_whoever_deleted_a_topic_on_purpose_removes_its_entry_or_says_so(pattern: str, command: str) -> None:
    [found] = gone_stops([entry(pattern)], ["ab"], [])
    assert found.commands == ("create it or allow it again, then kbq extract", command)


@pytest.mark.parametrize(
    ("error", "command"),
    [
        (Unavailable("no answer", next_step="wait"), "wait"),
        (Unavailable("no answer"), "see the log of this run"),
    ],
)
def test_a_store_that_refuses_an_object_stops_its_topic(error: KbqError, command: str) -> None:
    expected = PartitionStop(TopicPartition("t", -1), "failed", "its commit: no answer", (command,))
    assert refused_stop("t", "its commit", error) == expected


@pytest.mark.parametrize(
    ("reason", "restart", "next_ms"),
    [
        (StopReason.UNKNOWN_SCHEMA, "auto", 1000 + 4 * 60_000),
        (StopReason.UNKNOWN_SCHEMA, "manual", 0),
        (StopReason.BAD_RECORD, "auto", 0),
    ],
    ids=["tried again", "the topic wants none", "a bad record stays bad"],
)
def test_a_recorded_stop_knows_its_next_try(reason: StopReason, restart: str, next_ms: int) -> None:
    settings = TopicSettings(extraction=ExtractionOptions(restart=restart))
    tp = TopicPartition("t", 3)
    found = stop_of(settings, Stop(reason, "no", 0, 5, tries=2, last_ms=1000), tp)
    assert (found.topic_partition, found.reason, found.message, found.tries) == (tp, reason, "no", 2)
    assert found.commands == (
        "kbq resume --topic t --partition 3",
        "kbq resume --topic t --partition 3 --as-errors",
    )
    assert found.next_try_ms == next_ms
