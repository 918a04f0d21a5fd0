"""Done files are hints: they are written if possible, and invalid names are skipped."""

from __future__ import annotations

import pytest

from kbq_assets.core.protocol.done_files import DoneFileName
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.pipelines.protocol.done_files import has_done_files, list_done_files, write_done_files
from kbq_assets_tests.fakes.faults import Outcome
from kbq_assets_tests.fakes.memory_store import FaultyMemoryStore


def name(first: int, *, topic: str = "t", partition: int = 0, table: str = "t") -> DoneFileName:
    return DoneFileName(TopicPartition(topic, partition), TableReference("d", table), 1, first, first + 9)


def test_what_is_written_is_listed_and_other_objects_are_skipped() -> None:
    store = FaultyMemoryStore()
    names = [name(0), name(10), name(0, partition=1)]
    assert write_done_files(store, names) == {}
    assert write_done_files(store, names) == {}
    store.create("done/notes.txt", b"")
    assert set(list_done_files(store)) == set(names)


@pytest.mark.parametrize(
    ("listed", "found"),
    [
        ([], False),
        ([name(0).format()], True),
        ([name(0, topic="t.x").format()], False),
        ([name(0, topic="tt").format()], False),
        (["done/t.notes"], False),
        (["done/t.notes", name(0).format()], True),
    ],
    ids=[
        "none",
        "its own",
        "a longer name",
        "a name that begins alike",
        "a stranger",
        "a stranger and its own",
    ],
)
def test_a_topic_waits_for_a_bootstrap_by_its_own_done_files_alone(listed: list[str], found: bool) -> None:
    store = FaultyMemoryStore()
    for path in listed:
        store.create(path, b"")
    assert has_done_files(store, "t", frozenset({"t", "t.x", "tt"})) == found


def test_a_done_file_that_fails_holds_back_no_other(caplog: pytest.LogCaptureFixture) -> None:
    store = FaultyMemoryStore()
    bad = name(10)
    store.faults = lambda call: Outcome.UNAVAILABLE if call.target == bad.format() else Outcome.OK
    failed = write_done_files(store.view("p"), [name(0), bad, name(0, partition=1)])
    assert list(failed) == [bad.topic_partition]
    assert sorted(store.objects) == sorted(n.format() for n in (name(0), name(0, partition=1)))
    assert "done files not written yet: 1 of 3; t[0]" in caplog.text


def test_a_name_that_is_too_long_is_logged_and_skipped(caplog: pytest.LogCaptureFixture) -> None:
    store = FaultyMemoryStore()
    long = name(0, topic="t" * 249, table="x" * 200)
    too_long = DoneFileName(long.topic_partition, TableReference("d" * 200, "x" * 200), 1, 0, 9)
    failed = write_done_files(store, [too_long, name(0)])
    assert failed == {}
    assert name(0).format() in store.objects
