"""Loads that die, and two loaders at once, in a real project: what needs no faults of the servers."""

from __future__ import annotations

import pytest

from kbq_assets.adapters.bigquery import BigQueryWarehouse
from kbq_assets.adapters.clock import SystemClock
from kbq_assets.core.protocol.names import TableReference
from kbq_assets_tests.contracts.object_store import at_once
from kbq_assets_tests.crashes.probes import Point
from kbq_assets_tests.google.loads import LoadWorld
from kbq_assets_tests.google.outcomes import FILE_ROWS, FILES, UNAIDED, Case, wrongs
from kbq_assets_tests.google.project.place import Place

pytestmark = pytest.mark.slow

STARTS = 5


@pytest.fixture
def world(gcp: Place, corner: str) -> LoadWorld:
    return LoadWorld(
        TableReference(corner, "t"),
        gcp.store(corner),
        lambda: gcp.store(corner),
        BigQueryWarehouse(gcp.client(), gcp.project, gcp.location),
        SystemClock(),
    )


@pytest.mark.parametrize(
    ("case", "point"),
    [(case, point) for case in UNAIDED for point in (None, *case.dies)],
    ids=lambda value: value.name if isinstance(value, Case) else str(value),
)
def test_a_death_changes_no_outcome(world: LoadWorld, case: Case, point: Point | None) -> None:
    world.stage(*[FILE_ROWS] * FILES, damaged=case.damaged)
    world.load_until(point)
    world.converge()
    world.sweep()
    assert wrongs(case, world) == []


def test_two_loaders_started_at_once_load_every_row_once(world: LoadWorld) -> None:
    for _ in range(STARTS):
        world.stage(FILE_ROWS, FILE_ROWS)
        at_once([world.load] * 2)
    world.converge()
    assert world.rows() == dict.fromkeys(range(2 * STARTS * FILE_ROWS), 1)
