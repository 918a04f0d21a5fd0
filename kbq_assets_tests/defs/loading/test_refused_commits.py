"""A commit that the store does not give to the loader: the run fails. If the store refuses it, the pages of its tables
say what to grant."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

from kbq_assets.core.observation.check_names import TABLES_LOAD
from kbq_assets.defs.extraction.engine import ENGINE
from kbq_assets_tests.defs.world import TABLE, TOPIC, PlatformWorld
from kbq_assets_tests.fakes.faults import Call, Outcome
from kbq_assets_tests.fakes.platform import with_ports

COMMIT = f"commits/{TOPIC}.json"
GRANT = f"`grant get on {COMMIT}`"
OTHER = "other.a"
FLIGHTS, FLIGHT = dg.AssetKey(["nyc", "flights"]), dg.AssetKey(["nyc", "Flight"])


class RefusingWorld(PlatformWorld):
    """A store that refuses objects only to the loader."""

    def _open(self, environ: object) -> None:
        super()._open(environ)  # type: ignore[arg-type]
        self.parts = with_ports(self.parts, load_store=lambda: self.store.view("loader"))
        engine = dg.ResourceDefinition.hardcoded_resource(self.engine)
        self.definitions = self.parts.definitions(resources={ENGINE: engine})

    def reopened(self, **environ: str) -> RefusingWorld:
        other = super().reopened(**environ)
        assert isinstance(other, RefusingWorld)
        return other

    def refuse(self, path: str, outcome: Outcome = Outcome.REFUSED) -> None:
        def fault(call: Call) -> Outcome:
            return outcome if call.operation == "get" and path == call.target else Outcome.OK

        self.store.faults = fault

    def allow(self) -> None:
        self.store.faults = None


@pytest.fixture
def world(tmp_path: Path) -> RefusingWorld:
    made = RefusingWorld(tmp_path)
    made.kafka.create_topic(OTHER)
    made.produce(2)
    made.produce(2, topic=OTHER)
    return made


def page(instance: dg.DagsterInstance, key: dg.AssetKey) -> tuple[bool, str]:
    """What the page of a table shows: whether it is loaded, and why not."""
    record = instance.get_latest_asset_check_evaluation_record(dg.AssetCheckKey(key, TABLES_LOAD))
    assert record is not None and record.evaluation is not None
    return record.evaluation.passed, record.evaluation.description or ""


def failure(result: dg.ExecuteInProcessResult) -> str:
    [event] = [event for event in result.all_events if event.is_step_failure]
    return event.step_failure_data.user_failure_data.description or ""  # type: ignore[union-attr]


def test_a_refused_commit_fails_the_load_and_shows_on_its_tables_page(
    world: RefusingWorld, instance: dg.DagsterInstance
) -> None:
    assert world.run("extract_and_load", instance).success
    assert page(instance, FLIGHTS)[0]
    for topic in (TOPIC, OTHER):
        world.produce(1, topic=topic)
    world.run("extract_job", instance)
    world = world.reopened()  # records name a table of the other topic, which has a page now
    world.refuse(COMMIT)
    result = world.run("load_job", instance)
    assert not result.success
    assert f"{COMMIT} is not loaded: get {COMMIT}: 403" in failure(result)
    assert page(instance, FLIGHTS) == (False, f"the files of {TOPIC} wait: get {COMMIT}: 403; next: {GRANT}")
    assert page(instance, FLIGHT)[0]
    world.allow()
    assert world.run("load_job", instance).success
    assert page(instance, FLIGHTS) == (True, "it is loaded")


def test_a_table_that_was_never_loaded_shows_it_too(
    world: RefusingWorld, instance: dg.DagsterInstance
) -> None:
    world.run("extract_job", instance)
    world.refuse(COMMIT)
    assert not world.run("load_job", instance).success
    assert (page(instance, FLIGHTS)[0], GRANT in page(instance, FLIGHTS)[1]) == (False, True)
    world.allow()
    assert world.run("load_job", instance).success
    assert page(instance, FLIGHTS)[0]


def test_a_commit_that_cannot_be_read_now_fails_the_load_and_other_topics_are_loaded(
    world: RefusingWorld, instance: dg.DagsterInstance
) -> None:
    world.run("extract_job", instance)
    world.refuse(COMMIT, Outcome.UNAVAILABLE)
    result = world.run("load_job", instance)
    assert not result.success
    assert f"{COMMIT} is not loaded: get {COMMIT}: no answer" in failure(result)
    assert [e.asset_key for e in result.all_events if e.is_step_materialization] == [FLIGHT]
    world.allow()
    assert world.run("load_job", instance).success
    assert page(instance, FLIGHTS) == (True, "it is loaded")


@pytest.mark.thorough
def test_a_chosen_table_is_not_shown_as_loaded_while_its_commit_is_refused(
    world: RefusingWorld, instance: dg.DagsterInstance
) -> None:
    assert world.run("extract_and_load", instance).success
    world = world.reopened()
    world.refuse(COMMIT)
    job = dg.define_asset_job("some", selection=[FLIGHTS])
    others = dg.define_asset_job("others", selection=[FLIGHT])
    definitions = dg.Definitions.merge(world.definitions, dg.Definitions(jobs=[job, others]))
    refused, done = (
        definitions.resolve_job_def(name).execute_in_process(instance=instance, raise_on_error=False)
        for name in ("some", "others")
    )
    assert (refused.success, done.success) == (False, True)
    assert [e for e in refused.all_events if e.is_step_materialization] == []
    assert [e.asset_key for e in done.all_events if e.is_step_materialization] == [FLIGHT]
    world.allow()
    again = definitions.resolve_job_def("some").execute_in_process(instance=instance)
    assert [e.asset_key for e in again.all_events if e.is_step_materialization] == [FLIGHTS]


def test_kbq_check_names_the_tables_whose_files_wait(
    world: RefusingWorld, instance: dg.DagsterInstance
) -> None:
    world.run("extract_and_load", instance)
    world.refuse(COMMIT)
    failed = [r for r in world.reopened().parts.observer.checks().failures if r.check == TABLES_LOAD]
    assert [(r.subject, r.commands) for r in failed] == [(TABLE, (GRANT.strip("`"),))]
