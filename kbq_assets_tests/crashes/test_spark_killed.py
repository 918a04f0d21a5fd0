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
from typing import TypeAlias

import psutil
import pytest

from kbq_assets.core.protocol.commits import Commit
from kbq_assets.core.protocol.names import STAGING
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.pipelines.protocol import state
from kbq_assets_tests.integration.world import Producers, World

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.spark]

PARTITIONS, RECORDS = 24, 30_000
#: Runs until one was caught at work: it may be over before anybody looks.
TRIES = 4
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


class SparkRun:
    """`kbq extract` in a separate process, with its child processes: the JVM, PySpark's daemon, its workers."""

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

    def reaches(self, moment: Callable[[World], object]) -> bool:
        """Wait for a moment in the middle of the run. False where the run was over before anybody looked."""
        deadline = time.monotonic() + 300
        while not moment(self._world):
            if self.process.poll() is not None:
                assert self.process.returncode == 0, self.said
                return False
            assert time.monotonic() < deadline, self.said
            time.sleep(0.01)
        self._family = {process.pid: process for process in self._children()}
        return len(self._family) >= 3  # a JVM, a daemon and a worker

    def workers(self) -> list[psutil.Process]:
        """The forks of PySpark's daemon, which is a fork of its standby, which is a fork of the command."""
        with contextlib.suppress(psutil.NoSuchProcess):
            command = psutil.Process(self.process.pid)
            return [
                worker
                for standby in _forks(command)
                for daemon in _forks(standby)
                for worker in _forks(daemon)
            ]
        return []

    def _children(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []

    def end(self) -> list[psutil.Process]:
        """End what still runs; return what a dead driver has left."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait(120)
        _, left = psutil.wait_procs(list(self._family.values()), timeout=120)
        for process in left:
            process.kill()
        return left


def _forks(process: psutil.Process) -> list[psutil.Process]:
    """The children that run the same program as their parent; empty if the process has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [child for child in process.children() if child.cmdline() == process.cmdline()]
    return []


Begin: TypeAlias = Callable[[], tuple[World, SparkRun]]


@pytest.fixture
def begin(producers: Producers, topic: str, tmp_path: Path) -> Iterator[Begin]:
    """Start a run in a separate world. No process is left behind."""
    runs: list[SparkRun] = []

    def new() -> tuple[World, SparkRun]:
        home, sources = tmp_path / f"home-{len(runs)}", f"{topic} dataset=shop table=orders\n"
        world = World(home, producers, sources=sources, environ=ENVIRON)
        runs.append(SparkRun(world))
        return world, runs[-1]

    yield new
    assert [left for run in runs for left in run.end()] == []


def something_is_staged(world: World) -> bool:
    """A task has closed its first file."""
    return any(True for _ in world.parts.deployment.store.list(STAGING))


def something_is_published(world: World) -> bool:
    """The first task's windows are committed, the others' are not yet."""
    store = world.parts.deployment.store
    commits = state.read_commits(store)
    return any(_position(commit.value) > 0 for commit in commits)


def _position(commit: Commit) -> int:
    return sum(partition.next for partition in commit.partitions.values())


def _check(world: World) -> None:
    assert world.finish().totals()["loaded"] == PARTITIONS * RECORDS


@pytest.mark.parametrize("moment", [something_is_staged, something_is_published])
def test_a_killed_driver_loses_and_doubles_nothing(begin: Begin, moment: Callable[[World], bool]) -> None:
    for _ in range(TRIES):
        world, run = begin()
        if run.reaches(moment):
            run.process.kill()
            if run.process.wait(120) == -signal.SIGKILL:
                assert run.end() == [], "a dead driver leaves processes behind"
                _check(world)
                return
    pytest.fail("every run was over before it could be killed")


def test_a_killed_worker_fails_its_windows_and_the_next_run_reads_them(begin: Begin) -> None:
    for _ in range(TRIES):
        world, run = begin()
        run.reaches(something_is_staged)
        for worker in run.workers():
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()
        if run.process.wait(300) != 0:
            assert "the Spark task failed" in run.said
            store = world.parts.deployment.store
            commits = state.read_commits(store)
            assert any(p.deaths == 1 for commit in commits for p in commit.value.partitions.values())
            _check(world)
            return
    pytest.fail("no run failed for its workers' death")


def test_a_driver_that_sleeps_while_others_do_its_work_publishes_nothing_twice(begin: Begin) -> None:
    for _ in range(TRIES):
        world, run = begin()
        if run.reaches(something_is_staged):
            break
    else:
        pytest.fail("every run was over before it could be stopped")
    run.process.send_signal(signal.SIGSTOP)
    world.extract()
    world.load()
    run.process.send_signal(signal.SIGCONT)
    run.process.wait(300)
    assert "Traceback" not in run.said
    _check(world)
