"""A staged file that differs from the commit parks its table before a job reads it (PROTOCOL L11)."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable

import pytest

from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.protocol.names import table_state_path
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.pipelines.operate import commands as operate
from kbq_assets.pipelines.protocol import state
from kbq_assets.ports.object_store import StoredObject
from kbq_assets.ports.warehouse import JobError
from kbq_assets_tests.fakes.faults import Call, Crash, Outcome
from kbq_assets_tests.fakes.script import Script
from kbq_assets_tests.fakes.warehouse import FakeWarehouse
from kbq_assets_tests.pipelines.bench import A, B, Bench


def staged() -> Bench:
    """Two files of A (offsets 0 and 1, 3), one of B (2)."""
    bench = Bench()
    bench.produce(1, 1, 3)
    bench.extract()
    bench.produce(1)
    bench.extract()
    return bench


def path_of(bench: Bench, nth: int = 0) -> str:
    return [file for file in bench.commit().files if file.table == A][nth].path


def replace(bench: Bench, path: str, change: Callable[[bytes], bytes]) -> StoredObject:
    """Change an object behind KBQ's back; returns the old one."""
    old = bench.store.objects[path]
    bench.store.objects[path] = dataclasses.replace(
        old, data=change(old.data), generation=old.generation + 1000
    )
    return old


def flipped(place: int, data: bytes) -> bytes:
    place %= len(data)
    return data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]


def table(bench: Bench) -> TableState:
    return state.read(bench.store, TableState, table_state_path(A)).value


def parked(bench: Bench) -> str:
    found = table(bench).parked
    return f"{found.reason}: {found.error}" if found else ""


def test_every_flipped_bit_and_truncation_parks_before_a_row_is_visible() -> None:
    bench = staged()
    path, size = path_of(bench), len(bench.store.get(path_of(bench)).data)
    for number, place in enumerate(range(0, size, 37)):
        change = (lambda data, p=place: flipped(p, data)) if number % 2 else (lambda data, p=place: data[:p])
        old = replace(bench, path, change)
        bench.load()
        assert parked(bench).startswith(f"damaged_files: 1 staged file is damaged: {path} has ")
        assert bench.offsets(A) == []
        bench.store.objects[path] = old
        operate.propose_resume_table(bench.store, A).apply()
    bench.load()
    assert (sorted(bench.offsets(A)), bench.offsets(B)) == ([0, 1, 3], [2])
    assert [job.load for job in bench.warehouse.jobs.values() if job.load and job.load.table == A][1:] == []


def test_a_file_that_is_gone_parks_before_a_job_reads_the_others() -> None:
    bench = staged()
    bench.store.delete(path_of(bench, 1))
    bench.load()
    assert parked(bench) == f"missing_files: 1 staged file is gone: {path_of(bench, 1)}"
    assert bench.offsets(A) == []
    assert table(bench).in_flight is None


def test_the_files_of_many_folders_are_compared_by_one_listing() -> None:
    bench = Bench(TopicSettings.of(dataset="d", table="A"), partitions=12)
    for partition in range(12):
        bench.produce(1, partition=partition)
    bench.extract()
    calls: list[Call] = []

    def count(call: Call) -> Outcome:
        calls.append(call)
        return Outcome.OK

    bench.faults = count
    bench.load()
    assert len({file.rpartition("/")[0] for file in bench.paths("staging/")}) == 0
    assert len(bench.offsets(A)) == 12
    assert [call.target for call in calls if call.operation == "checksums"] == ["staging/"]


def test_an_older_job_of_the_same_id_that_arrives_late_is_recorded_and_not_doubled() -> None:
    """The file was whole when the job was sent, and differs when the next run submits it again."""
    bench = staged()
    bench.faults = Script("insert_job", outcome=Outcome.CRASH_LATE)
    with contextlib.suppress(Crash):
        bench.load()
    bench.faults = lambda call: Outcome.OK
    replace(bench, path_of(bench), lambda data: data + b"\0")
    bench.load()
    assert parked(bench).startswith("damaged_files")
    while bench.warehouse.late:
        assert bench.warehouse.deliver_late() is not None, "the id is burned"
    assert bench.offsets(A) == []


def test_a_file_damaged_after_the_listing_never_goes_to_quarantine() -> None:
    """The warehouse refuses the job; the files are compared again before any is blamed (L5)."""
    bench = staged()
    path = path_of(bench)

    def damage(job: object) -> JobError | None:
        if path in getattr(job, "source_uris", ("",))[0]:
            replace(bench, path, lambda data: data[:-1])
            return JobError("invalid", "it is cut short", transient=False)
        return None

    bench.warehouse.job_errors = damage
    bench.load()
    assert parked(bench).startswith("damaged_files")
    assert table(bench).quarantined == ()


def test_damage_that_only_the_warehouse_reads_blames_no_file() -> None:
    bench = staged()

    class ReadsOtherBytes(FakeWarehouse):
        def probe(self, job: object) -> JobError | None:
            return JobError("damaged", "other bytes", transient=False)

    bench.warehouse.__class__ = ReadsOtherBytes
    bench.warehouse.job_errors = lambda job: JobError("damaged", "other bytes", transient=False)
    reports = bench.load().tables
    assert [r.state for r in reports if r.table == A] == ["failed"]
    assert table(bench).quarantined == ()
    assert bench.offsets(A) == []


def test_a_copy_of_a_damaged_file_is_not_made() -> None:
    """E11 copies blocks under a new checksum, which would hide the damage."""
    bench = Bench(TopicSettings.of(dataset="d", table="A"))
    bench.produce(1)
    bench.extract()
    bench.load()
    bench.produce(4)
    bench.extract()
    bench.settings = bench.settings.with_options(on_incompatible="variant_column")
    path = path_of(bench)
    replace(bench, path, lambda data: flipped(-20, data))
    bench.load(topics=lambda topics: dict.fromkeys(topics, bench.settings))
    assert parked(bench).startswith(f"damaged_files: 1 staged file is damaged: {path}")
    assert bench.paths("staging/") == [path]


@pytest.mark.parametrize("crc32c", ["", None])
def test_a_commit_without_checksums_still_loads(crc32c: str | None) -> None:
    """Old commits, and stores that keep none."""
    bench = staged()
    if crc32c is not None:
        path = "commits/shop.events.json"
        data = bench.store.objects[path].data
        assert b'"crc32c"' in data
        current = bench.commit()
        windows = {
            n: dataclasses.replace(
                p,
                windows=tuple(
                    dataclasses.replace(
                        w, files=tuple(dataclasses.replace(f, crc32c=crc32c) for f in w.files)
                    )
                    for w in p.windows
                ),
            )
            for n, p in current.partitions.items()
        }
        found = state.read(bench.store, type(current), path)
        state.swap(bench.store, found, dataclasses.replace(current, partitions=windows))
    bench.load()
    assert sorted(bench.offsets(A)) == [0, 1, 3]
