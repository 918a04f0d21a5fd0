"""Dagster's daemon reports failed runs, and all other problems and news."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from kbq_assets.core.errors import Unavailable
from kbq_assets.core.observation.check_names import COUNTS_AGREE
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.defs.extraction.engine import ENGINE
from kbq_assets.extras.notices.defs import NOBODY, failed_run, runs_of
from kbq_assets.worker.task import UnitTask
from kbq_assets_tests.defs.world import TABLE, TOPIC, PlatformWorld
from kbq_assets_tests.fakes.notifier import FakeNotifier
from kbq_assets_tests.fakes.platform import with_ports

#: Dagster itself calls some arguments beta.
pytestmark = pytest.mark.filterwarnings("ignore::dagster.BetaWarning")

SENSORS = ("run_failure_sensor", "notice_sensor")
NOTIFIED = {"KBQ_NOTIFY": "webhook:http://127.0.0.1/x", "KBQ_UI_URL": "https://dagster.example.com/"}
FAILED = "error: failed_run: extract_job"
NEW = f"info: new_table: {TABLE}"
DISAGREE = "error: warehouse_counts_agree: the warehouse"


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    """A Dagster instance in memory."""
    with dg.DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


class NotifiedWorld(PlatformWorld):
    """A platform whose notifier is a fake."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, 2, 500, **NOTIFIED)
        self.notifier = FakeNotifier()
        self.parts = with_ports(self.parts, notifiers=lambda: (self.notifier.port,))
        engine = dg.ResourceDefinition.hardcoded_resource(self.engine)
        self.definitions = self.parts.definitions(resources={ENGINE: engine})

    def tick(self, instance: dg.DagsterInstance) -> dg.SensorResult:
        """One tick of the notice sensor."""
        sensor = self.definitions.resolve_sensor_def("notice_sensor")
        with dg.build_sensor_context(instance=instance, definitions=self.definitions) as context:
            result = sensor(context)
        assert isinstance(result, dg.SensorResult)
        return result

    def fail(self, instance: dg.DagsterInstance, **tags: str) -> str:
        """A run that fails, as the run-failure sensor sees it; what that shows."""
        self.kafka.down = True
        result = self.run("extract_job", instance, tags=tags)
        self.kafka.down = False
        assert not result.success
        return self.react(instance, result)

    def react(self, instance: dg.DagsterInstance, result: dg.ExecuteInProcessResult) -> str:
        """The run-failure sensor over one run."""
        sensor = self.definitions.resolve_sensor_def("run_failure_sensor")
        context = dg.build_run_status_sensor_context(
            "run_failure_sensor", result.get_run_failure_event(), instance, result.dagster_run
        ).for_run_failure()
        reaction = sensor(context)
        assert isinstance(reaction, dg.SkipReason)
        return reaction.skip_message or ""


@pytest.fixture
def world(tmp_path: Path) -> NotifiedWorld:
    return NotifiedWorld(tmp_path)


def test_sensors_run_by_default_if_there_is_a_notifier(world: NotifiedWorld) -> None:
    for name in SENSORS:
        sensor = world.definitions.resolve_sensor_def(name)
        assert sensor.default_status == dg.DefaultSensorStatus.RUNNING
        assert sensor.minimum_interval_seconds == 60


def test_without_a_notifier_they_are_off(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    plain = PlatformWorld(tmp_path)
    for name in SENSORS:
        assert plain.definitions.resolve_sensor_def(name).default_status == dg.DefaultSensorStatus.STOPPED
    plain.kafka.down = True
    assert NotifiedWorld.react(plain, instance, plain.run("extract_job", instance)) == NOBODY  # type: ignore[arg-type]


# Failed runs ----------------------------------------------------------------------------------------------------------


def test_a_failed_run_is_reported_with_job_id_error_and_link(
    world: NotifiedWorld, instance: dg.DagsterInstance
) -> None:
    assert FAILED in world.fail(instance)
    [message] = world.notifier.taken
    run = instance.get_runs(limit=1)[0]
    [item] = message.items
    assert item.title == FAILED
    assert item.text.startswith(f"run {run.run_id[:8]}: ")
    assert "Unavailable: the broker is down" in item.text
    assert "next: start it" in item.text
    assert item.link == f"https://dagster.example.com/runs/{run.run_id}"


def test_an_error_of_ours_is_reported_before_its_cause(
    world: NotifiedWorld, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    def topics() -> None:
        try:
            raise ValueError("a client's words")
        except ValueError as error:
            raise Unavailable("the broker is away", next_step="start it") from error

    monkeypatch.setattr(world.kafka, "topics", topics)
    world.react(instance, world.run("extract_job", instance))
    [item] = world.notifier.taken[0].items
    assert "Unavailable: the broker is away" in item.text
    assert "a client's words" not in item.text


def test_of_a_job_that_keeps_failing_the_first_run_is_reported(
    world: NotifiedWorld, instance: dg.DagsterInstance
) -> None:
    for _ in range(3):
        world.fail(instance)
    assert world.notifier.titles == [FAILED]
    assert "already reported" in world.fail(instance)
    world.produce(1)
    assert world.run("extract_job", instance).success
    world.fail(instance)
    assert world.notifier.titles == [FAILED]


def test_a_new_failure_is_reported_although_the_job_failed_again_before_the_sensor_looked(
    world: NotifiedWorld, instance: dg.DagsterInstance
) -> None:
    world.fail(instance)
    assert world.notifier.titles == [FAILED]
    world.produce(1)
    assert world.run("extract_job", instance).success
    world.kafka.down = True
    failed = [world.run("extract_job", instance) for _ in range(2)]
    for result in failed:
        world.react(instance, result)
    assert world.notifier.titles == [FAILED]


def test_a_failure_that_could_not_be_sent_is_a_red_tick_and_the_next_one_is_sent(
    world: NotifiedWorld, instance: dg.DagsterInstance
) -> None:
    world.notifier.error = Unavailable("the channel is gone")
    with pytest.raises(Unavailable, match="the channel is gone"):
        world.fail(instance)
    world.notifier.error = None
    world.fail(instance)
    assert world.notifier.titles == [FAILED]


def test_a_failure_is_reported_while_the_store_is_away(
    world: NotifiedWorld, instance: dg.DagsterInstance
) -> None:
    world.store.down = True
    world.react(instance, world.run("extract_job", instance))
    assert "the store is down" in world.notifier.taken[0].text
    with pytest.raises(Unavailable):
        world.tick(instance)


def test_a_run_that_dagster_retries_is_not_reported(
    world: NotifiedWorld, instance: dg.DagsterInstance
) -> None:
    assert "Dagster retries" in world.fail(instance, **{"dagster/will_retry": "true"})
    assert world.notifier.titles == []


def test_a_backfill_is_reported_once(world: NotifiedWorld, instance: dg.DagsterInstance) -> None:
    world.fail(instance, **{"dagster/backfill": "abcd"})
    world.fail(instance, **{"dagster/backfill": "abcd"})
    assert world.notifier.titles == ["error: failed_run: backfill abcd"]


def test_a_failed_run_of_the_projects_own_job_is_not_reported(
    world: NotifiedWorld, instance: dg.DagsterInstance
) -> None:
    @dg.op
    def fail() -> None:
        raise RuntimeError("not KBQ's")

    @dg.job
    def report_job() -> None:
        fail()

    result = report_job.execute_in_process(instance=instance, raise_on_error=False)
    assert "not of KBQ" in world.react(instance, result)
    assert world.notifier.titles == []


def test_runs_of_kbqs_jobs_assets_and_checks_are_reported(world: NotifiedWorld) -> None:
    table, other = dg.AssetKey(TABLE.split(".")), dg.AssetKey("report")

    def run(job: str, *assets: dg.AssetKey, check: dg.AssetKey | None = None) -> dg.DagsterRun:
        checks = frozenset({dg.AssetCheckKey(check, "a_check")}) if check else None
        return dg.DagsterRun(job_name=job, asset_selection=frozenset(assets), asset_check_selection=checks)

    is_reported = runs_of(world.definitions)
    assert all(
        map(is_reported, (run("load_job"), run("__ASSET_JOB", table, other), run("__ASSET_JOB", check=table)))
    )
    assert not any(
        map(is_reported, (run("report_job"), run("__ASSET_JOB", other), run("__ASSET_JOB", check=other)))
    )


def test_a_materialization_is_named_by_its_assets() -> None:
    assets = frozenset({dg.AssetKey("staged_files")})
    run = dg.DagsterRun(job_name="__ASSET_JOB", run_id="0123456789", asset_selection=assets)
    failed = failed_run(run, "boom", "")
    assert failed.subject == "materialization of staged_files (01234567)"
    assert (failed.text, failed.link) == ("run 01234567: boom", "")


# What is wrong or new -------------------------------------------------------------------------------------------------


def test_a_stop_is_reported_by_the_daemon(world: NotifiedWorld, instance: dg.DagsterInstance) -> None:
    world.produce(5)
    world.run("extract_job", instance)
    world.produce(3)
    world.kafka.delete_before(TopicPartition(TOPIC, 0), 8)
    stopped = f"error: no_partition_is_stopped: {TOPIC}"
    assert world.tick(instance).skip_reason == dg.SkipReason(f"fake:fake-1: {stopped}; dagster: {stopped}")
    nothing = dg.SkipReason("fake:fake-1: nothing new; dagster: nothing new")
    assert world.tick(instance).skip_reason == nothing


def test_news_is_an_observation_of_the_tables_asset(
    world: NotifiedWorld, instance: dg.DagsterInstance
) -> None:
    world.produce(3)
    world.run("extract_and_load", instance)
    [event] = world.tick(instance).asset_events
    assert isinstance(event, dg.AssetObservation)
    assert event.asset_key == dg.AssetKey(TABLE.split("."))
    assert event.metadata["news"] == dg.MetadataValue.text("new_table")
    assert world.notifier.titles == [NEW]
    assert world.tick(instance).asset_events == []


def test_counts_that_do_not_agree_are_reported_until_they_do(
    world: NotifiedWorld, instance: dg.DagsterInstance
) -> None:
    world.produce(3)
    world.run("extract_and_load", instance)
    row = world.warehouse.stored[TableReference.parse(TABLE)].rows.pop()
    world.run("reconcile_job", instance)
    world.tick(instance)
    assert sorted(world.notifier.titles) == sorted([NEW, DISAGREE])
    world.tick(instance)
    assert world.notifier.titles == []
    world.warehouse.stored[TableReference.parse(TABLE)].rows.append(row)
    world.run("reconcile_job", instance)
    world.tick(instance)
    assert world.notifier.titles == [DISAGREE.replace("error", "resolved")]


def test_a_count_that_has_no_result_yet_ends_no_problem(
    world: NotifiedWorld, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.produce(3)
    world.run("extract_and_load", instance)
    world.warehouse.stored[TableReference.parse(TABLE)].rows.pop()
    world.run("reconcile_job", instance)
    world.tick(instance)
    assert DISAGREE in world.notifier.titles

    def summary(*args: object) -> object:
        """What the daemon sees while the count runs; then the count fails."""
        world.tick(instance)
        raise Unavailable("the warehouse is down")

    monkeypatch.setattr(world.warehouse, "kafka_summary", summary)
    selection = dg.AssetSelection.checks(dg.AssetCheckKey(dg.AssetKey("warehouse_tables"), COUNTS_AGREE))
    job = dg.define_asset_job("some", selection=selection)
    definitions = dg.Definitions.merge(world.definitions, dg.Definitions(jobs=[job]))
    some = definitions.resolve_job_def("some")
    assert not some.execute_in_process(instance=instance, raise_on_error=False).success
    world.tick(instance)
    assert world.notifier.titles == []


def test_a_notifier_that_fails_is_a_red_tick(world: NotifiedWorld, instance: dg.DagsterInstance) -> None:
    world.produce(3)
    world.run("extract_and_load", instance)
    world.notifier.error = Unavailable("the channel is gone")
    with pytest.raises(Unavailable, match="the channel is gone"):
        world.tick(instance)
    # Dagster's own ledger has the news now, so the table's page must have it too.
    [event] = instance.fetch_observations(dg.AssetKey(TABLE.split(".")), limit=9).records
    assert event.asset_observation is not None
    assert event.asset_observation.metadata["news"] == dg.MetadataValue.text("new_table")


def test_tasks_get_nothing_of_the_notifiers(world: NotifiedWorld) -> None:
    assert UnitTask(world.parts.deployment.settings).settings.extras.notify.notifiers == ()
