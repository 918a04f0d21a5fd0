"""`kbq extract --resident` with a real broker, on Spark and in processes: cycles share what runs their tasks, and
SIGTERM ends it in order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from kbq_assets.core.errors import NotFound
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.worker import daemon
from kbq_assets_tests.integration.world import World

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

PROGRAM = "from kbq_assets.definitions import main; main()"
REPOSITORY = Path(__file__).resolve().parents[2]


class ResidentRun:
    """The command in a separate process."""

    def __init__(self, world: World, master: str) -> None:
        self._log = world.folder / "extract.log"
        environ = {
            **os.environ, **world.environ, "PYTHONPATH": str(REPOSITORY), "KBQ_SPARK_MASTER": master,
        }  # fmt: skip
        command = [sys.executable, "-c", PROGRAM, "extract", "--resident", "--every", "0.2"]
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(command, cwd=world.folder, env=environ, stdout=log, stderr=log)

    @property
    def said(self) -> str:
        """What it has printed."""
        return self._log.read_text()

    def wait_until(self, moment: Callable[[], object]) -> None:
        """Wait for a moment while it runs."""
        deadline = time.monotonic() + 300
        while not moment():
            assert self.process.poll() is None, self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(0.05)

    def child(self) -> psutil.Process:
        """The process that runs tasks or starts their workers: Spark's JVM, or the fork server."""
        children = psutil.Process(self.process.pid).children()
        [found] = [child for child in children if daemon.MODULE not in " ".join(child.cmdline())]
        return found


@pytest.fixture
def resident(world: World, request: pytest.FixtureRequest) -> Iterator[ResidentRun]:
    run = ResidentRun(world, request.param)
    yield run
    run.process.kill()
    run.process.wait(120)


@pytest.mark.parametrize(
    "resident", [pytest.param("local[1]", marks=pytest.mark.thorough), "processes[1]"], indirect=True
)
def test_cycles_share_one_application_until_it_is_asked_to_end(world: World, resident: ResidentRun) -> None:
    order, tp = world.producers.register(("x", "long")), world.topic()

    def produce_and_wait(count: int) -> psutil.Process:
        end = world.producers.produce(tp, [order.value(x=n) for n in range(count)], "row:shop.orders")[-1] + 1
        resident.wait_until(lambda: is_committed(world, tp, end))
        return resident.child()

    first, second = produce_and_wait(10), produce_and_wait(5)
    assert first == second, "the second cycle started another one"
    resident.process.send_signal(signal.SIGTERM)
    assert resident.process.wait(300) == 0, resident.said
    assert "ended: it was asked to end" in resident.said
    deadline = time.monotonic() + 300
    while not has_ended(first):  # a moment after its driver
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert world.finish().totals()["loaded"] == 15


@pytest.mark.thorough
@pytest.mark.parametrize(
    "resident", [pytest.param("local[1]", marks=pytest.mark.slow), "processes[1]"], indirect=True
)
def test_an_application_that_died_ends_the_command_which_may_be_started_again(
    world: World, resident: ResidentRun
) -> None:
    order, tp = world.producers.register(("x", "long")), world.topic()
    world.producers.produce(tp, [order.value(x=1)], "row:shop.orders")
    resident.wait_until(lambda: is_committed(world, tp, 1))
    child = resident.child()
    child.kill()
    resident.wait_until(lambda: has_ended(child))  # until then, an idle worker could read the next record
    world.producers.produce(tp, [order.value(x=2)], "row:shop.orders")
    assert resident.process.wait(300) == 75, resident.said
    assert "next: start the command again" in resident.said
    assert world.finish().totals()["loaded"] == 2


def has_ended(process: psutil.Process) -> bool:
    """Whether a process has ended, also if nobody has collected it."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def is_committed(world: World, tp: TopicPartition, end: int) -> bool:
    """Whether a partition is read up to a position."""
    try:
        return world.partition(tp).next == end
    except (KeyError, NotFound):
        return False
