"""A loading process killed before or after any write: its job is DONE with all rows, or was never inserted."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import pytest
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.typedef import EMPTY_DICT, Properties

from kbq_assets.adapters.iceberg import IcebergWarehouse
from kbq_assets.adapters.iceberg.housekeeping import MAX_AGE, delete_orphans
from kbq_assets.adapters.iceberg.tasks import write
from kbq_assets.core.compaction.model import DAY_MS, ChosenFiles, CompactionRule
from kbq_assets.core.errors import JobAlreadyExists
from kbq_assets.core.loading.tables import TableOptions, columns_of
from kbq_assets.pipelines.compaction.table import CompactionReport, TableCompaction
from kbq_assets.ports.compaction import Rewriter
from kbq_assets.ports.load_tasks import WriteTask, WrittenFiles
from kbq_assets.ports.warehouse import JobStatus, KafkaRange, LoadJob
from kbq_assets.wire.arrow.staged import open_file_uri
from kbq_assets_tests.adapters.iceberg.test_housekeeping import LATER
from kbq_assets_tests.adapters.iceberg.test_warehouse import files_in, of_schema, opened
from kbq_assets_tests.contracts.warehouse import SCHEMA, TABLE, avro_file, load_job, record

#: Kill points tried, more than a job has; those beyond its end let it finish.
POINTS: Final = 30
LOAD, TASKS, BURN, COMPACT, JOIN, EXPIRE = "load", "tasks", "burn", "compact", "join", "expire"
#: Points that each has at least: more than 60 together.
LEAST: Final = {LOAD: 14, TASKS: 14, BURN: 4, COMPACT: 14, JOIN: 16, EXPIRE: 22}
#: The days of a job's rows, and so its data files.
DAYS: Final = (19_000, 19_001, 19_002)
#: Forks once per point: each child loads one job, or burns its id, and kills itself at its point.
PARENT: Final = """
import os, sys
from pathlib import Path
from kbq_assets_tests.adapters.iceberg.test_crashes import killed_child
for point in range(int(sys.argv[3])):
    if not (child := os.fork()):
        killed_child(Path(sys.argv[1]), sys.argv[2], point)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
"""


class MortalFileIO(PyArrowFileIO):
    """Kills its process before or after the n-th file that it creates or deletes; never if n is negative."""

    left = -1

    def __init__(self, properties: Properties = EMPTY_DICT) -> None:
        super().__init__(properties)

    def new_output(self, location: str) -> PyArrowFile:
        self._count()
        found = super().new_output(location)
        self._count()
        return found

    def delete(self, location: object) -> None:
        self._count()
        super().delete(location)  # type: ignore[arg-type]
        self._count()

    @classmethod
    def _count(cls) -> None:
        if cls.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        cls.left -= 1


def mortal(folder: Path) -> IcebergWarehouse:
    name = f"{__name__}.{MortalFileIO.__name__}"
    uri = f"sqlite:///{folder}/catalog.db?timeout=60"
    properties = {"type": "sql", "uri": uri, "warehouse": f"file://{folder}", "py-io-impl": name}
    return IcebergWarehouse("kbq", properties)


def killed_child(root: Path, what: str, point: int) -> None:
    """Load one job, burn its id, compact or expire, until the kill. The table has the rows of an earlier job."""
    folder = root / str(point)
    folder.mkdir()
    lake = mortal(folder)
    lake.create_table(TABLE, columns_of(SCHEMA), TableOptions())
    lake.insert_job(job(root, 1))
    if what in (COMPACT, JOIN, EXPIRE):
        lake.insert_job(job(root, 2))
    if what == EXPIRE:
        compact(lake)
        expire_at_once(lake)
    MortalFileIO.left = point
    if what in (COMPACT, JOIN):
        compact(lake, what)
    elif what == EXPIRE:
        lake.compaction.tidy(TABLE)
    elif what == BURN:
        lake.burn_job("kbq-1a2b-2", "local", "local", TABLE)
    elif what == TASKS:
        lake.by_tasks(functools.partial(written, lake), 1).insert_job(of_schema(1, job(root, 2)))
    else:
        lake.insert_job(job(root, 2))


def written(lake: IcebergWarehouse, tasks: Sequence[WriteTask]) -> list[WrittenFiles]:
    """Run tasks in this process, which may be killed in one."""
    return [write(task, lake.lake.properties, open_file_uri) for task in tasks]


def compact(lake: IcebergWarehouse, what: str = COMPACT) -> CompactionReport:
    """Join the files of each partition, or of each day."""
    rule = CompactionRule(days_after_ms=1 if what == JOIN else 0)
    later = (DAYS[-1] + 2) * DAY_MS
    return TableCompaction(
        lake.compaction, TABLE, lambda: later, _no_spark, ChosenFiles(DAYS), lambda: rule
    ).run()


def expire_at_once(lake: IcebergWarehouse) -> None:
    """Let each snapshot but the last be too old."""
    table = lake.lake.table(TABLE)
    assert table is not None
    with table.transaction() as change:
        change.set_properties({MAX_AGE: "-1000"})


def endings(root: Path, what: str) -> list[str]:
    """How each child ended; enough of them were killed, and the last ones were not."""
    for number in (1, 2):
        rows = [record(offset, event_date=DAYS[offset % 3]) for offset in range(number * 10, number * 10 + 5)]
        (root / f"{number}.avro").write_bytes(avro_file(rows))
    command = [sys.executable, "-c", PARENT, str(root), what, str(POINTS)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout.split()
    kills = ended.count("-9")
    assert ended == ["-9"] * kills + ["0"] * (POINTS - kills)
    assert LEAST[what] <= kills < POINTS
    return ended


def _no_spark() -> AbstractContextManager[Rewriter]:
    raise AssertionError("a small plan starts no Spark")


def job(root: Path, number: int) -> LoadJob:
    return load_job(f"kbq-1a2b-{number}", (root / f"{number}.avro").as_uri())


@pytest.mark.slow
@pytest.mark.parametrize("what", [LOAD, TASKS, BURN])
def test_a_killed_job_is_done_or_was_never_inserted(tmp_path: Path, what: str) -> None:
    endings(tmp_path, what)
    outcomes = {verdict(tmp_path, what, point) for point in range(POINTS)}
    assert outcomes == {"done", "never inserted"}


def verdict(root: Path, what: str, point: int) -> str:
    """The outcome of the job. Afterwards the job has run exactly once."""
    lake = opened(root / str(point))
    status = lake.get_job("kbq-1a2b-2", "local", "local", TABLE)
    if status is None and what != BURN:
        lake.insert_job(job(root, 2))
    elif status is None:
        lake.burn_job("kbq-1a2b-2", "local", "local", TABLE)
    with pytest.raises(JobAlreadyExists):
        lake.insert_job(job(root, 2))
    new = [] if what == BURN else list(range(20, 25))
    wanted = dict.fromkeys([*range(10, 15), *new], 1)
    assert lake.positions(TABLE, KafkaRange("t", 0, 0)) == wanted, f"point {point}"
    if status is None:
        return "never inserted"
    assert status == JobStatus("kbq-1a2b-2", "DONE", status.source_uris, len(new), None, status.created_ms)
    assert files_in(root / str(point))
    return "done"


@pytest.mark.slow
@pytest.mark.parametrize("what", [COMPACT, JOIN])
def test_a_killed_compaction_happened_or_did_not(tmp_path: Path, what: str) -> None:
    endings(tmp_path, what)
    assert {files_after(tmp_path, point, what) for point in range(POINTS)} == {3, 6}


@pytest.mark.slow
def test_a_killed_expiry_keeps_every_row_and_the_next_one_goes_on(tmp_path: Path) -> None:
    endings(tmp_path, EXPIRE)
    for point in range(POINTS):
        lake = opened(tmp_path / str(point))
        lake.compaction.tidy(TABLE)
        table = lake.lake.table(TABLE)
        assert table is not None
        delete_orphans(table, LATER)
        wanted = dict.fromkeys([*range(10, 15), *range(20, 25)], 1)
        assert lake.positions(TABLE, KafkaRange("t", 0, 0)) == wanted, f"point {point}"
        assert len(files_in(tmp_path / str(point))) == 3, f"point {point}"


def files_after(root: Path, point: int, what: str) -> int:
    """How many files the table has after the kill; afterwards it is compacted, and has every row once."""
    lake = opened(root / str(point))
    wanted = dict.fromkeys([*range(10, 15), *range(20, 25)], 1)
    assert lake.positions(TABLE, KafkaRange("t", 0, 0)) == wanted, f"point {point}"
    view = lake.compaction.view(TABLE)
    assert view is not None
    report = compact(lake, what)
    assert (report.message, report.files_after) == ("", 3)
    after = lake.compaction.view(TABLE)
    assert after is not None
    assert [file.coarse for file in after.files] == [what == JOIN] * 3
    assert lake.positions(TABLE, KafkaRange("t", 0, 0)) == wanted, f"point {point}"
    table = lake.lake.table(TABLE)
    assert table is not None
    if len(view.files) == 6:  # the next compaction took the dead one's number: what that left is deleted
        delete_orphans(table, LATER)
        assert len(files_in(root / str(point))) == 9
    return len(view.files)
