"""kill -9 of real loader processes when a request arrives: it is lost, late, or applied and nobody reads the reply.

The processes are whole platforms, opened from an environment, forked from a warm parent.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import pytest

from kbq_assets_tests.crashes import forks as forking
from kbq_assets_tests.crashes.child import DONE, Order
from kbq_assets_tests.crashes.forks import Event, Forks
from kbq_assets_tests.google.faults import Fault, Request
from kbq_assets_tests.google.loads import TOPIC, Ground, WatchedWorld
from kbq_assets_tests.google.outcomes import CASES, FILE_ROWS, FILES, wrongs
from kbq_assets_tests.google.servers import BigQueryServer, GcsServer, GoogleServer
from kbq_assets_tests.google.shapes import objections

pytestmark = [pytest.mark.google, pytest.mark.slow]

BY_NAME = {case.name: case for case in CASES}
#: Of a first load's writes of state objects: of the flight, and of its end.
INTENT, LANDING = 5, 6


@dataclass(frozen=True)
class Kill:
    """The ``nth`` request of a method kills its sender on arrival. ``fate`` is the request's: "" applies it."""

    method: str
    nth: int = 1
    fate: str = ""
    case: str = "success"


KILLS = (
    Kill("jobs.insert", fate="drop_request"),
    Kill("jobs.insert", fate="late"),
    Kill("jobs.insert"),
    Kill("jobs.insert", case="retryable error"),
    Kill("objects.insert", INTENT, "drop_request"),
    Kill("objects.insert", INTENT),
    Kill("objects.insert", LANDING, "drop_request", "other output rows"),
    Kill("objects.insert", LANDING, "", "other output rows"),
    Kill("objects.rewrite", 1, "", "permanent error of one file"),
    Kill("objects.delete", 2),
)


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with forking.forks("kbq_assets.adapters.bigquery", "kbq_assets.adapters.gcs") as parent:
        yield parent


@pytest.fixture(scope="module")
def ground(gcs_server: GcsServer, bigquery_server: BigQueryServer) -> Ground:
    return Ground(gcs_server, bigquery_server)


@pytest.fixture
def world(ground: Ground) -> Iterator[WatchedWorld]:
    said = len(ground.bigquery.requests)
    yield ground.world()
    ground.close()
    assert objections(ground.bigquery.requests[said:]) == []


def _environ(world: WatchedWorld, folder: Path) -> Mapping[str, str]:
    folder.mkdir(exist_ok=True)
    (folder / "topics.txt").write_text(f"{TOPIC} dataset={world.table.dataset} table={world.table.table}\n")
    return {
        "KBQ_HOME": str(folder),
        "KBQ_SOURCE_TOPICS": str(folder / "topics.txt"),
        "KBQ_STAGING": f"gs://{world.ground.bucket}/{world.name}",
        "KBQ_WAREHOUSE": f"bigquery://{world.bigquery.project}?location=US",
        "KBQ_GCS_ENDPOINT": world.gcs.endpoint,
        "KBQ_BIGQUERY_ENDPOINT": world.bigquery.endpoint,
        "KBQ_EXTRACT_CREDENTIALS": "anonymous",
        "KBQ_LOAD_CREDENTIALS": "anonymous",
        "KBQ_POLL_SECONDS": "1",
        "KBQ_QUIET_SECONDS": "0",
    }


def _server_of(world: WatchedWorld, method: str) -> GoogleServer:
    return world.bigquery if method.startswith("jobs.") else world.gcs


def _arm(world: WatchedWorld, kill: Kill) -> Future[int]:
    """Let the request kill the process that the future will name."""
    server, victim, seen = _server_of(world, kill.method), Future[int](), list[Request]()

    def watch(request: Request) -> None:
        if request.method == kill.method:
            seen.append(request)
            if len(seen) == kill.nth:
                os.kill(victim.result(), signal.SIGKILL)

    server.watchers.append(watch)
    if kill.fate:
        server.faults.add(Fault(kill.method, kill.fate, when=lambda request: len(seen) == kill.nth))
    return victim


@pytest.mark.parametrize("kill", KILLS, ids=lambda kill: f"{kill.method}-{kill.nth}-{kill.fate}-{kill.case}")
def test_a_killed_loader_loses_and_doubles_nothing(
    world: WatchedWorld, forks: Forks, tmp_path: Path, kill: Kill
) -> None:
    case = BY_NAME[kill.case]
    world.stage(*[FILE_ROWS] * FILES, damaged=case.damaged)
    case.arrange(world)
    victim = _arm(world, kill)
    pid = forks.fork(Order("load", _environ(world, tmp_path)))
    victim.set_result(pid)
    assert forks.wait(pid, "ended") == Event(pid, "ended", -signal.SIGKILL), _log(tmp_path)
    world.converge()
    world.bigquery.faults.deliver_late()
    world.converge()
    world.sweep()
    assert wrongs(case, world) == []


def test_two_loader_processes_started_at_once_load_every_row_once(
    world: WatchedWorld, forks: Forks, tmp_path: Path
) -> None:
    orders = [Order("load", _environ(world, tmp_path / name)) for name in ("a", "b")]
    for _ in range(5):
        world.stage(FILE_ROWS, FILE_ROWS)
        pids = [forks.fork(order) for order in orders]
        assert [forks.wait(pid, "ended").code for pid in pids] == [DONE, DONE], _log(tmp_path / "a")
    world.converge()
    assert world.rows() == dict.fromkeys(range(10 * FILE_ROWS), 1)
    assert world.early == []


def _log(home: Path) -> str:
    return (home / "load.log").read_text()
