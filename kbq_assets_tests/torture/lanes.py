"""Runs of KBQ that are killed or stopped at random moments. Each kind of run has its own thread, a lane."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from kbq_assets.defs.instance.processes import Processes
from kbq_assets_tests.crashes import child
from kbq_assets_tests.crashes import forks as forking
from kbq_assets_tests.crashes.child import Order, passed_file
from kbq_assets_tests.crashes.forks import Forks
from kbq_assets_tests.crashes.probes import Point
from kbq_assets_tests.fixtures.local_stack import REPOSITORY

#: What happens to a run, by weight: killed at a random moment, killed at a fixed point, stopped for a while.
_FATES: Final[Mapping[str, float]] = {"kill": 5, "point": 3, "stop": 1.5, "none": 2}
_STOPPED_SECONDS: Final = (1.0, 8.0)
#: A run that takes longer is killed as well, also after a stop: a load does not end while files keep coming.
_PATIENCE_SECONDS: Final = 30.0
_KBQ: Final = "from kbq_assets.definitions import main; main()"


@dataclass
class Tally:
    """What was done, by lane and kind; ``faults`` are messages about what must not happen."""

    done: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, lane: str, what: str) -> None:
        """Count once."""
        with self._lock:
            self.done[f"{lane}: {what}"] += 1

    def total(self, what: str) -> int:
        """Of all lanes."""
        return sum(count for name, count in self.done.items() if name.endswith(f": {what}"))


@dataclass
class Campaign:
    """What lanes share: the platform's environment, when they end, and what they count."""

    environ: Mapping[str, str]
    seed: int
    seconds: float
    tally: Tally = field(default_factory=Tally)
    begun: float = field(default_factory=time.monotonic)

    @property
    def home(self) -> Path:
        """The platform's folder."""
        return Path(self.environ["KBQ_HOME"])

    @property
    def is_over(self) -> bool:
        """Whether no more runs start."""
        return time.monotonic() - self.begun > self.seconds


def forked_lane(campaign: Campaign, run: str, number: int) -> None:
    """Runs of one kind, forked, one after another."""
    chance, lane = random.Random(f"{campaign.seed} {run} {number}"), run
    usual = 5.0
    with forking.forks() as forks:
        while not campaign.is_over:
            fate = chance.choices(list(_FATES), list(_FATES.values()))[0]
            point = _point(campaign, run, chance) if fate == "point" else None
            begun = time.monotonic()
            pid = forks.fork(Order(run, campaign.environ, point, signal.SIGKILL if point else 0))
            patience = _PATIENCE_SECONDS if fate in ("none", "point") else chance.uniform(0, 1.1 * usual)
            with _signalled(pid, fate, patience):
                event = forks.wait(pid, "ended", "stopped")
            if event.event == "stopped":
                campaign.tally.add(lane, "stopped")
                time.sleep(chance.uniform(*_STOPPED_SECONDS))
                # It is a child that was not waited for yet: its id cannot be reused.
                os.kill(pid, signal.SIGCONT)
                with _signalled(pid, "kill", _PATIENCE_SECONDS):
                    event = forks.wait(pid, "ended")
            elif event.code == child.DONE:
                usual = 0.7 * usual + 0.3 * (time.monotonic() - begun)
            _judge(campaign, lane, event.code)


@contextmanager
def _signalled(pid: int, fate: str, seconds: float) -> Iterator[None]:
    """Kill or stop a process after a while, unless it has ended. Uses a descriptor, since a pid may be reused."""
    number = signal.SIGSTOP if fate == "stop" else signal.SIGKILL
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        yield
        return

    def send() -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, number)

    timer = threading.Timer(seconds, send)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        os.close(descriptor)


def _point(campaign: Campaign, run: str, chance: random.Random) -> Point | None:
    """A point that the last whole run of this kind passed."""
    with contextlib.suppress(OSError, ValueError):
        passed: dict[str, int] = json.loads(passed_file(campaign.home, run).read_text())
        kind = chance.choice(sorted(passed))
        return Point(kind, chance.randint(1, passed[kind]))
    return None


def _judge(campaign: Campaign, lane: str, code: int) -> None:
    names = {-signal.SIGKILL: "killed", child.DONE: "whole", child.SAID_WHY: "refused"}
    campaign.tally.add(lane, names.get(code, "broken"))
    if code not in names:
        log = (campaign.home / f"{lane}.log").read_text(errors="replace")
        campaign.tally.faults.append(f"{lane} ended with {code}: …{log[-2_000:]}")


def spark_lane(campaign: Campaign) -> None:
    """`kbq extract` with Spark or its own worker processes: its driver, the JVM, the parent of the workers, or a
    worker is killed, or the driver is stopped."""
    chance = random.Random(f"{campaign.seed} spark")
    folder = campaign.home / "spark"
    folder.mkdir()
    while not campaign.is_over:
        kind, master = chance.choice([("spark", "local[1]"), ("processes", "processes[2]")])
        environ = {
            **os.environ,
            **campaign.environ,
            "KBQ_SPARK_MASTER": master,
            "PYTHONPATH": str(REPOSITORY),
        }
        with (folder / "extract.log").open("ab") as log:
            driver = subprocess.Popen(
                [sys.executable, "-c", _KBQ, "extract"], cwd=folder, env=environ, stdout=log, stderr=log
            )
            deadline = time.monotonic() + chance.uniform(1, 20)
            while driver.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
            family = _family(driver)
            if driver.poll() is None:
                _strike(campaign.tally, kind, driver, family, chance)
            code = driver.wait(600)
        campaign.tally.add(kind, "killed" if code == -signal.SIGKILL else f"ended with {code}")
        _, left = psutil.wait_procs(family, timeout=120)
        for process in left:
            campaign.tally.faults.append(f"a dead driver left {process}")
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def _strike(
    tally: Tally,
    kind: str,
    driver: subprocess.Popen[bytes],
    family: list[psutil.Process],
    chance: random.Random,
) -> None:
    if chance.random() < 0.15:
        driver.send_signal(signal.SIGSTOP)
        tally.add(kind, "stopped")
        time.sleep(chance.uniform(*_STOPPED_SECONDS))
        driver.send_signal(signal.SIGCONT)
    elif chance.random() < 0.5 or not family:
        driver.kill()
    else:
        victim = chance.choice(family)
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.kill()
            tally.add(kind, "killed a process of the run")


def _family(driver: subprocess.Popen[bytes]) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(driver.pid).children(recursive=True)
    return []


def daemon_lane(campaign: Campaign) -> None:
    """Kills of what `kbq ui` runs on this home: daemon, code server, run workers, webserver."""
    chance = random.Random(f"{campaign.seed} daemon")
    processes = Processes(campaign.home / "dagster", campaign.home / "logs", {})
    while not campaign.is_over:
        time.sleep(chance.uniform(10, 40))
        found = processes.found()
        if not found:
            continue
        victim = chance.choice(found)
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.kill()
            campaign.tally.add("daemon", "killed")


def run_lanes(campaign: Campaign, lanes: list[Callable[[], None]]) -> None:
    """Run lanes to their end. An exception in one is a fault."""

    def guarded(lane: Callable[[], None]) -> None:
        try:
            lane()
        except Exception as error:
            campaign.tally.faults.append(f"a lane ended: {error!r}")

    threads = [threading.Thread(target=guarded, args=[lane]) for lane in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def recover(campaign: Campaign, forks: Forks) -> float:
    """Run everything as a schedule would, with nobody's help; return the seconds until nothing is left."""
    begun = time.monotonic()
    for run in ("extract", "load", "extract", "load", "extract", "load", "clean"):
        event = forks.run(Order(run, campaign.environ))
        if event.code != child.DONE:
            log = (campaign.home / f"{run}.log").read_text(errors="replace")
            campaign.tally.faults.append(f"{run} after the campaign: {event}: …{log[-2_000:]}")
    return time.monotonic() - begun
