"""A Dagster run that extracts repeatedly (KBQ_RESIDENT_SECONDS)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from kbq_assets.defs.jobs import EXTRACT_TAG
from kbq_assets.ports.engine import OnDemandEngine
from kbq_assets_tests.defs.test_sensors import origin
from kbq_assets_tests.defs.world import TABLE, TOPIC, PlatformWorld

KEY = f"{TOPIC}/0/{TABLE}"


@pytest.fixture
def world(tmp_path: Path) -> PlatformWorld:
    return PlatformWorld(tmp_path, KBQ_RESIDENT_SECONDS="60", KBQ_EXTRACT_SECONDS="10")


def at_cycles(world: PlatformWorld, monkeypatch: pytest.MonkeyPatch, *steps: Callable[[], object]) -> None:
    """Take a step before each extraction after the first."""
    sleep, left = world.clock.sleep, list(steps)

    def slept(seconds: float) -> None:
        before = world.clock.seconds // 10
        sleep(seconds)
        if world.clock.seconds // 10 > before and left:
            left.pop(0)()

    monkeypatch.setattr(world.clock, "sleep", slept)


def rows(result: dg.ExecuteInProcessResult) -> list[Any]:
    events = [e for e in result.all_events if e.is_step_materialization]
    found = [e.step_materialization_data.materialization for e in events]
    return [e.metadata["rows"].value for e in found if e.partition == KEY]


def summaries(instance: dg.DagsterInstance) -> int:
    """Extractions that were reported."""
    return len(instance.fetch_observations(dg.AssetKey("staged_files"), limit=10).records)


def test_a_run_extracts_again_and_again_and_ends_in_time(
    world: PlatformWorld, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.produce(3)
    at_cycles(world, monkeypatch, lambda: world.produce(4), lambda: None, lambda: world.produce(5))
    result = world.run("extract_job", instance)
    assert result.success
    assert rows(result) == [3, 4, 5]
    assert world.clock.seconds == pytest.approx(50), "the extraction at 60 s would begin after the time"


def test_extractions_that_found_nothing_report_nothing_but_the_first(
    world: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    result = world.run("extract_job", instance)
    assert (result.success, summaries(instance)) == (True, 1)


def test_a_stop_that_comes_later_is_reported_once(
    world: PlatformWorld, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.produce(2)
    at_cycles(world, monkeypatch, lambda: world.kafka.recreate_topic(TOPIC))
    result = world.run("extract_job", instance)
    assert (result.success, summaries(instance)) == (True, 2)


@pytest.mark.parametrize(
    ("assets", "tags"),
    [({dg.AssetKey(["staged", TOPIC])}, {}), (set(), {EXTRACT_TAG: "gs://other/kbq"})],
    ids=["by hand", "of another deployment"],
)
def test_a_run_leaves_its_slot_to_one_that_waits_for_it(
    world: PlatformWorld,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    assets: set[dg.AssetKey],
    tags: dict[str, str],
) -> None:
    waiting = dg.DagsterRun(
        job_name="__ASSET_JOB",
        asset_selection=frozenset(assets),
        status=dg.DagsterRunStatus.QUEUED,
        tags=tags,
        remote_job_origin=origin("__ASSET_JOB"),
    )
    at_cycles(world, monkeypatch, lambda: instance.add_run(waiting))
    assert world.run("extract_job", instance).success
    assert world.clock.seconds == pytest.approx(10)


def test_an_outage_fails_the_run_and_keeps_what_was_reported(
    world: PlatformWorld, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.produce(3)

    def outage() -> None:
        world.produce(3)
        world.registry.down = True

    at_cycles(world, monkeypatch, outage)
    result = world.run("extract_job", instance)
    assert (result.success, rows(result)) == (False, [3])


@pytest.mark.parametrize(
    ("job", "config"),
    [("extract_and_load", {}), ("extract_job", {"ops": {"extract": {"config": {"keys": [f"{TOPIC}/*"]}}}})],
)
def test_a_run_that_somebody_waits_for_extracts_once(
    world: PlatformWorld, instance: dg.DagsterInstance, job: str, config: dict[str, Any]
) -> None:
    world.produce(3)
    world.reopened(KBQ_RESIDENT_SECONDS="0").run("extract_job", instance)
    world.produce(4)
    assert rows(world.run(job, instance, config=config)) == [4]
    assert world.clock.seconds < 10


def test_each_extraction_opens_its_own_engine() -> None:
    opened: list[int] = []

    class Engine:
        def __init__(self) -> None:
            opened.append(len(opened))
            self.idle_slots = len(opened)

    engine = OnDemandEngine(Engine)  # type: ignore[arg-type]
    assert [engine.idle_slots, engine.idle_slots] == [1, 1]
    engine.renew()
    assert (engine.idle_slots, opened) == (2, [0, 1])
