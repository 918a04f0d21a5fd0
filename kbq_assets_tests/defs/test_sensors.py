"""Sensors ask core what is pending, say why they skip, and never get stuck."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import dagster as dg
import pytest
from dagster._core.remote_origin import (
    RegisteredCodeLocationOrigin,
    RemoteJobOrigin,
    RemoteRepositoryOrigin,
)

from kbq_assets.core.errors import Unavailable
from kbq_assets.core.protocol.names import TableReference, commit_path
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.defs import sensors
from kbq_assets.defs.jobs import EXTRACT_TAG, LOAD_TAG
from kbq_assets.defs.runs import tick
from kbq_assets.ports.object_store import StoredObject
from kbq_assets.ports.warehouse import LoadJob
from kbq_assets_tests.defs.world import TABLE, TOPIC, PlatformWorld
from kbq_assets_tests.fakes.clock import FakeClock
from kbq_assets_tests.sizes import thinned


def evaluate(
    world: PlatformWorld, name: str, instance: dg.DagsterInstance, cursor: str | None = None
) -> dg.SensorResult:
    """One tick."""
    sensor = world.definitions.resolve_sensor_def(name)
    with dg.build_sensor_context(instance=instance, cursor=cursor, definitions=world.definitions) as context:
        result = sensor(context)
    assert isinstance(result, dg.SensorResult)
    return result


def reason(result: dg.SensorResult) -> str:
    """Why a tick asked for nothing."""
    assert not result.run_requests
    assert isinstance(result.skip_reason, dg.SkipReason)
    return result.skip_reason.skip_message or ""


def staging(world: PlatformWorld) -> str:
    """The value of the tags of the world's runs."""
    return world.parts.deployment.settings.staging_url


def add_run(instance: dg.DagsterInstance, status: dg.DagsterRunStatus, tags: dict[str, str]) -> None:
    """A run as the daemon would see it."""
    instance.add_run(
        dg.DagsterRun(job_name="a_job", status=status, tags=tags, remote_job_origin=origin("a_job"))
    )


def origin(job: str) -> RemoteJobOrigin:
    """Where a queued run's job would be found."""
    return RemoteJobOrigin(RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("kbq"), "__repository__"), job)


def test_new_records_request_an_extraction(world: PlatformWorld, instance: dg.DagsterInstance) -> None:
    world.produce(1)
    assert len(evaluate(world, "extraction_sensor", instance).run_requests or ()) == 1


def test_nothing_new_is_reported(world: PlatformWorld, instance: dg.DagsterInstance) -> None:
    world.produce(1)
    world.run("extract_job", instance)
    assert "up to the broker's end" in reason(evaluate(world, "extraction_sensor", instance))


def test_a_new_topic_is_new_work(world: PlatformWorld, instance: dg.DagsterInstance) -> None:
    world.run("extract_job", instance)
    world.kafka.create_topic("other.empty")
    assert evaluate(world, "extraction_sensor", instance).run_requests


def test_a_broker_that_is_down_is_reported(world: PlatformWorld, instance: dg.DagsterInstance) -> None:
    world.kafka.down = True
    assert reason(evaluate(world, "extraction_sensor", instance))


def test_a_commit_that_the_store_does_not_give_now_is_not_taken_for_nothing_new(
    world: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    world.produce(1)
    world.run("extract_job", instance)
    read = world.store.get

    def get(path: str) -> StoredObject:
        if path == commit_path(TOPIC, 0):
            raise Unavailable("no answer")
        return read(path)

    with patch.object(world.store, "get", get):
        assert "could not be planned" in reason(evaluate(world, "extraction_sensor", instance))
        world.kafka.create_topic("other.empty")
        assert evaluate(world, "extraction_sensor", instance).run_requests


IN_PROGRESS = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]


@pytest.mark.parametrize("status", IN_PROGRESS)
@pytest.mark.parametrize(
    ("sensor", "tag"), [("extraction_sensor", EXTRACT_TAG), ("done_file_sensor", LOAD_TAG)]
)
def test_a_sensor_waits_for_the_run_under_way(
    world: PlatformWorld, instance: dg.DagsterInstance, sensor: str, tag: str, status: dg.DagsterRunStatus
) -> None:
    world.produce(1)
    world.run("extract_job", instance)
    world.produce(1)
    assert evaluate(world, sensor, instance).run_requests
    add_run(instance, status, {tag: staging(world)})
    assert "under way" in reason(evaluate(world, sensor, instance))


@pytest.mark.parametrize("status", [dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.SUCCESS])
def test_a_run_that_ended_holds_nothing_up(
    world: PlatformWorld, instance: dg.DagsterInstance, status: dg.DagsterRunStatus
) -> None:
    world.produce(1)
    add_run(instance, status, {EXTRACT_TAG: staging(world)})
    assert evaluate(world, "extraction_sensor", instance).run_requests


@pytest.mark.parametrize("status", [dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.SUCCESS])
def test_runs_of_another_deployment_hold_nothing_up(
    world: PlatformWorld, instance: dg.DagsterInstance, status: dg.DagsterRunStatus
) -> None:
    """Two code locations of one Dagster instance. The other one extracts and loads more often."""
    world.produce(1)
    world.run("extract_job", instance)
    world.produce(1)
    add_run(instance, status, {EXTRACT_TAG: "gs://other/kbq", LOAD_TAG: "gs://other/kbq"})
    for sensor in ("extraction_sensor", "done_file_sensor"):
        assert evaluate(world, sensor, instance).run_requests


def test_a_materialisation_started_by_hand_counts_as_under_way(
    world: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    world.produce(1)
    run = dg.DagsterRun(
        job_name="__ASSET_JOB",
        asset_selection=frozenset({dg.AssetKey(["staged", TOPIC])}),
        status=dg.DagsterRunStatus.QUEUED,
        remote_job_origin=origin("__ASSET_JOB"),
    )
    instance.add_run(run)
    assert "under way" in reason(evaluate(world, "extraction_sensor", instance))


def test_a_stopped_partition_is_shown_once_without_a_run(
    world: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    world.produce(5)
    world.run("extract_job", instance)
    world.produce(5)
    world.kafka.delete_before(TopicPartition(TOPIC, 0), 8)
    first = evaluate(world, "extraction_sensor", instance)
    assert "1 stopped partition waits" in reason(first)
    checks = [event for event in first.asset_events if isinstance(event, dg.AssetCheckEvaluation)]
    assert {check.asset_key.to_user_string(): check.passed for check in checks} == {
        "staged_files": False,
        f"staged/{TOPIC}": False,
        "nyc/flights": False,
    }
    assert evaluate(world, "extraction_sensor", instance, first.cursor).asset_events == []


def test_committed_files_request_a_load(world: PlatformWorld, instance: dg.DagsterInstance) -> None:
    world.produce(1)
    world.run("extract_job", instance)
    [request] = evaluate(world, "done_file_sensor", instance).run_requests or ()
    world.run("load_job", instance, tags=request.tags)
    assert "every committed file is loaded" in reason(evaluate(world, "done_file_sensor", instance))


def test_the_run_key_comes_from_the_pending_files_not_from_the_cursor(
    world: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    world.produce(1)
    world.run("extract_job", instance)
    [first] = evaluate(world, "done_file_sensor", instance).run_requests or ()
    [again] = evaluate(world, "done_file_sensor", instance, cursor="another").run_requests or ()
    world.produce(1)
    world.run("extract_job", instance)
    [more] = evaluate(world, "done_file_sensor", instance).run_requests or ()
    assert first.run_key == again.run_key
    assert first.run_key != more.run_key


def test_files_that_a_load_left_are_asked_for_again_ever_more_slowly(
    world: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    world.produce(1)
    world.run("extract_job", instance)
    [request] = evaluate(world, "done_file_sensor", instance).run_requests or ()
    digest = request.tags[sensors.PENDING_TAG]
    waits = []
    for _ in range(7):
        add_run(instance, dg.DagsterRunStatus.FAILURE, {sensors.PENDING_TAG: digest})
        [record] = instance.get_run_records(dg.RunsFilter(tags={sensors.PENDING_TAG: digest}), limit=1)
        created = record.create_timestamp.timestamp()
        waits.append(sensors.find_tries(instance, digest, created).wait)
    assert "pending; the next in" in reason(evaluate(world, "done_file_sensor", instance))
    assert waits == pytest.approx([30, 60, 120, 240, 480, 600, 600])
    assert sensors.find_tries(instance, digest, created + 600).wait == 0


def test_deleting_old_runs_brings_no_run_key_back(
    world: PlatformWorld, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sensors, "FIRST_RETRY_SECONDS", 0.0)
    world.produce(1)
    world.run("extract_job", instance)
    keys = []
    for _ in range(4):
        [request] = evaluate(world, "done_file_sensor", instance).run_requests or ()
        keys.append(request.run_key)
        add_run(instance, dg.DagsterRunStatus.FAILURE, dict(request.tags))
        [*_, oldest] = instance.get_run_records(dg.RunsFilter(tags=request.tags))
        if len(keys) > 1:
            instance.delete_run(oldest.dagster_run.run_id)
    # Dagster drops a request whose key any run has had.
    assert len(set(keys)) == 4


@pytest.mark.parametrize(
    "cursor", thinned([None, "", "another", "commits/zzz.json", "0123456789abcdef zzz", "\x00 \x00"])
)
def test_a_lost_or_wrong_cursor_changes_nothing(
    world: PlatformWorld, instance: dg.DagsterInstance, cursor: str | None
) -> None:
    assert evaluate(world, "extraction_sensor", instance, cursor).run_requests
    world.produce(3)
    world.run("extract_job", instance)
    assert "broker's end" in reason(evaluate(world, "extraction_sensor", instance, cursor))
    assert evaluate(world, "done_file_sensor", instance, cursor).run_requests
    world.run("load_job", instance)
    assert "is loaded" in reason(evaluate(world, "done_file_sensor", instance, cursor))
    world.produce(1)
    assert evaluate(world, "extraction_sensor", instance, cursor).run_requests


DONE = "done/nyc.flights.v1.0.nyc.flights.1.{}.done"


def test_a_new_done_file_requests_a_load_once(world: PlatformWorld, instance: dg.DagsterInstance) -> None:
    idle = evaluate(world, "done_file_sensor", instance)
    world.produce(1)
    world.run("extract_job", instance)
    first = evaluate(world, "done_file_sensor", instance, idle.cursor)
    [request] = first.run_requests or ()
    assert (request.run_key or "").startswith("done-")
    world.run("load_job", instance, tags=request.tags)
    assert "every committed file is loaded" in reason(
        evaluate(world, "done_file_sensor", instance, first.cursor)
    )


def test_a_request_that_dagster_did_not_note_has_the_same_run_key_again(
    world: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    idle = evaluate(world, "done_file_sensor", instance)
    world.produce(1)
    world.run("extract_job", instance)
    [first] = evaluate(world, "done_file_sensor", instance, idle.cursor).run_requests or ()
    [again] = evaluate(world, "done_file_sensor", instance, idle.cursor).run_requests or ()
    assert first.run_key == again.run_key


@pytest.mark.parametrize("offsets", ["90000.99999", "0.0"])
def test_an_operators_done_file_requests_one_load_even_if_nothing_is_pending(
    world: PlatformWorld, instance: dg.DagsterInstance, offsets: str
) -> None:
    """Its offsets do not matter: the commit decides what is loaded."""
    world.produce(9)
    world.run("extract_job", instance)
    world.run("load_job", instance)
    at_rest = evaluate(world, "done_file_sensor", instance)
    assert reason(at_rest)
    world.store.create(DONE.format(offsets), b"")
    asked = evaluate(world, "done_file_sensor", instance, at_rest.cursor)
    if asked.skip_reason:  # a load has just been: the next tick after the pause asks
        assert "KBQ_LOAD_SECONDS" in reason(asked)
        assert asked.cursor == at_rest.cursor
        with dg.DagsterInstance.ephemeral() as later:
            asked = evaluate(world, "done_file_sensor", later, at_rest.cursor)
    [request] = asked.run_requests or ()
    rows = world.warehouse.rows(TableReference.parse(TABLE))
    assert world.run("load_job", instance, tags=request.tags).success
    assert world.warehouse.rows(TableReference.parse(TABLE)) == rows
    assert "every committed file is loaded" in reason(
        evaluate(world, "done_file_sensor", instance, asked.cursor)
    )


def test_a_done_file_written_again_is_new(world: PlatformWorld, instance: dg.DagsterInstance) -> None:
    world.store.create(DONE.format("0.0"), b"")
    seen = evaluate(world, "done_file_sensor", instance)
    assert reason(seen)
    world.store.delete(DONE.format("0.0"))
    gone = evaluate(world, "done_file_sensor", instance, seen.cursor)
    assert reason(gone)
    world.store.create(DONE.format("0.0"), b"")
    assert evaluate(world, "done_file_sensor", instance, gone.cursor).run_requests


def test_without_done_files_a_poll_finds_what_is_committed(
    world: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    idle = evaluate(world, "done_file_sensor", instance)
    world.produce(1)
    world.run("extract_job", instance)
    for entry in list(world.store.list("done/")):
        world.store.delete(entry.path)
    [request] = evaluate(world, "done_file_sensor", instance, idle.cursor).run_requests or ()
    assert sensors.PENDING_TAG in request.tags


def test_loads_are_requested_no_more_often_than_the_setting_says(
    world: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    own = {LOAD_TAG: staging(world)}
    add_run(instance, dg.DagsterRunStatus.SUCCESS, own)
    world.produce(1)
    world.run("extract_job", instance)
    early = evaluate(world, "done_file_sensor", instance, "kept")
    assert "a load is due in 1" in reason(early)
    assert early.cursor == "kept"
    [record] = instance.get_run_records(dg.RunsFilter(tags=own))
    created = record.create_timestamp.timestamp()
    assert sensors.seconds_to_next_load(instance, own, 120, created + 119) == pytest.approx(1)
    assert sensors.seconds_to_next_load(instance, own, 120, created + 121) < 0


def test_a_job_that_a_dead_run_left_is_recorded_by_the_next(
    world: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    world.produce(3)
    world.run("extract_job", instance)
    insert = world.warehouse.insert_job

    def dies(job: LoadJob) -> None:
        raise KeyboardInterrupt

    world.warehouse.insert_job = dies  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        world.parts.loader.load()
    world.warehouse.insert_job = insert  # type: ignore[method-assign]
    assert world.parts.loader.plan().batches == ()
    [request] = evaluate(world, "done_file_sensor", instance).run_requests or ()
    world.run("load_job", instance, tags=request.tags)
    assert "every committed file is loaded" in reason(evaluate(world, "done_file_sensor", instance))
    assert world.warehouse.duplicates() == {}


def test_a_store_that_is_out_of_reach_is_reported(world: PlatformWorld, instance: dg.DagsterInstance) -> None:
    world.produce(1)
    world.run("extract_job", instance)
    world.store.down = True
    assert "the store is down" in reason(evaluate(world, "done_file_sensor", instance))


def test_automation_runs_by_default(world: PlatformWorld) -> None:
    for name in ("extraction_sensor", "done_file_sensor"):
        sensor = world.definitions.resolve_sensor_def(name)
        assert sensor.default_status == dg.DefaultSensorStatus.RUNNING
    schedule = world.definitions.resolve_schedule_def("clean_schedule")
    assert schedule.default_status == dg.DefaultScheduleStatus.RUNNING


def test_intervals_are_settings(world: PlatformWorld) -> None:
    assert world.definitions.resolve_sensor_def("extraction_sensor").minimum_interval_seconds == 300
    assert (
        world.definitions.resolve_sensor_def("done_file_sensor").minimum_interval_seconds
        == sensors.POLL_SECONDS
    )


def test_a_tick_is_as_frequent_as_loads_may_be(tmp_path: Path) -> None:
    definitions = PlatformWorld(tmp_path, KBQ_LOAD_SECONDS="5").definitions
    assert definitions.resolve_sensor_def("done_file_sensor").minimum_interval_seconds == 5


def test_what_commands_did_before_the_ui_started_appears_in_it_once(
    world: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    world.produce(3)
    with dg.DagsterInstance.ephemeral() as elsewhere:  # to this history, a command is what another one ran
        world.run("extract_job", elsewhere)
        world.run("load_job", elsewhere)
    events = evaluate(world, "done_file_sensor", instance).asset_events
    table, *partitions = [each for each in events if isinstance(each, dg.AssetMaterialization)]
    assert (table.asset_key.path, table.metadata["total_rows"].value) == (TABLE.split("."), 3)
    assert [(p.asset_key.path, p.metadata["total_rows"].value) for p in partitions] == [
        (["staged", TOPIC], 3)
    ]
    assert [p.partition for p in partitions] == [f"{TOPIC}/0/{TABLE}"]
    assert evaluate(world, "done_file_sensor", instance).asset_events == []


def test_what_runs_did_is_not_reported_twice(world: PlatformWorld, instance: dg.DagsterInstance) -> None:
    world.produce(3)
    world.run("extract_job", instance)
    world.run("load_job", instance)
    assert evaluate(world, "done_file_sensor", instance).asset_events == []


def test_loads_do_not_wait_for_the_broker_to_report_what_was_before(
    world: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    world.produce(1)
    world.run("extract_job", instance)
    world.kafka.down = True
    assert evaluate(world, "done_file_sensor", instance).run_requests


def test_what_was_before_is_reported_although_the_next_load_is_not_due(
    world: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    world.produce(3)
    world.run("extract_job", instance)
    world.run("load_job", instance)
    with (
        dg.DagsterInstance.ephemeral() as other
    ):  # it knows none of these runs, but one load that has just begun
        add_run(other, dg.DagsterRunStatus.SUCCESS, {LOAD_TAG: staging(world)})
        world.produce(1)
        world.run("extract_job", instance)
        waits = evaluate(world, "done_file_sensor", other)
        assert "a load is due in" in reason(waits)
        assert len(waits.asset_events) == 2, "the partition and the table"
        assert evaluate(world, "done_file_sensor", other, waits.cursor).asset_events == []


def test_a_port_that_stays_silent_fails_the_ticks_after_half_an_hour() -> None:
    clock, is_silent = FakeClock(), True

    def ask(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        if is_silent:
            raise Unavailable("no answer", next_step="start it")
        return dg.SensorResult(cursor="new")

    sensor = tick(ask, clock.monotonic)
    context = dg.build_sensor_context(cursor="old")
    for _ in range(2):
        for _ in range(6):
            skips = sensor(context)
            assert (reason(skips), skips.cursor) == ("no answer\n  next: start it", "old")
            clock.sleep(300)
        for _ in range(2):
            with pytest.raises(Unavailable):
                sensor(context)
        is_silent = False
        assert sensor(context).cursor == "new"
        is_silent = True
