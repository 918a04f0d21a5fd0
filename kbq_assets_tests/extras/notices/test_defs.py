"""Dagster's daemon tells who is on call: of runs that failed, and of everything else that is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NoReturn

import dagster as dg
import pytest

from kbq_assets.core.errors import Unavailable
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.defs.extraction.engine import ENGINE
from kbq_assets.extras.notices import pipeline as notices
from kbq_assets.extras.notices.defs import NOBODY, NoticeCursor, failed_run
from kbq_assets.worker.task import UnitTask
from kbq_assets_tests.defs.world import TABLE, TOPIC, PlatformWorld
from kbq_assets_tests.fakes.notifier import FakeNotifier
from kbq_assets_tests.fakes.platform import with_ports

#: Dagster calls some of its own arguments beta.
pytestmark = pytest.mark.filterwarnings("ignore::dagster.BetaWarning")

MINUTE = 60_000
SENSORS = ("run_failure_sensor", "notice_sensor")
TELLING = {"KBQ_NOTIFY": "webhook:http://127.0.0.1/x", "KBQ_UI_URL": "https://dagster.example.com/"}


@pytest.fixture
def world(tmp_path: Path) -> PlatformWorld:
    """A platform over the fakes."""
    return PlatformWorld(tmp_path)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    """A Dagster instance in memory."""
    with dg.DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


class TellingWorld(PlatformWorld):
    """A platform whose notifier is a fake."""

    def __init__(self, folder: Path, **environ: str) -> None:
        super().__init__(folder, 2, 500, **environ)
        self.notifier = FakeNotifier()
        self.cursor: str | None = None
        self.parts = with_ports(self.parts, notifiers=lambda: (self.notifier,))
        engine = dg.ResourceDefinition.hardcoded_resource(self.engine)
        self.definitions = self.parts.definitions(resources={ENGINE: engine})

    def look(self, instance: dg.DagsterInstance) -> str:
        """One tick of the notice sensor; what it says."""
        sensor = self.definitions.resolve_sensor_def("notice_sensor")
        with dg.build_sensor_context(
            instance=instance, cursor=self.cursor, definitions=self.definitions
        ) as context:
            result = sensor(context)
            self.cursor = context.cursor
        assert isinstance(result, dg.SkipReason)
        return result.skip_message or ""

    def fail(self, instance: dg.DagsterInstance, job: str = "extract_job", **tags: str) -> str:
        """A run that fails, as the run-failure sensor sees it; what that says."""
        self.store.faults = None
        self.kafka.down = True
        result = self.run(job, instance, tags=tags)
        self.kafka.down = False
        assert not result.success
        return self.react(instance, result)

    @contextmanager
    def store_away(self) -> Iterator[None]:
        """Meanwhile the store does not answer."""

        def get(path: str) -> NoReturn:
            raise Unavailable("the store does not answer")

        self.store.get = get  # type: ignore[method-assign]
        try:
            yield
        finally:
            del self.store.get

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
def telling(tmp_path: Path) -> TellingWorld:
    return TellingWorld(tmp_path, **TELLING)


def test_sensors_run_by_default_where_somebody_is_told(telling: TellingWorld) -> None:
    for name in SENSORS:
        sensor = telling.definitions.resolve_sensor_def(name)
        assert sensor.default_status == dg.DefaultSensorStatus.RUNNING
        assert sensor.minimum_interval_seconds == 60


def test_without_anybody_they_are_off_and_say_so(world: PlatformWorld, instance: dg.DagsterInstance) -> None:
    for name in SENSORS:
        assert world.definitions.resolve_sensor_def(name).default_status == dg.DefaultSensorStatus.STOPPED
    sensor = world.definitions.resolve_sensor_def("notice_sensor")
    with dg.build_sensor_context(instance=instance) as context:
        result = sensor(context)
    assert result == dg.SkipReason(NOBODY)


def test_a_failed_run_is_told_with_job_id_error_and_link(
    telling: TellingWorld, instance: dg.DagsterInstance
) -> None:
    assert "extract_job failed" in telling.fail(instance)
    [notice] = telling.notifier.taken
    run = instance.get_runs(limit=1)[0]
    [item] = notice.items
    assert (notice.title, item.subject) == ("extract_job failed", "extract_job")
    assert item.text == f"run {run.run_id[:8]}: Unavailable: the broker is down; next: start it"
    assert item.link == f"https://dagster.example.com/runs/{run.run_id}"


def test_an_error_of_ours_is_told_before_what_caused_it(
    telling: TellingWorld, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    def topics() -> None:
        try:
            raise ValueError("a client's words")
        except ValueError as error:
            raise Unavailable("the broker is away", next_step="start it") from error

    monkeypatch.setattr(telling.kafka, "topics", topics)
    telling.react(instance, telling.run("extract_job", instance))
    [item] = telling.notifier.taken[0].items
    assert item.text.endswith("Unavailable: the broker is away; next: start it")


def test_a_job_that_fails_for_hours_is_told_once_and_its_success_too(
    telling: TellingWorld, instance: dg.DagsterInstance
) -> None:
    for _ in range(4):
        telling.fail(instance)
        telling.store.time_ms += 5 * MINUTE
        telling.look(instance)
    assert telling.notifier.titles == ["extract_job failed"]
    telling.produce(1)
    telling.run("extract_job", instance)
    assert "Resolved" in telling.look(instance)
    assert telling.notifier.titles == ["Resolved: extract_job failed"]
    telling.look(instance)
    assert telling.notifier.titles == []


def test_the_success_of_another_job_mends_nothing(
    telling: TellingWorld, instance: dg.DagsterInstance
) -> None:
    telling.fail(instance)
    telling.run("clean_job", instance)
    telling.look(instance)
    assert telling.notifier.titles == ["extract_job failed"]


def test_a_run_that_is_tried_again_is_not_told(telling: TellingWorld, instance: dg.DagsterInstance) -> None:
    assert "is tried again" in telling.fail(instance, **{"dagster/will_retry": "true"})
    assert telling.notifier.titles == []


def test_counts_that_do_not_agree_are_told_until_they_do(
    telling: TellingWorld, instance: dg.DagsterInstance
) -> None:
    telling.produce(3)
    telling.run("extract_and_load", instance)
    telling.look(instance)
    assert telling.notifier.titles == [f"{TABLE} is a new table"]
    row = telling.warehouse.stored[TableReference.parse(TABLE)].rows.pop()
    telling.run("reconcile_job", instance)
    telling.look(instance)
    assert telling.notifier.titles == ["Counts of the warehouse do not agree"]
    telling.look(instance)
    telling.warehouse.stored[TableReference.parse(TABLE)].rows.append(row)
    telling.run("reconcile_job", instance)
    telling.look(instance)
    assert telling.notifier.titles == ["Resolved: Counts of the warehouse do not agree"]


def test_a_run_of_a_backfill_is_told_once_and_never_resolved(
    telling: TellingWorld, instance: dg.DagsterInstance
) -> None:
    telling.fail(instance, **{"dagster/backfill": "abcd"})
    telling.fail(instance, **{"dagster/backfill": "abcd"})
    assert telling.notifier.titles == ["backfill abcd failed"]
    telling.run("extract_job", instance)
    telling.look(instance)
    assert telling.notifier.titles == []


def test_a_materialisation_that_somebody_asked_for_is_named_by_its_assets() -> None:
    run = dg.DagsterRun(
        job_name="__ASSET_JOB", run_id="0123456789", asset_selection=frozenset({dg.AssetKey("staged_files")})
    )
    failed = failed_run(run, "boom\ndetails", 7, "")
    assert failed.subject == "materialisation of staged_files (01234567)"
    assert (failed.text, failed.link, failed.lasts) == ("run 01234567: boom", "", False)


def test_a_failed_run_that_could_not_be_told_is_told_by_the_next_look(
    telling: TellingWorld, instance: dg.DagsterInstance
) -> None:
    telling.notifier.error = Unavailable("busy")
    telling.fail(instance)
    telling.notifier.error = None
    telling.look(instance)
    assert telling.notifier.titles == ["extract_job failed"]


def test_a_stop_is_told_by_the_daemon_and_its_end(
    telling: TellingWorld, instance: dg.DagsterInstance
) -> None:
    telling.produce(5)
    telling.run("extract_job", instance)
    telling.produce(3)
    telling.kafka.delete_before(TopicPartition(TOPIC, 0), 8)
    assert telling.look(instance) == f"fake:fake-1: Extraction of {TOPIC} is stopped"
    assert telling.look(instance) == "fake:fake-1: nothing new"


def test_a_notifier_that_fails_is_a_failed_tick(telling: TellingWorld, instance: dg.DagsterInstance) -> None:
    telling.fail(instance)
    telling.notifier.taken.clear()
    notices.note_failed_run(telling.store, failed_run(instance.get_runs(limit=1)[0], "x", 1, ""))
    telling.store.objects.pop(f"notices/{telling.notifier.name}.json")
    telling.notifier.error = Unavailable("the channel is gone")
    with pytest.raises(Unavailable, match="the channel is gone"):
        telling.look(instance)


def test_a_store_that_is_away_is_said_and_after_minutes_shows_red(
    telling: TellingWorld, instance: dg.DagsterInstance
) -> None:
    with telling.store_away():
        assert "the store does not answer" in telling.look(instance)
        telling.clock.seconds += 299
        assert "the store does not answer" in telling.look(instance)
        telling.clock.seconds += 1
        with pytest.raises(Unavailable, match="the store does not answer"):
            telling.look(instance)
    assert "nothing new" in telling.look(instance)
    with telling.store_away():
        assert "the store does not answer" in telling.look(instance)


def test_a_run_that_fails_while_the_store_is_away_is_told_at_once_and_its_end(
    telling: TellingWorld, instance: dg.DagsterInstance
) -> None:
    with telling.store_away():
        assert "the store does not answer" in telling.fail(instance)
        assert telling.notifier.titles == ["extract_job failed"]
        assert "told already" in telling.fail(instance)
        assert telling.notifier.titles == []
    telling.look(instance)
    assert telling.notifier.titles == ["extract_job failed"], "twice at worst: nobody knows that it was told"
    telling.look(instance)
    assert telling.notifier.titles == []
    telling.run("extract_job", instance)
    telling.look(instance)
    assert telling.notifier.titles == ["Resolved: extract_job failed"]


def test_the_next_outage_is_told_anew(telling: TellingWorld, instance: dg.DagsterInstance) -> None:
    heard = []
    for is_away in (True, False, True, True):
        with telling.store_away() if is_away else nullcontext():
            telling.fail(instance)
        heard.append(telling.notifier.titles)
    assert heard == [["extract_job failed"]] * 3 + [[]]


def test_a_failed_run_that_reached_neither_store_nor_notifier_is_told_when_they_are_back(
    telling: TellingWorld, instance: dg.DagsterInstance
) -> None:
    telling.look(instance)
    telling.notifier.error = Unavailable("busy")
    with telling.store_away(), pytest.raises(Unavailable, match="busy"):
        telling.fail(instance, **{"dagster/backfill": "abcd"})
    telling.notifier.error = None
    telling.look(instance)
    [notice] = telling.notifier.taken
    assert notice.title == "backfill abcd failed"
    assert "the store does not answer" in notice.items[0].text
    telling.notifier.taken.clear()
    telling.look(instance)
    assert telling.notifier.titles == []


def test_what_nobody_could_note_and_is_mended_or_tried_again_is_not_told_by_a_look(
    telling: TellingWorld, instance: dg.DagsterInstance
) -> None:
    telling.look(instance)
    telling.kafka.down = True
    telling.run("extract_job", instance)
    telling.run("reconcile_job", instance, tags={"dagster/will_retry": "true"})
    telling.kafka.down = False
    telling.run("extract_job", instance)
    assert instance.get_runs_count(dg.RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE])) == 2
    telling.look(instance)
    assert telling.notifier.titles == []


def test_many_runs_that_failed_at_once_are_all_told(
    telling: TellingWorld, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbq_assets.extras.notices.defs._MOST_FAILURES", 2)
    telling.kafka.down = True
    for number in range(5):
        telling.run("extract_job", instance, tags={"dagster/backfill": f"b{number}"})
    heard = []
    for _ in range(4):
        telling.look(instance)
        heard += [item.subject for notice in telling.notifier.taken for item in notice.items]
        telling.notifier.taken.clear()
    assert sorted(s for s in heard if s.startswith("backfill")) == [f"backfill b{n}" for n in range(5)]


@pytest.mark.parametrize("text", [None, "", "what", "2026-01-01T00:00:00+00:00", "2026-01-01 0 x", "x 5"])
def test_a_cursor_is_a_hint(text: str | None) -> None:
    """Without one that can be read, looking begins now; after a long time off, a day ago."""
    now = datetime.now(UTC)
    found = NoticeCursor.parse(text)
    assert now - timedelta(days=1) <= found.seen <= datetime.now(UTC)
    assert found.away_ms == 0


def test_a_cursor_is_read_as_it_was_written() -> None:
    written = NoticeCursor(datetime.now(UTC), 1_700_000_000_000)
    assert NoticeCursor.parse(written.format()) == written


def test_tasks_are_sent_nothing_of_who_is_told(telling: TellingWorld) -> None:
    assert UnitTask(telling.parts.deployment.settings).settings.notify.notifiers == ()
