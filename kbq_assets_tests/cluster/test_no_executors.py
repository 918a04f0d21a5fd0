"""If a cluster provides no executor, the run says so and does not wait forever."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from kbq_assets_tests.cluster.standalone import Cluster, standalone

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]

_RUN = """
import sys, time
from pathlib import Path
from kbq_assets.adapters.spark.engine import SparkEngine
from kbq_assets.adapters.spark.session import spark_context
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.core.config.parts import SparkSettings
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.core.extraction.units import Unit, UnitOutcome

master, home = sys.argv[1:]
options = {"spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
units = [Unit(OffsetRange(TopicPartition("t", p), 0, 5), 1, TopicSettings()) for p in range(2)]
with spark_context(SparkSettings(master, options), Path(home)) as context:
    engine = SparkEngine(context, lambda units: [UnitOutcome(unit) for unit in units], quiet_seconds=3)
    print("idle", engine.idle_slots, flush=True)
    for unit in units:
        engine.submit((unit,))
    while not (complaint := engine.complaint()):
        assert engine.next_outcomes(0.2) == []
    print(complaint, flush=True)
    if sys.stdin.readline() == "cancel\\n":
        engine.cancel("time is up")
    outcomes = []
    while len(outcomes) < len(units):
        outcomes += engine.next_outcomes(0.2)
    print(sorted(outcome.failure for outcome in outcomes), engine.complaint() == "", flush=True)
    while context.statusTracker().getActiveJobsIds():
        time.sleep(0.1)
    assert engine.next_outcomes(1.0) == []
print("ended", flush=True)
"""


class Run:
    """A driver with two tasks, which waits for a word once it has complained."""

    def __init__(self, cluster: Cluster, home: Path) -> None:
        self._log: IO[Any] = open(home / "log", "w+")  # noqa: SIM115
        command = [sys.executable, "-c", _RUN, cluster.master, str(home)]
        self.process = subprocess.Popen(
            command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log
        )

    def line(self) -> str:
        """What it prints next."""
        assert self.process.stdout is not None
        found = self.process.stdout.readline()
        if not found:
            self._log.seek(0)
            pytest.fail(self._log.read())
        return found.strip()

    def say(self, word: str) -> None:
        """Let it go on."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """End it, if it still runs."""
        self.process.kill()
        self.process.communicate()
        self._log.close()


@pytest.fixture(scope="module")
def deserted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master without a worker."""
    with standalone(tmp_path_factory.mktemp("deserted"), 0) as running:
        yield running


@pytest.fixture
def run(deserted: Cluster, tmp_path: Path) -> Iterator[Callable[[], Run]]:
    runs: list[Run] = []

    def begin() -> Run:
        runs.append(Run(deserted, tmp_path))
        return runs[-1]

    yield begin
    for each in runs:
        each.end()


def test_tasks_that_never_start_are_reported_and_can_be_cancelled(
    run: Callable[[], Run], deserted: Cluster
) -> None:
    driver = run()
    assert driver.line() == "idle 2"
    assert f"{deserted.master} provides no executor" in driver.line()
    driver.say("cancel")
    assert driver.line() == "['time is up', 'time is up'] True"
    assert driver.line() == "ended"
    assert driver.process.wait(120) == 0


def test_executors_that_come_late_are_welcome(run: Callable[[], Run], deserted: Cluster) -> None:
    driver = run()
    assert driver.line() == "idle 2"
    assert "provides no executor" in driver.line()
    deserted.start_workers(1)
    driver.say("go on")
    assert driver.line() == "['', ''] True"
    assert driver.line() == "ended"
    assert driver.process.wait(120) == 0
