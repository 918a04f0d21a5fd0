"""The ways in which a load job can end, as cases: the fault, where a loader may die, and the conditions afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kbq_assets.core.loading.tables import columns_of
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.ports.warehouse import LoadJob
from kbq_assets_tests.contracts.warehouse import SCHEMA
from kbq_assets_tests.crashes.probes import Point
from kbq_assets_tests.google.faults import Fault, Request
from kbq_assets_tests.google.loads import OPTIONS, LoadWorld, WatchedWorld

#: Of each file; there are four.
FILE_ROWS = 3
FILES = 4
_SIX_HOURS_MS = 6 * 3600 * 1000

INSERT, CANCEL, BURN = "warehouse.insert_job", "warehouse.cancel_job, before", "warehouse.burn_job"
GET, PROBE = "warehouse.get_job, before", "warehouse.probe, before"
SWAP, COPY, DELETE = "store.swap tables", "store.copy staging", "store.delete_many, next"


@dataclass(frozen=True)
class Case:
    """``arrange`` runs before the run that may die, and ``between`` after it. Late calls arrive after both.

    ``dies`` are the points at which it dies, with one test for each. ``missing`` are the places of files that are not
    loaded in the end.
    """

    name: str
    dies: tuple[Point, ...]
    arrange: Callable[[WatchedWorld], object] = lambda world: None
    between: Callable[[WatchedWorld], object] = lambda world: None
    damaged: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    parked: str = ""
    mismatch: tuple[int, int] | None = None


def around(call: str, nth: int = 1) -> tuple[Point, Point]:
    """Before a call leaves, and after it was applied."""
    return Point(f"{call}, before", nth), Point(f"{call}, after", nth)


def strike(*faults: Fault) -> Callable[[WatchedWorld], None]:
    """Arm faults of BigQuery."""

    def arrange(world: WatchedWorld) -> None:
        for fault in faults:
            world.bigquery.faults.add(fault)

    return arrange


def _deliver(world: WatchedWorld) -> None:
    """What is late arrives, where the last loader was out of luck throughout: its job starts now."""
    world.bigquery.faults.deliver_late()
    world.bigquery.faults.clear()


def late_until(nth: int, *faults: Fault) -> Callable[[WatchedWorld], None]:
    """Arm faults; what is late arrives just before the ``nth`` insertion, when the files are still there to load."""

    def arrange(world: WatchedWorld) -> None:
        strike(*faults)(world)
        seen: list[Request] = []

        def watch(request: Request) -> None:
            if request.method == "jobs.insert":
                seen.append(request)
                if len(seen) == nth:
                    world.bigquery.faults.deliver_late()

        world.bigquery.watchers.append(watch)

    return arrange


def _hide_once(world: WatchedWorld) -> None:
    """A job that is there is not found, once."""
    inserted = world.bigquery.requests

    def is_inserted(request: Request) -> bool:
        job_id = request.path.rpartition("/")[2]
        return any(r.json["jobReference"]["jobId"] == job_id for r in inserted if r.method == "jobs.insert")

    world.bigquery.faults.add(Fault("jobs.get", "404", when=is_inserted))


def _fly_unseen(world: WatchedWorld) -> None:
    """A loader submits and goes; the next one does not find its job at first."""
    world.bigquery.hold_jobs()
    world.load(wait_seconds=0)
    world.bigquery.hold_jobs(False)
    _hide_once(world)


def _fly_stuck(world: WatchedWorld) -> None:
    """A job that a loader left behind runs for six hours, and does not end."""
    world.bigquery.faults.add(Fault("jobs.insert", "job_stuck"))
    world.load(wait_seconds=0)
    key = world.key(world.in_flight().job_id)
    created = int(world.job(key.job_id)["statistics"]["creationTime"]) - _SIX_HOURS_MS - 60_000
    world.bigquery.judge.ledger.update(key, statistics={"creationTime": str(created)})


def _taken_by_another(world: WatchedWorld) -> None:
    """Someone else uses the id of the job in flight, for other files and another table."""
    world.bigquery.faults.add(Fault("jobs.insert", "503", times=10))
    world.load()
    world.bigquery.faults.clear()
    other = TableReference(world.table.dataset, f"{world.table.table}_other")
    world.warehouse.create_table(other, columns_of(SCHEMA), OPTIONS)
    in_flight, uri = world.in_flight(), world.uri(world.files[0])
    job = LoadJob(
        in_flight.job_id, in_flight.project, in_flight.location, other, (uri,), SCHEMA, OPTIONS.labels
    )
    world.warehouse.insert_job(job)
    while world.job(job.job_id)["status"]["state"] != "DONE":
        time.sleep(0.02)
    _hide_once(world)


def _of_the_table(request: Request) -> bool:
    """A load of the table itself, not a probe."""
    load: dict[str, Any] = request.json["configuration"].get("load", {})
    return bool(load) and not load["destinationTable"]["tableId"].startswith("_kbq_probe_")


LATE = Fault("jobs.insert", "late")
FAILS = Fault("jobs.insert", "job_error", reason="backendError", times=2)
BROKEN = Fault("jobs.insert", "job_error", reason="invalid", times=50, when=_of_the_table)
#: Without faults: any warehouse can do them.
UNAIDED = (
    Case("success", (*around(INSERT), *around(SWAP), *around(SWAP, 2), Point(DELETE, 2))),
    Case("permanent error of one file", (Point(PROBE, 2), *around(COPY), *around(SWAP, 2), Point(f"{INSERT}, after", 2),
         Point(f"{SWAP}, after", 3), Point(DELETE, 4)), damaged=(1,), missing=(1,)),
)  # fmt: skip
CASES = (
    *UNAIDED,
    Case("lost reply", (Point(f"{INSERT}, before", 1), Point(GET, 2)), strike(Fault("jobs.insert", "drop_reply"))),
    Case("late insert", (Point(GET, 2), Point(f"{INSERT}, before", 2), Point(GET, 3)), late_until(2, LATE)),
    Case("late insert of a loader that gave up", (Point(GET, 2), Point(f"{INSERT}, before", 3)),
         strike(Fault("jobs.insert", "late", times=10)), _deliver),
    Case("late insert of an id that was given up", (*around(BURN), *around(SWAP, 2), *around(SWAP, 3)),
         late_until(4, LATE, Fault("jobs.insert", "400", reason="invalid"))),
    Case("404 after insert", (Point(f"{INSERT}, after", 1), Point(f"{INSERT}, before", 2), Point(GET, 3)), _hide_once),
    Case("409, the same configuration", (Point(f"{INSERT}, before", 1), Point(GET, 2)), _fly_unseen),
    Case("409, another configuration", (Point(f"{INSERT}, before", 1), Point(GET, 2), *around(SWAP)),
         _taken_by_another, missing=(0, 1, 2, 3), parked="foreign_job"),
    Case("retryable error", (Point(f"{INSERT}, after", 1), *around(SWAP, 2), Point(f"{INSERT}, before", 2)),
         strike(FAILS)),
    Case("permanent error of no file", (Point(f"{INSERT}, after", 1), Point(f"{SWAP}, after", 2)), strike(BROKEN),
         missing=(0, 1, 2, 3), parked="load_failed"),
    Case("stuck job", (Point(CANCEL, 1), Point(GET, 2), *around(SWAP)), _fly_stuck),
    Case("other output rows", around(SWAP, 2), strike(Fault("jobs.insert", "job_rows")),
         mismatch=(FILES * FILE_ROWS, FILES * FILE_ROWS + 1)),
)  # fmt: skip


def wrongs(case: Case, world: LoadWorld) -> list[str]:
    """What is not as the protocol says, after all loaders have ended."""
    current = world.state()
    lost = {world.files[place].path for place in case.missing}
    expected = {n: 1 for f in world.files if f.path not in lost for n in range(f.name.first_offset, f.until)}
    left = set() if not case.parked else {file.path for file in world.files}
    quarantined = set() if case.parked else lost
    judged = {
        "rows": (world.rows(), expected),
        "parked": (current.parked.reason if current.parked else "", case.parked),
        "mismatches": ([(m.expected, m.actual) for m in current.mismatches], _listed(case.mismatch)),
        "quarantined": ({bad.file.path for bad in current.quarantined}, quarantined),
        "copies": (world.quarantined(), quarantined),
        "files left": (world.staged(), left),
        "flight": (current.in_flight is not None, case.parked == "foreign_job"),
        "marks": ([file.path for file in world.files if not current.is_loaded(file)], sorted(left)),
        "deleted before loaded": (world.early, []),
    }
    return [f"{name}: {found}, not {wanted}" for name, (found, wanted) in judged.items() if found != wanted]


def _listed(mismatch: tuple[int, int] | None) -> list[tuple[int, int]]:
    return [mismatch] if mismatch else []
