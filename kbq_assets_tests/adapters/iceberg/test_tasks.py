"""Tasks write the files of a large job, which is still either one snapshot or did not happen."""

from __future__ import annotations

import dataclasses
import io
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kbq_assets.adapters.iceberg import IcebergWarehouse
from kbq_assets.adapters.iceberg.tasks import write
from kbq_assets.core.errors import JobAlreadyExists, Unavailable
from kbq_assets.core.loading import task_sources
from kbq_assets.core.loading.tables import TableOptions, columns_of
from kbq_assets.core.loading.verification import DAMAGED
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.names import StagedFileName
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.ports.load_tasks import LoadsByTasks, WriteTask, WrittenFiles
from kbq_assets.ports.warehouse import KafkaRange, LoadJob
from kbq_assets.wire.arrow.staged import open_file_uri
from kbq_assets.wire.files.checksum import ChecksumReader
from kbq_assets_tests.adapters.iceberg.test_warehouse import files_in, opened, stored
from kbq_assets_tests.contracts.warehouse import SCHEMA, TABLE, avro_file, load_job, records

FILES, ROWS = 4, 5
Change = Callable[[list[WrittenFiles]], list[WrittenFiles]]


class Tasks:
    """Runs tasks as Spark does: tasks and outcomes are pickled. ``change`` is done to the outcomes."""

    def __init__(self, change: Change = lambda outcomes: outcomes) -> None:
        self.seen: list[WriteTask] = []
        self._change = change

    def __call__(self, tasks: Sequence[WriteTask]) -> list[WrittenFiles]:
        self.seen += tasks
        copies = pickle.loads(pickle.dumps(tasks))
        done = self._change([write(task, {}, open_file_uri) for task in copies])
        found: list[WrittenFiles] = pickle.loads(pickle.dumps(done))
        return found


@pytest.fixture(autouse=True)
def _a_task_per_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_sources.split_sources, "__defaults__", (1,))


@pytest.fixture
def lake(tmp_path: Path) -> IcebergWarehouse:
    found = opened(tmp_path / "lake")
    found.create_table(TABLE, columns_of(SCHEMA), TableOptions())
    return found


def job_of(folder: Path, number: int = 1) -> LoadJob:
    """A job of four files with five rows each, with the commit's entries."""
    files = {}
    for each in range(FILES):
        path = folder / f"{number}-{each}.avro"
        first = (number * FILES + each) * ROWS
        path.write_bytes(data := avro_file(records(range(first, first + ROWS))))
        name = StagedFileName(TopicPartition("t", 0), TABLE, each % 2 + 1, first, 0, "abc")
        files[path.as_uri()] = StagedFile(
            name.format(), first, first + ROWS, ROWS, len(data), 0, checksum(data), "f"
        )
    return dataclasses.replace(load_job(f"kbq-1a2b-{number}", *files), files=files)


def size_of(job: LoadJob) -> int:
    return sum(file.bytes for file in job.files.values())


def checksum(data: bytes) -> str:
    """As the commit lists it."""
    return ChecksumReader(io.BytesIO(data)).drain()[1]


def offsets(lake: IcebergWarehouse) -> list[int]:
    return sorted(lake.positions(TABLE, KafkaRange("t", 0, 0)))


def test_a_job_by_tasks_is_one_snapshot_with_all_rows(lake: IcebergWarehouse, tmp_path: Path) -> None:
    assert isinstance(lake, LoadsByTasks)
    tasks, job = Tasks(), job_of(tmp_path)
    lake.by_tasks(tasks, 1).insert_job(job)
    status = lake.get_job(job.job_id, "local", "local", TABLE)
    assert status is not None
    assert (status.output_rows, status.error, status.source_uris) == (FILES * ROWS, None, job.source_uris)
    assert offsets(lake) == list(range(FILES * ROWS, 2 * FILES * ROWS))
    assert len(stored(lake).snapshots()) == 1
    assert sorted(uri for task in tasks.seen for uri in task.job.source_uris) == sorted(job.source_uris)
    names = [Path(name).name for name in files_in(tmp_path)]
    assert len(names) == len({*names}) == FILES  # a task per file
    assert all(name.startswith("kbq-1a2b-1-") for name in names)
    schema_ids = stored(lake).scan().to_arrow()["_kbq_schema_id"].to_pylist()
    assert sorted(schema_ids) == [1] * 2 * ROWS + [2] * 2 * ROWS


def test_a_small_job_runs_here(lake: IcebergWarehouse, tmp_path: Path) -> None:
    tasks, job, other = Tasks(), job_of(tmp_path), job_of(tmp_path, 2)
    lake.by_tasks(tasks, size_of(job) + 1).insert_job(job)
    assert (tasks.seen, len(offsets(lake))) == ([], FILES * ROWS)
    lake.by_tasks(tasks, size_of(other)).insert_job(other)
    assert (len(tasks.seen), len(offsets(lake))) == (FILES, 2 * FILES * ROWS)


def test_a_task_needs_no_labels_and_no_schema(lake: IcebergWarehouse, tmp_path: Path) -> None:
    tasks = Tasks()
    lake.by_tasks(tasks, 1).insert_job(job_of(tmp_path))
    assert {(task.job.schema, len(task.job.labels), len(task.job.files)) for task in tasks.seen} == {
        ("", 0, 1)
    }


@pytest.mark.parametrize(
    ("data", "reason"), [(b"no Avro", DAMAGED), (None, "notFound"), (avro_file(records([99])), DAMAGED)]
)
def test_one_bad_file_fails_the_job_and_leaves_no_data_file(
    lake: IcebergWarehouse, tmp_path: Path, data: bytes | None, reason: str
) -> None:
    job = job_of(tmp_path)
    bad = tmp_path / "1-2.avro"
    bad.unlink() if data is None else bad.write_bytes(data)
    lake.by_tasks(Tasks(), 1).insert_job(job)
    status = lake.get_job(job.job_id, "local", "local", TABLE)
    assert status is not None
    assert status.error is not None
    assert (status.error.reason, status.error.transient, offsets(lake)) == (reason, False, [])
    assert files_in(tmp_path) == []


def first_is_lost(outcomes: list[WrittenFiles]) -> list[WrittenFiles]:
    """The first task did not reach the lake, and wrote nothing."""
    for file in outcomes[0].files:
        Path(file.file_path.removeprefix("file://")).unlink()  # type: ignore[attr-defined]
    return [WrittenFiles(error=Unavailable("no answer")), *outcomes[1:]]


def given_up(outcomes: list[WrittenFiles]) -> list[WrittenFiles]:
    raise Unavailable("a Spark task failed")


@pytest.mark.parametrize(("change", "left"), [(first_is_lost, 0), (given_up, FILES)])
def test_a_task_without_an_answer_leaves_the_id_free(
    lake: IcebergWarehouse, tmp_path: Path, change: Change, left: int
) -> None:
    job = job_of(tmp_path)
    with pytest.raises(Unavailable):
        lake.by_tasks(Tasks(change), 1).insert_job(job)
    assert lake.get_job(job.job_id, "local", "local", TABLE) is None
    assert len(files_in(tmp_path)) == left  # orphans of a dead task carry the job's id
    lake.by_tasks(Tasks(), 1).insert_job(job)
    assert len(offsets(lake)) == FILES * ROWS
    assert len(files_in(tmp_path)) == left + FILES


@pytest.mark.parametrize("late", ["after a burn", "after its twin"])
def test_a_late_job_whose_tasks_have_ended_commits_nothing(
    lake: IcebergWarehouse, tmp_path: Path, late: str
) -> None:
    job, other = job_of(tmp_path), opened(tmp_path / "lake")

    def meanwhile(outcomes: list[WrittenFiles]) -> list[WrittenFiles]:
        if late == "after a burn":
            other.burn_job(job.job_id, "local", "local", TABLE)
        else:
            other.by_tasks(Tasks(), 1).insert_job(job)
        return outcomes

    with pytest.raises(JobAlreadyExists):
        lake.by_tasks(Tasks(meanwhile), 1).insert_job(job)
    rows = 0 if late == "after a burn" else FILES * ROWS
    assert (len(offsets(lake)), len(files_in(tmp_path))) == (rows, rows // ROWS)


def test_a_task_that_runs_twice_leaves_files_of_its_own(lake: IcebergWarehouse, tmp_path: Path) -> None:
    """Spark may start a task again while the first one still runs."""

    def twice(outcomes: list[WrittenFiles]) -> list[WrittenFiles]:
        return [write(task, {}, open_file_uri) for task in tasks.seen]

    tasks = Tasks(twice)
    lake.by_tasks(tasks, 1).insert_job(job_of(tmp_path))
    assert len(offsets(lake)) == FILES * ROWS
    assert len(files_in(tmp_path)) == 2 * FILES
