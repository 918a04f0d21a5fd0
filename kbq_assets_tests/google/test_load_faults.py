"""Every way a load job can end, crossed with a loader's death, over the real clients (L3 to L5).

Fresh loaders converge; BigQuery has every staged row once but those in quarantine; the state says what the protocol
says; no staged file was deleted before its load was verified and recorded; and no request said more than was declared.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator

import pytest
from google.cloud.bigquery import Dataset

from kbq_assets.pipelines.operate.commands import propose_resume_table
from kbq_assets_tests.crashes.probes import Point
from kbq_assets_tests.google.faults import Request
from kbq_assets_tests.google.loads import Ground, WatchedWorld
from kbq_assets_tests.google.outcomes import CASES, FILE_ROWS, FILES, Case, wrongs
from kbq_assets_tests.google.servers import PROJECT, BigQueryServer, GcsServer
from kbq_assets_tests.google.shapes import objections
from kbq_assets_tests.simulation.mutants import A_NEW_ID, MUTANTS
from kbq_assets_tests.sizes import GOOGLE_NTH_DEATH

pytestmark = pytest.mark.google


@pytest.fixture(scope="module")
def ground(gcs_server: GcsServer, bigquery_server: BigQueryServer) -> Ground:
    return Ground(gcs_server, bigquery_server)


@pytest.fixture
def world(ground: Ground) -> Iterator[WatchedWorld]:
    said = len(ground.bigquery.requests)
    yield ground.world()
    ground.close()
    assert objections(ground.bigquery.requests[said:]) == []


@pytest.mark.parametrize(
    ("case", "point"),
    [
        (case, point)
        for number, case in enumerate(CASES)
        for point in (None, *case.dies[number % GOOGLE_NTH_DEATH :: GOOGLE_NTH_DEATH])
    ],
    ids=lambda value: value.name if isinstance(value, Case) else str(value),
)
def test_a_death_changes_no_outcome(world: WatchedWorld, case: Case, point: Point | None) -> None:
    assert _run(world, case, point) == []


#: Mutants of the simulator, and the outcome of a load job in which they are noticed.
RULES_REMOVED = (
    ("a new id after an unknown outcome", "late insert"),
    ("a failed job counts as loaded", "retryable error"),
    ("files are deleted before the load is recorded", "success"),
)


@pytest.mark.parametrize(("name", "outcome"), RULES_REMOVED)
def test_a_rule_removed_is_noticed(world: WatchedWorld, name: str, outcome: str) -> None:
    [mutant] = [mutant for mutant in (*MUTANTS, A_NEW_ID) if mutant.name == name]
    [case] = [case for case in CASES if case.name == outcome]
    with mutant.active():
        assert _run(world, case) != []


def _run(world: WatchedWorld, case: Case, point: Point | None = None) -> list[str]:
    """A load that may die, fresh ones after it, and what is late at last: what is wrong then."""
    world.stage(*[FILE_ROWS] * FILES, damaged=case.damaged)
    case.arrange(world)
    world.load_until(point)
    case.between(world)
    world.converge()
    world.bigquery.faults.deliver_late()
    world.converge()
    world.sweep()
    return wrongs(case, world)


def test_the_watch_notices_files_that_are_deleted_before_their_load_is_recorded(world: WatchedWorld) -> None:
    world.stage(FILE_ROWS)
    [early] = [mutant for mutant in MUTANTS if mutant.rule == "L4"]
    with early.active():
        world.load()
    assert set(world.early) == {world.files[0].path}


@pytest.fixture(scope="module")
def request_of_a_load(ground: Ground) -> Request:
    """What a load sends, with which the rules agree."""
    world = ground.world()
    world.stage(FILE_ROWS)
    world.load()
    ground.close()
    request = world.bigquery.requested("jobs.insert")[-1]
    assert objections([request]) == []
    return request


@pytest.mark.parametrize(
    ("path", "value", "reported"),
    [
        (("configuration", "load", "schemaUpdateOptions"), ["ALLOW_FIELD_ADDITION"], "is not declared"),
        (("configuration", "load", "createDisposition"), "CREATE_IF_NEEDED", "not 'CREATE_NEVER'"),
        (("configuration", "load", "useAvroLogicalTypes"), 1, "not True"),
        (("configuration", "load", "sourceUris"), [], "not 1 items"),
        (("configuration", "dryRun"), True, "is not declared"),
        (("jobReference", "location"), None, "location is missing"),
        (("jobReference", "jobId"), "kbq-1", "not kbq-"),
    ],
)
def test_a_request_that_says_anything_else_is_objected_to(
    request_of_a_load: Request, path: tuple[str, ...], value: object, reported: str
) -> None:
    request = request_of_a_load
    document = json.loads(json.dumps(request.json))
    at = document
    for name in path[:-1]:
        at = at[name]
    if value is None:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    [said] = objections([dataclasses.replace(request, json=document)])
    assert reported in said


_DAY_MS = 86_400_000


@pytest.fixture
def aged(ground: Ground) -> Iterator[Callable[..., WatchedWorld]]:
    """A world in a dataset that expires what its tables do not say."""
    before = ground.dataset

    def make(**defaults: int) -> WatchedWorld:
        ground.dataset = f"{before}_{'_'.join(defaults)}"
        dataset = Dataset(f"{PROJECT}.{ground.dataset}")
        for name, value in defaults.items():
            setattr(dataset, name, value)
        ground.bigquery.client().create_dataset(dataset, exists_ok=True)
        return ground.world()

    yield make
    ground.dataset, ground.bigquery.judge.sandbox = before, False
    ground.close()


@pytest.mark.parametrize("default", ["default_partition_expiration_ms", "default_table_expiration_ms"])
def test_rows_older_than_their_dataset_s_default_stay(
    aged: Callable[..., WatchedWorld], default: str
) -> None:
    world = aged(**{default: 30 * _DAY_MS})
    world.stage(3, 2)
    world.converge()
    assert world.rows() == dict.fromkeys(range(5), 1)


def test_a_table_whose_expiration_cannot_be_removed_is_not_loaded(aged: Callable[..., WatchedWorld]) -> None:
    world = aged(default_partition_expiration_ms=60 * _DAY_MS)
    world.bigquery.judge.sandbox = True
    world.stage(3)
    (table,) = world.load().tables
    assert (table.state, world.rows(), len(world.staged())) == ("parked", {}, 1)
    assert "60 days" in table.message and "partition_expiration_days=NULL" in table.message
    world.bigquery.judge.sandbox = False
    found = world.bigquery.client().get_table(f"{PROJECT}.{world.table}")
    found.time_partitioning.expiration_ms = None
    world.bigquery.client().update_table(found, ["time_partitioning"])
    propose_resume_table(world.store, world.table).apply()
    world.converge()
    assert world.rows() == dict.fromkeys(range(3), 1)
