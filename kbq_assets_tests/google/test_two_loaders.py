"""Two loaders started at once over the real clients, with faults: no row twice, none missing.

Without rule L2 two loaders that meet double rows. Many more starts run in simulation
(`kbq_assets_tests/simulation/test_simulation.py`).
"""

from __future__ import annotations

import contextlib
import uuid
from collections import Counter
from collections.abc import Iterator
from random import Random
from threading import Event, Thread
from typing import Any

import pytest

from kbq_assets.core.errors import KbqError
from kbq_assets.core.loading.table_state import JobInFlight
from kbq_assets.pipelines.loading import job_recovery, table_loader
from kbq_assets.pipelines.loading.ports import Turn
from kbq_assets.pipelines.loading.table_run import TableRun
from kbq_assets_tests.contracts.object_store import at_once
from kbq_assets_tests.google.faults import Fault, Request
from kbq_assets_tests.google.loads import Ground, WatchedWorld
from kbq_assets_tests.google.servers import BigQueryServer, GcsServer
from kbq_assets_tests.google.shapes import objections
from kbq_assets_tests.simulation.mutants import Mutant
from kbq_assets_tests.sizes import GOOGLE_SEEDS, GOOGLE_STARTS

pytestmark = pytest.mark.google

_SOON = 0.03


@pytest.fixture(scope="module")
def ground(gcs_server: GcsServer, bigquery_server: BigQueryServer) -> Ground:
    return Ground(gcs_server, bigquery_server)


@pytest.fixture
def world(ground: Ground) -> Iterator[WatchedWorld]:
    yield ground.world()
    ground.close()


def _of_a_state(request: Request) -> bool:
    """A swap of the table's state; the multipart body of an upload says so, its URL does not."""
    return request.query.get("uploadType") == "multipart"


def _misfortune(world: WatchedWorld, random: Random) -> None:
    """What may happen to the next two loaders."""
    jobs = [
        Fault("jobs.insert", "drop_reply"),
        Fault("jobs.insert", "drop_request"),
        Fault("jobs.insert", "late", seconds=random.random() / 5),
        Fault("jobs.insert", "late"),
        Fault("jobs.insert", "delay", seconds=_SOON),
        Fault("jobs.insert", "503", reason="backendError"),
        Fault("jobs.insert", "job_error", reason="backendError"),
        Fault("jobs.get", "delay", seconds=_SOON),
        Fault("jobs.get", "404"),
    ]
    objects = [
        Fault("objects.insert", "drop_reply", when=_of_a_state),
        Fault("objects.insert", "drop_request", when=_of_a_state),
        Fault("objects.insert", "delay", when=_of_a_state, seconds=_SOON),
        Fault("objects.download", "delay", seconds=_SOON),
        Fault("objects.delete", "drop_request"),
    ]
    for fault in random.sample(jobs, random.randint(0, 2)):
        world.bigquery.faults.add(fault)
    for fault in random.sample(objects, random.randint(0, 2)):
        world.gcs.faults.add(fault)


def _run(world: WatchedWorld) -> None:
    with contextlib.suppress(KbqError):
        world.load()


def _start_two(world: WatchedWorld, random: Random) -> None:
    """Stage some files, and run two loaders over them at the same time to their ends. Sometimes late requests arrive
    then."""
    world.stage(*(random.randint(1, 3) for _ in range(random.randint(1, 2))))
    _misfortune(world, random)
    at_once([lambda: _run(world)] * 2)
    if random.random() < 0.5:
        world.bigquery.faults.deliver_late()


def _settle(world: WatchedWorld) -> None:
    """No more faults; what is late arrives; one loader ends the work."""
    world.bigquery.faults.deliver_late()
    world.bigquery.faults.clear()
    world.gcs.faults.clear()
    world.converge()


def _wanted(world: WatchedWorld) -> dict[int, int]:
    return dict.fromkeys(range(world.files[-1].until), 1)


@pytest.mark.parametrize("seed", range(GOOGLE_SEEDS))
def test_two_loaders_started_at_once_load_every_row_once(world: WatchedWorld, seed: int) -> None:
    random, said = Random(seed), len(world.bigquery.requests)
    for _ in range(GOOGLE_STARTS):
        _start_two(world, random)
    _settle(world)
    assert world.rows() == _wanted(world)
    current = world.state()
    assert (current.parked, current.in_flight, current.mismatches) == (None, None, ())
    assert world.early == []
    assert objections(world.bigquery.requests[said:]) == []


# Without L2


class _IdsOfItsOwn(TableRun):
    """Submits jobs with ids that no other loader uses."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._own: dict[str, JobInFlight] = {}

    def own(self, in_flight: JobInFlight) -> JobInFlight:
        job_id = f"kbq-{uuid.uuid4().hex}"
        own = JobInFlight(job_id, in_flight.project, in_flight.location, in_flight.files)
        return self._own.setdefault(in_flight.job_id, own)


def _settle_own(run: _IdsOfItsOwn, current: Any, in_flight: JobInFlight, staged: Any) -> Turn:
    return _original_settle(run, current, run.own(in_flight), staged)


_original_settle = job_recovery.settle
WITHOUT_INTENT = Mutant(
    "ids of its own",
    "L2",
    ((table_loader, "TableRun", _IdsOfItsOwn), (job_recovery, "settle", _settle_own)),
)


def _doubled(world: WatchedWorld) -> Counter[int]:
    """Offsets with several rows, after a second loader found the intent of a first one, and no job: the first one's
    insertion is slow, and slower each time until they have met. Files stay, so that the first one's job finds them."""
    world.gcs.faults.add(Fault("objects.delete", "503", times=10_000))
    for seconds in (0.5, 2, 8, 32):
        inserts = Event()

        def begins(_: Request, inserts: Event = inserts) -> bool:
            inserts.set()
            return True

        world.bigquery.faults.add(Fault("jobs.insert", "delay", when=begins, seconds=seconds))
        world.stage(3)
        first = Thread(target=_run, args=(world,))
        first.start()
        inserts.wait()
        _run(world)
        first.join()
        if doubled := Counter({offset: n for offset, n in world.rows().items() if n > 1}):
            return doubled
    return Counter()


def test_two_loaders_with_ids_of_their_own_double_rows(world: WatchedWorld) -> None:
    with WITHOUT_INTENT.active():
        assert _doubled(world)


def test_two_loaders_double_rows_where_an_id_may_run_twice(world: WatchedWorld) -> None:
    world.bigquery.judge.strict_ids = False
    assert _doubled(world)
