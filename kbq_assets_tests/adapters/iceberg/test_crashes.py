"""A loading process killed before or after any write: its job is DONE with all rows, or was never inserted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import pytest
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.typedef import EMPTY_DICT, Properties

from kbq_assets.adapters.iceberg import IcebergWarehouse
from kbq_assets.adapters.iceberg.housekeeping import delete_orphans
from kbq_assets.core.errors import JobAlreadyExists
from kbq_assets.core.loading.tables import TableOptions, columns_of
from kbq_assets.pipelines.compaction.table import CompactionReport, TableCompaction
from kbq_assets.ports.compaction import Rewriter
from kbq_assets.ports.warehouse import JobStatus, KafkaRange, LoadJob
from kbq_assets_tests.adapters.iceberg.test_housekeeping import LATER
from kbq_assets_tests.adapters.iceberg.test_warehouse import files_in, opened
from kbq_assets_tests.contracts.warehouse import SCHEMA, TABLE, avro_file, load_job, records

#: Kill points tried, more than a job has; those beyond its end let it finish.
POINTS: Final = 30
BURN, COMPACT = "burn", "compact"
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
    """Load one job, burn its id, or compact, until the kill. The table has the rows of an earlier job."""
    folder = root / str(point)
    folder.mkdir()
    lake = mortal(folder)
    lake.create_table(TABLE, columns_of(SCHEMA), TableOptions())
    lake.insert_job(job(root, 1))
    if what == COMPACT:
        lake.insert_job(job(root, 2))
    MortalFileIO.left = point
    if what == COMPACT:
        compact(lake)
    elif what == BURN:
        lake.burn_job("kbq-1a2b-2", "local", "local", TABLE)
    else:
        lake.insert_job(job(root, 2))


def compact(lake: IcebergWarehouse) -> CompactionReport:
    """Join all files of the table."""
    days = {19_000}
    return TableCompaction(lake.compaction, TABLE, lambda: 0, _no_spark, days).run()


def _no_spark() -> AbstractContextManager[Rewriter]:
    raise AssertionError("a small plan starts no Spark")


def job(root: Path, number: int) -> LoadJob:
    return load_job(f"kbq-1a2b-{number}", (root / f"{number}.avro").as_uri())


@pytest.mark.slow
@pytest.mark.parametrize("what", ["load", BURN])
def test_a_killed_job_is_done_or_was_never_inserted(tmp_path: Path, what: str) -> None:
    for number in (1, 2):
        (tmp_path / f"{number}.avro").write_bytes(avro_file(records(range(number * 10, number * 10 + 5))))
    command = [sys.executable, "-c", PARENT, str(tmp_path), what, str(POINTS)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout.split()
    assert len(ended) == POINTS
    assert ended[0] == "-9"
    assert ended[-1] == "0"  # no job has so many points
    outcomes = {verdict(tmp_path, what, point) for point in range(POINTS)}
    assert outcomes == {"done", "never inserted"}


def verdict(root: Path, what: str, point: int) -> str:
    """What became of the job; afterwards it has run once, whatever came before."""
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
def test_a_killed_compaction_happened_or_did_not(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"{number}.avro").write_bytes(avro_file(records(range(number * 10, number * 10 + 5))))
    command = [sys.executable, "-c", PARENT, str(tmp_path), COMPACT, str(POINTS)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout.split()
    assert (len(ended), ended[0], ended[-1]) == (POINTS, "-9", "0")
    assert {files_after(tmp_path, point) for point in range(POINTS)} == {1, 2}


def files_after(root: Path, point: int) -> int:
    """How many files the table has after the kill; afterwards it is compacted, and has every row once."""
    lake = opened(root / str(point))
    wanted = dict.fromkeys([*range(10, 15), *range(20, 25)], 1)
    assert lake.positions(TABLE, KafkaRange("t", 0, 0)) == wanted, f"point {point}"
    view = lake.compaction.view(TABLE)
    assert view is not None
    report = compact(lake)
    assert (report.message, report.files_after) == ("", 1)
    assert lake.positions(TABLE, KafkaRange("t", 0, 0)) == wanted, f"point {point}"
    table = lake.lake.table(TABLE)
    assert table is not None
    if len(view.files) == 2:  # the next compaction took the dead one's number: what that left is deleted
        delete_orphans(table, LATER)
        assert len(files_in(root / str(point))) == 3
    return len(view.files)
