"""Archives of lists are written once, and read in order."""

from __future__ import annotations

import dataclasses

import pytest

from kbq_assets.core.errors import CorruptState, MissingState
from kbq_assets.core.ordering.table_order import AuditChunk, AuditEntry
from kbq_assets.pipelines.protocol.archives import archived_entries, read_archive, write_archive
from kbq_assets_tests.fakes.memory_store import FaultyMemoryStore

CHUNK = AuditChunk((AuditEntry(1, "hold", 1), AuditEntry(2, "release", 1)))


def test_a_chunk_that_was_written_stays_as_it_is() -> None:
    store = FaultyMemoryStore()
    write_archive(store, "tables/@audit/d.t/0.json", CHUNK)
    write_archive(store, "tables/@audit/d.t/0.json", dataclasses.replace(CHUNK, entries=()))
    assert read_archive(store, AuditChunk, "tables/@audit/d.t/0.json") == CHUNK


def test_a_chunk_that_is_missing_or_damaged_is_never_taken_for_empty() -> None:
    store = FaultyMemoryStore()
    with pytest.raises(MissingState, match=r"a/0\.json is missing") as error:
        read_archive(store, AuditChunk, "a/0.json")
    assert error.value.next_step
    store.create("a/0.json", b"{")
    with pytest.raises(CorruptState):
        read_archive(store, AuditChunk, "a/0.json")


@pytest.mark.parametrize(
    ("count", "read", "entries"),
    [(0, [], []), (3, [0], [0, 1, 2]), (4, [0, 3], [0, 1, 2, 3, 4, 5]), (6, [0, 3], [0, 1, 2, 3, 4, 5])],
    ids=["none", "one chunk", "a part of the next", "two chunks"],
)
def test_chunks_are_read_by_the_number_of_their_first_entry(
    count: int, read: list[int], entries: list[int]
) -> None:
    asked = list[int]()

    def chunk(first: int) -> list[int]:
        asked.append(first)
        return [first, first + 1, first + 2]

    assert archived_entries(count, chunk) == entries
    assert asked == read


def test_an_empty_chunk_ends_the_reading() -> None:
    assert archived_entries(5, lambda first: [7] if first == 0 else []) == [7]
