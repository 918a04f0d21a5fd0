"""Jobs that read a few large copies of many small files: each row once, whatever happens to the copies (PROTOCOL
L15)."""

from __future__ import annotations

import dataclasses

import pytest

from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.protocol.names import STAGING, table_state_path
from kbq_assets.pipelines.loading.merging import merge
from kbq_assets.pipelines.loading.restaging import is_copy
from kbq_assets.pipelines.operate.clean import clean
from kbq_assets.pipelines.protocol import state
from kbq_assets.ports.warehouse import JobError
from kbq_assets.wire.files.checksum import checksum_of
from kbq_assets.wire.files.join_blocks import beginning, blocks, header_in
from kbq_assets.wire.files.read_container import Header
from kbq_assets_tests.fakes.faults import Crash, Outcome
from kbq_assets_tests.fakes.script import Script
from kbq_assets_tests.fixtures.work import calls_of
from kbq_assets_tests.pipelines.bench import A, Bench
from kbq_assets_tests.pipelines.loading.test_verification import flipped, replace


def staged(files: int = 4) -> Bench:
    """Files of one row each."""
    bench = Bench(auto_run=False)
    for _ in range(files):
        bench.produce(1)
        bench.extract()
    return bench


def load(bench: Bench, wait_seconds: float = 0.0) -> None:
    bench.load(wait_seconds, merge_files=3)


def state_of(bench: Bench) -> TableState:
    return state.read(bench.store, TableState, table_state_path(A)).value


def copies(bench: Bench) -> list[str]:
    return [path for path in bench.paths(STAGING) if is_copy(path)]


def pending_job(bench: Bench) -> str:
    [job_id] = bench.warehouse.pending
    return job_id


def test_a_job_reads_one_file_and_the_commit_keeps_the_others() -> None:
    bench = staged()
    load(bench)
    job = state_of(bench).in_flight
    assert job is not None
    assert (len(job.files), len(job.sources), job.rows) == (4, 1, 4)
    assert copies(bench) == [job.sources[0].path]
    assert len(list(bench.commit().files)) == 4
    assert clean(bench.store).orphans == 0  # the copy is in use
    bench.warehouse.run_pending(pending_job(bench))
    load(bench)
    assert bench.offsets(A) == [0, 1, 2, 3]
    assert bench.paths(STAGING) == []
    assert state_of(bench).mismatches == ()


def test_few_files_are_read_as_they_are() -> None:
    bench = staged(2)
    load(bench)
    assert copies(bench) == []


@pytest.mark.parametrize("lost", ["copy", "file"])
def test_a_copy_that_is_lost_before_its_job_is_made_again(lost: str) -> None:
    """A lost file is in the copy, which was made while it was there."""
    bench = staged()
    bench.faults = Script("insert_job", outcome=Outcome.CRASH_BEFORE)
    with pytest.raises(Crash):
        load(bench)
    bench.faults = Script("")
    [copy] = copies(bench)
    del bench.store.objects[copy if lost == "copy" else next(iter(bench.commit().files)).path]
    bench.warehouse.auto_run = True
    load(bench, 100.0)
    assert (sorted(bench.offsets(A)), state_of(bench).parked) == ([0, 1, 2, 3], None)
    clean(bench.store)
    assert bench.paths(STAGING) == []


POINTS = (
    ("close", "staging/", 1),
    ("swap", "tables/d.A", 1),
    ("swap", "tables/d.A", 2),
    ("insert_job", "", 1),
    ("swap", "tables/d.A", 3),
    ("delete", "staging/", 1),
)


@pytest.mark.parametrize("outcome", [Outcome.CRASH_BEFORE, Outcome.CRASH_AFTER, Outcome.CRASH_LATE])
@pytest.mark.parametrize("point", POINTS, ids=lambda point: "-".join(map(str, point)))
def test_each_row_is_loaded_once_whatever_dies(point: tuple[str, str, int], outcome: Outcome) -> None:
    bench = staged()
    bench.warehouse.auto_run = True
    operation, target, nth = point
    bench.faults = Script(operation, target, outcome, nth)
    with pytest.raises(Crash):
        load(bench, 100.0)
    bench.faults = Script("")
    for _ in range(3):
        clean(bench.store)
        load(bench, 100.0)
        for fake in (bench.store, bench.warehouse):
            while fake.late:
                fake.deliver_late()
    assert (sorted(bench.offsets(A)), bench.warehouse.duplicates()) == ([0, 1, 2, 3], {})
    bench.extract()
    clean(bench.store)
    assert bench.paths(STAGING) == []


def test_a_bad_file_is_found_among_the_originals() -> None:
    bench = staged(5)
    files = list(bench.commit().files)
    bench.warehouse.auto_run = True
    bench.warehouse.bad_paths.add(files[1].path)
    bench.warehouse.job_errors = lambda job: (
        JobError("invalid", "a row is bad", transient=False)
        if any(is_copy(bench.store.path_of(uri)) for uri in job.source_uris)
        else None
    )
    load(bench, 100.0)
    assert sorted(bench.offsets(A)) == [0, 2, 3, 4]
    assert [bad.file.path for bad in state_of(bench).quarantined] == [files[1].path]


def test_a_damaged_file_is_not_copied() -> None:
    bench = staged()
    replace(bench, list(bench.commit().files)[2].path, lambda data: flipped(-20, data))
    load(bench)
    found = state_of(bench).parked
    assert found is not None
    assert found.reason == "damaged_files"


def test_after_a_transient_error_the_copy_serves_again() -> None:
    bench = staged()
    load(bench)
    [copy] = copies(bench)
    bench.warehouse.run_pending(pending_job(bench), JobError("backendError", "try again", transient=True))
    load(bench)
    again = state_of(bench).in_flight
    assert again is not None
    assert [file.path for file in again.sources] == [copy]


def test_files_with_other_headers_are_not_mixed() -> None:
    bench = staged(6)
    files = list(bench.commit().files)
    for number in (2, 3):
        old = bench.store.objects[files[number].path].data
        header = header_in(old)
        other = Header({**header.entries, "kbq.note": b"x"}, header.sync_marker)
        data = beginning(other) + b"".join(blocks(old, header.sync_marker))
        replace(bench, files[number].path, lambda _, data=data: data)  # type: ignore[misc]
        size, crc32c = checksum_of(data)
        files[number] = dataclasses.replace(files[number], bytes=size, crc32c=crc32c)
    found = merge(bench.store, files, 3, lambda: "c")
    assert [each.parts for each in found] == [(0, 1), (2, 3), (4, 5)]
    assert [each.file.rows for each in found] == [2, 2, 2]


def test_twice_as_many_files_are_twice_the_work() -> None:
    def work(count: int) -> int:
        bench = staged(count)
        files = list(bench.commit().files)
        return calls_of(lambda: merge(bench.store, files, 2, lambda: "c"))

    assert work(24) < 2.3 * work(12)
