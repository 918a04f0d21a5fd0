"""Which small files of a job are merged."""

from __future__ import annotations

import pytest

from kbq_assets.core.loading.merging import MERGED_BYTES, SMALL_BYTES, MergedFile, plan_merges
from kbq_assets.core.loading.table_state import (
    JobInFlight,
    QuarantinedFile,
    TableState,
    begin_job,
    isolate,
    retry,
)
from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol.commits import StagedFile


def file(offset: int, size: int = 10, schema_id: int = 1, fingerprint: str = "f") -> StagedFile:
    path = f"staging/1-a/t.0.d.a.{schema_id}.{offset}.avro"
    return StagedFile(path, offset, offset + 1, 1, size, size, "", fingerprint)


@pytest.mark.parametrize(
    ("files", "least", "groups"),
    [
        ([file(i) for i in range(3)], 3, ((0, 1, 2),)),
        ([file(i) for i in range(3)], 4, ()),
        ([file(i) for i in range(3)], 0, ()),  # off
        ([file(0), file(1, SMALL_BYTES), file(2)], 2, ((0, 2),)),  # large enough
        ([file(0), file(1, fingerprint="g"), file(2), file(3, fingerprint="g")], 2, ((0, 2), (1, 3))),
        ([file(0), file(1, schema_id=2), file(2)], 2, ((0, 2),)),  # a lake's rows have their file's schema id
        ([file(i, fingerprint=str(i)) for i in range(3)], 2, ()),
    ],
)
def test_small_files_of_one_schema_become_one(
    files: list[StagedFile], least: int, groups: tuple[tuple[int, ...], ...]
) -> None:
    assert plan_merges(files, least) == groups


def test_a_merged_file_has_a_bound() -> None:
    files = [file(i, SMALL_BYTES - 1) for i in range(100)]
    groups = plan_merges(files, 2)
    assert [place for group in groups for place in group] == list(range(100))
    assert max(sum(files[i].bytes for i in group) for group in groups) <= MERGED_BYTES
    assert len(groups) == 4


FILES = tuple(file(i) for i in range(4))
MERGED = (MergedFile(file(0, 30), (0, 2)),)


def test_a_job_reads_copies_in_the_place_of_their_parts() -> None:
    job = JobInFlight("id", "p", "l", FILES, merged=MERGED)
    assert job.sources == (MERGED[0].file, FILES[1], FILES[3])
    assert JobInFlight("id", "p", "l", FILES).sources == FILES


def test_a_job_keeps_its_copies_until_files_leave_it() -> None:
    state = begin_job(TableState("u"), FILES, "p", "l", merged=MERGED)
    assert state.in_flight and state.in_flight.merged == MERGED
    again = retry(state)
    assert again.in_flight and again.in_flight.merged == MERGED
    left = isolate(state, [QuarantinedFile(FILES[2], "bad")])
    assert left.in_flight and left.in_flight.sources == (FILES[0], FILES[1], FILES[3])


def test_an_older_release_refuses_a_job_that_reads_copies() -> None:
    """It would take the job for another's, and load the files again."""
    state = begin_job(TableState("u"), FILES, "p", "l", merged=MERGED)
    assert state.stored_format == codec.MERGED
    assert begin_job(TableState("u"), FILES, "p", "l").stored_format == codec.FORMAT
    assert codec.loads(TableState, codec.dumps(state), "x") == state
