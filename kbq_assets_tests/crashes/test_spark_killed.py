"""kill -9 and SIGSTOP of a real Spark run: of its driver, and of the workers that run its tasks."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from kbq_assets.core.commits import Commit
from kbq_assets.core.names import STAGING
from kbq_assets.core.offsets import TopicPartition
from kbq_assets.pipelines import state
from kbq_assets_tests.integration.world import Producers, World

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.spark]

PARTITIONS, RECORDS = 24, 30_000
#: Two tasks at a time, many to come: a run has a middle, however fast a task is.
ENVIRON = {
    "KBQ_SPARK_MASTER": "local[2]",
    "KBQ_WINDOW_RECORDS": "5000",
    # The slower reader: tasks are still at work when something is staged.
    "KBQ_READER": "librdkafka",
}
KBQ = "from kbq_assets.definitions import main; main()"
REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def topic(producers: Producers) -> str:
    """A topic of `PARTITIONS` times `RECORDS` records."""
    order = producers.register(("x", "long"))
    topic = producers.broker.create_topic(PARTITIONS)
    for partition in range(PARTITIONS):
        tp = TopicPartition(topic, partition)
        producers.produce(tp, [order.value(x=n) for n in range(RECORDS)], "row:shop.orders")
    return topic


@pytest.fixture
def world(producers: Producers, topic: str, tmp_path: Path) -> World:
    return World(
        tmp_path / "home", producers, sources=f"{topic} dataset=shop table=orders\n", environ=ENVIRON
    )


class SparkRun:
    """`kbq extract` in a process of its own, with the processes it starts: the JVM, PySpark's daemon, its workers."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._log = world.folder / "extract.log"
        self._family: dict[int, psutil.Process] = {}
        environ = {**os.environ, **world.environ, "PYTHONPATH": str(REPOSITORY)}
        command = [sys.executable, "-c", KBQ, "extract"]
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(command, cwd=world.folder, env=environ, stdout=log, stderr=log)

    @property
    def said(self) -> str:
        """What it has printed."""
        return self._log.read_text()

    def wait_until(self, moment: Callable[[World], bool]) -> None:
        """Wait for a moment in the middle of the run."""
        deadline = time.monotonic() + 120
        while not moment(self._world):
            assert self.process.poll() is None, self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(0.01)
        self._family = {p.pid: p for p in psutil.Process(self.process.pid).children(recursive=True)}
        assert len(self._family) >= 3, "a JVM, a daemon and a worker"

    def wait_for_workers(self) -> list[psutil.Process]:
        """The children of PySpark's daemon, as soon as there are some: reading is a matter of tenths of a second."""
        deadline = time.monotonic() + 120
        while not (found := self._workers()):
            assert self.process.poll() is None, self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(0.01)
        return found

    def _workers(self) -> list[psutil.Process]:
        found: list[psutil.Process] = []
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # one that has ended, waited for or not
                if "pyspark.worker" in process.cmdline() and process.children():
                    found.extend(process.children())
        return found

    def end(self) -> list[psutil.Process]:
        """End what still runs; return what a dead driver has left."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait(30)
        _, left = psutil.wait_procs(list(self._family.values()), timeout=30)
        for process in left:
            process.kill()
        return left


@pytest.fixture
def run(world: World) -> Iterator[SparkRun]:
    run = SparkRun(world)
    yield run
    assert run.end() == []


def something_is_staged(world: World) -> bool:
    """A task has closed its first file."""
    return any(True for _ in world.platform.store.list(STAGING))


def something_is_published(world: World) -> bool:
    """The first task's windows are committed, the others' are not yet."""
    store = world.platform.store
    commits = state.read_commits(store, state.topic_registry(store))
    return any(_position(commit.value) > 0 for commit in commits)


def _position(commit: Commit) -> int:
    return sum(partition.next for partition in commit.partitions.values())


def _check(world: World) -> None:
    assert world.finish().totals()["loaded"] == PARTITIONS * RECORDS


@pytest.mark.parametrize("moment", [something_is_staged, something_is_published])
def test_a_killed_driver_loses_and_doubles_nothing(
    world: World, run: SparkRun, moment: Callable[[World], bool]
) -> None:
    run.wait_until(moment)
    run.process.kill()
    assert run.process.wait(30) == -signal.SIGKILL
    assert run.end() == [], "a dead driver leaves processes behind"
    _check(world)


def test_a_killed_worker_fails_its_windows_and_the_next_run_reads_them(world: World, run: SparkRun) -> None:
    workers = run.wait_for_workers()
    while not something_is_staged(world):
        assert run.process.poll() is None, run.said
    for worker in workers:
        worker.kill()
    assert run.process.wait(120) != 0, run.said
    assert "the Spark task failed" in run.said
    _check(world)


def test_a_driver_that_sleeps_while_others_do_its_work_publishes_nothing_twice(
    world: World, run: SparkRun
) -> None:
    run.wait_until(something_is_staged)
    run.process.send_signal(signal.SIGSTOP)
    world.extract()
    world.load()
    run.process.send_signal(signal.SIGCONT)
    run.process.wait(120)
    assert "Traceback" not in run.said
    _check(world)
