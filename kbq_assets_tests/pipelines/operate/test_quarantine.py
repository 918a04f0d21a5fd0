"""Files in quarantine come back or are deleted, by the names of their copies, and bad records are found by position."""

from __future__ import annotations

import pytest

from kbq_assets.core.errors import NotFound, Refused
from kbq_assets.core.loading.table_state import QuarantinedFile, TableState, begin_job
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.names import TableReference, quarantine_path, table_state_path
from kbq_assets.pipelines.operate.bad_records import list_quarantined
from kbq_assets.pipelines.operate.quarantine import find_quarantined, propose_drop, propose_retry
from kbq_assets.pipelines.protocol import state
from kbq_assets_tests.fakes.memory_store import FaultyMemoryStore
from kbq_assets_tests.strategies import staged_file

T, U = TableReference("d", "t"), TableReference("d", "u")
A, B = staged_file(0, 5), staged_file(5, 9)
OTHER = staged_file(0, 3, topic="other", table="d.u")
DROPPED = staged_file(9, 12)


@pytest.fixture
def store() -> FaultyMemoryStore:
    made = FaultyMemoryStore()
    state.create_table_states(made, {T: "1", U: "2"})
    put(
        made,
        T,
        QuarantinedFile(A, "bad"),
        QuarantinedFile(B, "bad"),
        QuarantinedFile(DROPPED, "bad", dropped=True),
    )
    put(made, U, QuarantinedFile(OTHER, "bad"))
    for file in (A, B, OTHER):
        made.create(quarantine_path(file.path), b"x")
    return made


def put(store: FaultyMemoryStore, table: TableReference, *bad: QuarantinedFile) -> None:
    state.change(
        store,
        TableState,
        table_state_path(table),
        lambda now: TableState(now.uuid, quarantined=bad),
    )


def records(store: FaultyMemoryStore, table: TableReference) -> list[tuple[StagedFile, bool, bool]]:
    found = state.read(store, TableState, table_state_path(table)).value
    return [(bad.file, bad.retry, bad.dropped) for bad in found.quarantined]


@pytest.mark.parametrize(
    ("topic", "files"), [(None, [A, B, DROPPED, OTHER]), ("other", [OTHER]), ("nobody", [])]
)
def test_files_are_listed_by_table_of_one_topic_or_all(
    store: FaultyMemoryStore, topic: str | None, files: list[StagedFile]
) -> None:
    assert [found.bad.file for found in list_quarantined(store, topic)] == files


@pytest.mark.parametrize(
    ("paths", "table", "files"),
    [
        ([], None, [A, B, OTHER]),
        ([], T, [A, B]),
        ([quarantine_path(B.path)], None, [B]),
        ([B.path, quarantine_path(A.path)], None, [B, A]),
        ([OTHER.path], U, [OTHER]),
    ],
    ids=["all but dropped ones", "of a table", "by the copy", "by either name", "of its own table"],
)
def test_files_are_found_by_the_name_of_their_copy_or_their_own(
    store: FaultyMemoryStore, paths: list[str], table: TableReference | None, files: list[StagedFile]
) -> None:
    assert [found.bad.file for found in find_quarantined(store, paths, table)] == files


@pytest.mark.parametrize(
    ("path", "table"),
    [("x", None), (DROPPED.path, None), (OTHER.path, T), ("quarantine/1-a/x.avro", None)],
    ids=["no path", "dropped", "of another table", "unknown"],
)
def test_a_file_that_is_not_there_is_named(
    store: FaultyMemoryStore, path: str, table: TableReference | None
) -> None:
    with pytest.raises(NotFound, match="is not in quarantine") as error:
        find_quarantined(store, [path], table)
    assert error.value.message.startswith(path)
    assert error.value.next_step == "kbq quarantine list"


def test_a_retry_says_what_it_does_and_then_does_it(store: FaultyMemoryStore) -> None:
    proposal = propose_retry(store, find_quarantined(store, [A.path, OTHER.path]))
    assert proposal.lines == (
        f"{quarantine_path(A.path)}: 5 rows: is loaded by the next job of d.t",
        f"{quarantine_path(OTHER.path)}: 3 rows: is loaded by the next job of d.u",
    )
    assert records(store, T)[0] == (A, False, False)
    proposal.apply()
    assert records(store, T) == [(A, True, False), (B, False, False), (DROPPED, False, True)]
    assert records(store, U) == [(OTHER, True, False)]
    assert quarantine_path(A.path) in store.objects


def test_a_file_whose_copy_is_gone_cannot_come_back(store: FaultyMemoryStore) -> None:
    found = find_quarantined(store, [A.path])
    store.delete(quarantine_path(A.path))
    with pytest.raises(Refused, match="is gone") as error:
        propose_retry(store, found)
    assert "kbq quarantine drop" in error.value.next_step


def test_a_drop_gives_the_rows_up_and_deletes_the_copies(store: FaultyMemoryStore) -> None:
    proposal = propose_drop(store, find_quarantined(store, [A.path]))
    assert proposal.lines == (f"{quarantine_path(A.path)}: 5 rows: is given up, for d.t",)
    proposal.apply()
    assert records(store, T) == [(A, False, True), (B, False, False), (DROPPED, False, True)]
    assert quarantine_path(A.path) not in store.objects
    assert quarantine_path(B.path) in store.objects


def test_the_copy_of_a_file_that_a_job_loads_stays(store: FaultyMemoryStore) -> None:
    proposal = propose_drop(store, find_quarantined(store, [A.path]))
    propose_retry(store, find_quarantined(store, [A.path])).apply()
    state.change(store, TableState, table_state_path(T), lambda now: begin_job(now, (A,), "p", "l"))
    proposal.apply()
    assert records(store, T)[0] == (A, True, False)
    assert quarantine_path(A.path) in store.objects


@pytest.mark.parametrize("propose", [propose_retry, propose_drop])
def test_nothing_in_quarantine_is_nothing_to_do(store: FaultyMemoryStore, propose: object) -> None:
    assert callable(propose)
    with pytest.raises(Refused, match="there are no such files in quarantine"):
        propose(store, [])
