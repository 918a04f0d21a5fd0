"""Tasks search and rewrite the files of a backup if they are large."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from kbq_assets.adapters.local_store import LocalObjectStore
from kbq_assets.core.erasure.selection import PersonRecords
from kbq_assets.core.errors import Refused
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.pipelines.backup.clean import clean_backups
from kbq_assets.pipelines.backup.verify import verify_topic
from kbq_assets.pipelines.erasure import backup_files
from kbq_assets.pipelines.erasure.erasures import Erasures
from kbq_assets.ports.backup_copies import CopyTask, OpenCopies, RunCopies, SearchedCopy
from kbq_assets.worker.erased_records import CopyOnWorker
from kbq_assets_tests.fakes.platform import GOOD, SOURCES, TOPIC, FakePlatform

ANNA = PersonRecords(frozenset({b"anna"}))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePlatform:
    """A backup in a folder: five files, two with a record of Anna, and all too large to be copied in this process."""
    monkeypatch.setattr(backup_files, "IN_PROCESS_BYTES", 1)
    made = FakePlatform(
        tmp_path,
        sources=SOURCES.strip() + " backup=true\n",
        partitions=1,
        environ={"KBQ_WINDOW_RECORDS": "2"},
    )
    made.kafka.chunk_records = 2
    made.store = LocalObjectStore(tmp_path / "staging")  # type: ignore[assignment]
    for number in range(10):
        key = b"anna" if number in (3, 8) else b"bert"
        made.kafka.produce(TopicPartition(TOPIC, 0), GOOD, key=key)
    made.reopened().extractor.extract()
    return made


def shipped(
    world: FakePlatform, ran: list[CopyTask], spoil: Callable[[Any], Any] = lambda found: found
) -> OpenCopies:
    """Tasks as Spark runs them, without Spark: what they get and return is pickled."""

    @contextmanager
    def opened() -> Iterator[RunCopies]:
        on_worker = pickle.loads(pickle.dumps(CopyOnWorker.of(world.settings)))

        def run(tasks: Sequence[CopyTask]) -> list[SearchedCopy]:
            ran.extend(tasks)
            return [spoil(pickle.loads(pickle.dumps(on_worker(task)))) for task in tasks]

        yield run

    return opened


def erased(
    world: FakePlatform, open_copies: Callable[[], AbstractContextManager[RunCopies]] | None
) -> Erasures:
    erasures = world.reopened().erasures
    if open_copies is not None:
        erasures = dataclasses.replace(erasures, open_copies=open_copies)
    erasures.propose(TOPIC, ANNA)[1].apply()
    assert erasures.verify(1) == ()
    area = erasures.live.backup_area("regular")
    found = verify_topic(area, TOPIC)
    assert (found.records, found.damages) == (8, ())
    assert erasures.find(1).files == 4  # two of the backup, and two that no table has loaded
    return erasures


def test_tasks_search_and_write_the_files_that_have_such_records(world: FakePlatform) -> None:
    ran: list[CopyTask] = []
    erased(world, shipped(world, ran))
    assert {task.file.window for task in ran} == {2, 8}
    assert any(task.attempt for task in ran) and not all(task.attempt for task in ran)


def test_a_file_that_a_task_cannot_read_stops_the_erasure_by_name(world: FakePlatform) -> None:
    ran: list[CopyTask] = []

    def unreadable(result: SearchedCopy) -> SearchedCopy:
        return SearchedCopy(result.task, error="it is damaged") if result.task.attempt else result

    with pytest.raises(Refused, match="it is damaged"):
        erased(world, shipped(world, ran, unreadable))
    erased_after = dataclasses.replace(world.reopened().erasures, open_copies=shipped(world, ran))
    assert erased_after.resume(1).phase == "done"


def test_a_clean_up_before_the_swap_takes_nothing_that_the_erasure_wrote(world: FakePlatform) -> None:
    ran: list[CopyTask] = []
    written: set[str] = set()
    area = world.reopened().erasures.live.backup_area("regular")

    def cleaned(result: SearchedCopy) -> SearchedCopy:
        written.update([result.new.path] if result.new else [])
        clean_backups(area, 0, replaced_ms=0)
        return result

    erased(world, shipped(world, ran, cleaned))
    assert len(written) == 2
    assert {path for path in written if any(area.list(path))} == written


@pytest.mark.slow
def test_spark_runs_the_tasks(world: FakePlatform) -> None:
    erased(world, None)


def test_no_secret_goes_to_a_worker(world: FakePlatform) -> None:
    settings = dataclasses.replace(
        world.settings, kafka=dataclasses.replace(world.settings.kafka, options={"sasl.password": "hunter2"})
    )
    assert b"hunter2" in pickle.dumps(settings)
    assert b"hunter2" not in pickle.dumps(CopyOnWorker.of(settings))
