"""Asset checks: one evaluation per check, written when it changes. Held tables are reported in every run."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Iterable

import dagster as dg
import pytest

from kbq_assets.core.errors import Unavailable
from kbq_assets.core.extraction.stops import PartitionStop
from kbq_assets.core.observation.check_names import (
    BACKUPS_RUN,
    CHECKS,
    COMMITS_SMALL,
    CONTIGUOUS,
    DATA_FRESH,
    ERRORS_FEW,
    LAG_SHORT,
    PARTITIONS_RUN,
    QUOTA_LEFT,
    REPLAYS_END,
    ROWS_MATCH,
    TABLES_LOAD,
)
from kbq_assets.core.observation.checks import CheckResult
from kbq_assets.core.protocol.commits import Commit
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.defs.metadata import SHOWN_LINES
from kbq_assets.defs.observation import check_events
from kbq_assets.defs.observation.checks import FREE, RENEW_MS
from kbq_assets.defs.observation.page_checks import noted
from kbq_assets.defs.pages import read_pages
from kbq_assets.defs.translator import AssetTranslator
from kbq_assets.pipelines.observation import broker_checks, checks
from kbq_assets.pipelines.observation.checks import NEED_BROKER
from kbq_assets.pipelines.operate import commands as operate
from kbq_assets.pipelines.protocol import state
from kbq_assets_tests.defs.world import TABLE, TOPIC, PlatformWorld
from kbq_assets_tests.sizes import thinned

COMMIT = f"commits/{TOPIC}.json"


def _tick(world: PlatformWorld, instance: dg.DagsterInstance, cursor: str | None = None) -> dg.SensorResult:
    sensor = world.definitions.resolve_sensor_def("check_sensor")
    context = dg.build_sensor_context(instance=instance, cursor=cursor, definitions=world.definitions)
    result = sensor.evaluate_tick(context)
    for event in result.asset_events:
        instance.report_runless_asset_event(event)
    return dg.SensorResult(
        skip_reason=result.skip_message, cursor=result.cursor, asset_events=list(result.asset_events)
    )


class Away:
    """A broker that answers no check."""

    @classmethod
    def read(cls, *ports: object) -> None:
        raise Unavailable("the broker is down")


def _overall(events: Iterable[object]) -> list[dg.AssetCheckEvaluation]:
    """The checks over all topics or tables."""
    found = [event for event in events if isinstance(event, dg.AssetCheckEvaluation)]
    return [event for event in found if len(event.asset_key.path) == 1]


def _on_pages(events: Iterable[object]) -> dict[tuple[str, str], dg.AssetCheckEvaluation]:
    """The checks of single topics and tables, by page and name."""
    found = [event for event in events if isinstance(event, dg.AssetCheckEvaluation)]
    return {
        (event.asset_key.to_user_string(), event.check_name): event
        for event in found
        if len(event.asset_key.path) > 1
    }


def _names(result: dg.SensorResult) -> list[str]:
    return [event.check_name for event in _overall(result.asset_events)]


def _failed(events: Iterable[object]) -> dict[str, dg.AssetCheckEvaluation]:
    return {event.check_name: event for event in _overall(events) if not event.passed}


def _records(check: dg.AssetCheckEvaluation) -> list[dict[str, object]]:
    table = check.metadata["failures"]
    assert isinstance(table, dg.TableMetadataValue)
    return [dict(record.data) for record in table.records]


def _summary(result: dg.ExecuteInProcessResult) -> str:
    """The Markdown summary of a run."""
    observed = [
        event.asset_observation_data.asset_observation for event in result.get_asset_observation_events()
    ]
    return next(str(o.metadata["summary"].value) for o in observed if "summary" in o.metadata)


def _miscount(world: PlatformWorld, by: int = 1) -> None:
    """Count positions that were never there, or take them back."""

    def change(commit: Commit) -> Commit:
        found = commit.partitions[0]
        totals = found.totals + Counts(positions=by, gaps=by)
        return commit.with_partition(0, dataclasses.replace(found, totals=totals))

    state.change(world.store, Commit, COMMIT, change)


@pytest.fixture
def loaded(world: PlatformWorld, instance: dg.DagsterInstance) -> PlatformWorld:
    """Five records, extracted and loaded."""
    world.produce(5)
    world.run("extract_and_load", instance)
    return world


def _load_keys(world: PlatformWorld) -> set[dg.AssetCheckKey]:
    return set(world.definitions.resolve_asset_graph().asset_check_keys)


def test_every_check_is_of_an_asset_and_says_what_it_promises(world: PlatformWorld) -> None:
    translator, topic = AssetTranslator(), {name for name, kind in CHECKS.items() if kind.about == "topic"}
    overall = {
        (check_events.asset_of(name, translator).to_user_string(), name)
        for name in CHECKS
        if CHECKS[name].asset
    }
    own = {(f"staged/{TOPIC}", name) for name in topic}
    own |= {
        (page, name)
        for page in ("nyc/flights", "nyc/kbq_errors")
        for name in (ROWS_MATCH, TABLES_LOAD, QUOTA_LEFT)
    }
    own |= {("nyc/flights", PARTITIONS_RUN)}
    assert {(key.asset_key.to_user_string(), key.name) for key in _load_keys(world)} == overall | own


def test_a_run_writes_the_checks_of_what_it_changed(
    world: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    world.produce(5)
    result = world.run("extract_and_load", instance)
    written = result.get_asset_check_evaluations()
    of_runs = [PARTITIONS_RUN, CONTIGUOUS, ERRORS_FEW, COMMITS_SMALL, ROWS_MATCH, TABLES_LOAD]
    assert [e.check_name for e in _overall(written)] == of_runs
    assert all(e.passed for e in written)
    assert {page for page, _ in _on_pages(written)} == {f"staged/{TOPIC}", "nyc/flights"}


def test_a_page_is_written_again_when_its_result_changes_and_not_before(
    world: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    world.produce(5)
    world.run("extract_and_load", instance)
    world.produce(5)
    result = world.run("extract_and_load", instance)
    assert _on_pages(result.get_asset_check_evaluations()) == {}
    missing = {BACKUPS_RUN, REPLAYS_END, LAG_SHORT, DATA_FRESH}  # runs do not evaluate these
    tick = _tick(world, instance)
    pages = {(f"staged/{TOPIC}", name) for name in missing} | {("nyc/flights", QUOTA_LEFT)}
    assert set(_on_pages(tick.asset_events)) == pages
    assert _on_pages(_tick(world, instance).asset_events) == {}


def test_a_stopped_topic_fails_on_its_page_and_its_tables_and_nowhere_else(
    world: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    world.kafka.create_topic("other.a")
    world.produce(5)
    world.produce(1, topic="other.a")
    world.run("extract_and_load", instance)
    world.produce(5)
    world.kafka.delete_before(TopicPartition(TOPIC, 0), 8)
    result = world.reopened().run("extract_job", instance)
    written = _on_pages(result.get_asset_check_evaluations())
    found = {key: check for key, check in written.items() if not check.passed}
    assert set(found) == {(f"staged/{TOPIC}", PARTITIONS_RUN), ("nyc/flights", PARTITIONS_RUN)}
    for check in found.values():
        assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.ERROR)
        for words in ("retention_loss", f"next: `kbq accept-gap --topic {TOPIC} --partition 0"):
            assert words in (check.description or "")
    events = instance.all_logs(result.run_id)
    errors = [e.user_message for e in events if e.level == logging.ERROR and not e.is_dagster_event]
    assert any(f"staged/{TOPIC}: {PARTITIONS_RUN} fails: {TOPIC}[0]: retention_loss" in e for e in errors)
    operate.propose_accept_gap(world.store, world.kafka, TopicPartition(TOPIC, 0)).apply()
    result = world.reopened().run("extract_job", instance)
    found = _on_pages(result.get_asset_check_evaluations())
    assert {key: check.passed for key, check in found.items()} == {
        (f"staged/{TOPIC}", PARTITIONS_RUN): True,
        ("nyc/flights", PARTITIONS_RUN): True,
    }


def test_a_topic_whose_line_has_a_mistake_fails_on_its_page_and_the_others_go_on(
    world: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    with world.sources() as lines:
        lines.write("wrong tabel=x\n")
    world.kafka.create_topic("wrong")
    world.produce(1, topic="wrong")
    world.produce(5)
    result = world.reopened().run("extract_and_load", instance)
    found = _on_pages(result.get_asset_check_evaluations())
    assert {key for key, check in found.items() if not check.passed} == {("staged/wrong", PARTITIONS_RUN)}
    assert "unknown option 'tabel'" in (found["staged/wrong", PARTITIONS_RUN].description or "")
    assert world.reopened().parts.observer.tables()[0].loaded_rows == 5


def test_a_stop_of_a_backup_fails_on_its_topic_s_page_alone(
    world: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    with world.sources() as lines:
        lines.write("kept dataset=nyc backup=only\n")
    world.kafka.create_topic("kept")
    world.produce(2, topic="kept")
    world.reopened().run("extract_job", instance)
    world.kafka.recreate_topic("kept")
    result = world.reopened().run("extract_job", instance)
    page = ("staged/kept", BACKUPS_RUN)
    found = _on_pages(result.get_asset_check_evaluations())
    assert {key for key, check in found.items() if not check.passed} == {page}
    assert "next: `kbq backup reset --topic kept" in (found[page].description or "")
    world.parts.operator.backups.reset("kept", None, "earliest").apply()
    world.produce(1, topic="kept")
    result = world.reopened().run("extract_job", instance)
    assert _on_pages(result.get_asset_check_evaluations())[page].passed


def test_a_page_that_the_code_location_learns_of_later_gets_its_checks(
    world: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    world.kafka.create_topic("other.a")
    world.produce(1, topic="other.a")
    world.run("extract_and_load", instance)
    result = world.reopened().run("extract_and_load", instance)
    found = _on_pages(result.get_asset_check_evaluations())
    assert ("staged/other.a", PARTITIONS_RUN) in found
    assert {name for page, name in found if page != "staged/other.a"} >= {TABLES_LOAD}
    result = world.reopened().run("extract_and_load", instance)
    assert _on_pages(result.get_asset_check_evaluations()) == {}


def test_a_page_s_check_is_asked_for_by_hand(loaded: PlatformWorld, instance: dg.DagsterInstance) -> None:
    table, page = loaded.parts.observer.tables()[0].table, dg.AssetKey(["nyc", "flights"])
    operate.propose_park_table(loaded.store, table).apply()
    asked = [dg.AssetCheckKey(page, name) for name in (TABLES_LOAD, PARTITIONS_RUN)]
    job = dg.define_asset_job("some", selection=dg.AssetSelection.checks(*asked))
    definitions = dg.Definitions.merge(loaded.definitions, dg.Definitions(jobs=[job]))
    result = definitions.resolve_job_def("some").execute_in_process(instance=instance)
    found = _on_pages(result.get_asset_check_evaluations())
    assert {name: check.passed for (_, name), check in found.items()} == {
        TABLES_LOAD: False,
        PARTITIONS_RUN: True,
    }
    assert f"next: `kbq resume --table {TABLE}`" in (found["nyc/flights", TABLES_LOAD].description or "")


def test_a_check_over_all_that_is_asked_for_by_hand_forgets_nothing_of_the_pages(
    world: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    world.produce(5)
    world.run("extract_job", instance)
    world.produce(5)
    world.kafka.delete_before(TopicPartition(TOPIC, 0), 8)
    world.run("extract_job", instance)
    pages = read_pages(world.parts.deployment, AssetTranslator())
    before = noted(instance, pages, PARTITIONS_RUN)
    assert before[TOPIC]
    asked = dg.AssetCheckKey(dg.AssetKey("staged_files"), PARTITIONS_RUN)
    job = dg.define_asset_job("some", selection=dg.AssetSelection.checks(asked))
    definitions = dg.Definitions.merge(world.definitions, dg.Definitions(jobs=[job]))
    assert definitions.resolve_job_def("some").execute_in_process(instance=instance).success
    assert noted(instance, pages, PARTITIONS_RUN) == before


def test_a_held_topic_is_shown_with_what_to_do_and_goes_on_without_help(
    loaded: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    loaded.produce(2)
    loaded.run("extract_job", instance)
    _miscount(loaded)
    result = loaded.run("load_job", instance)
    assert result.success
    assert f"{TOPIC} is blocked by {CONTIGUOUS}" in _summary(result)
    waits = _on_pages(result.get_asset_check_evaluations())["nyc/flights", TABLES_LOAD]
    assert not waits.passed
    assert f"its files wait: {TOPIC} is blocked by {CONTIGUOUS}" in (waits.description or "")
    assert f"`kbq reconcile --topic {TOPIC}`" in (waits.description or "")
    check = _failed(_tick(loaded, instance).asset_events)[CONTIGUOUS]
    assert check.severity == dg.AssetCheckSeverity.ERROR
    assert "its files are not loaded until this passes" in (check.description or "")
    assert check.metadata["held_topics"].value == 1
    assert f"- `kbq reconcile --topic {TOPIC}`" in str(check.metadata["next"].value)
    assert loaded.parts.loader.poll().names == ()
    _miscount(loaded, -1)
    assert len(loaded.parts.loader.poll().names) == 1
    loaded.run("load_job", instance)
    assert loaded.parts.observer.checks().failures == ()


def test_a_parked_table_is_a_failed_check_with_the_command_that_goes_on(
    loaded: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    operate.propose_park_table(loaded.store, loaded.parts.observer.tables()[0].table).apply()
    tick = _tick(loaded, instance)
    on_page = _on_pages(tick.asset_events)["nyc/flights", TABLES_LOAD]
    assert (on_page.passed, on_page.severity) == (False, dg.AssetCheckSeverity.ERROR)
    assert f"next: `kbq resume --table {TABLE}`" in (on_page.description or "")
    [record] = _records(_failed(tick.asset_events)[TABLES_LOAD])
    assert (record["table"], record["next"]) == (TABLE, f"kbq resume --table {TABLE}")


def test_late_records_are_a_warning(loaded: PlatformWorld, instance: dg.DagsterInstance) -> None:
    at = loaded.clock.now_ms() - 8_000_000
    loaded.kafka.produce(TopicPartition(TOPIC, 0), b"\x00\x00\x00\x00\x01\x02", timestamp=at)
    failed = _failed(_tick(loaded, instance).asset_events)
    assert {name: check.severity for name, check in failed.items()} == {LAG_SHORT: dg.AssetCheckSeverity.WARN}
    assert failed[LAG_SHORT].metadata["positions"].value == 1


def test_the_sensor_writes_a_check_when_it_changes_and_else_once_an_hour(
    loaded: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    first = _tick(loaded, instance)
    assert _names(first) == list(FREE)
    second = _tick(loaded, instance, first.cursor)
    assert _names(second) == []
    loaded.clock.sleep(RENEW_MS / 2000)
    operate.propose_park_table(loaded.store, loaded.parts.observer.tables()[0].table).apply()
    third = _tick(loaded, instance, second.cursor)
    assert _names(third) == [TABLES_LOAD]
    loaded.clock.sleep(RENEW_MS / 2000)
    fourth = _tick(loaded, instance, third.cursor)
    assert _names(fourth) == [name for name in FREE if name != TABLES_LOAD]


FUTURE = json.dumps({name: ["", 1e15] for name in FREE})


@pytest.mark.parametrize("cursor", thinned(["", "nonsense", "[]", '{"lag_is_short": 3}', FUTURE]))
def test_a_cursor_that_is_lost_or_wrong_has_everything_written_once_more(
    loaded: PlatformWorld, instance: dg.DagsterInstance, cursor: str
) -> None:
    assert _names(_tick(loaded, instance, cursor)) == list(FREE)


def test_what_a_run_wrote_last_is_corrected_when_it_is_over(
    loaded: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    first = _tick(loaded, instance)
    table = loaded.parts.observer.tables()[0].table
    operate.propose_park_table(loaded.store, table).apply()
    assert _failed(loaded.run("load_job", instance).get_asset_check_evaluations()).keys() == {TABLES_LOAD}
    operate.propose_resume_table(loaded.store, table).apply()
    second = _tick(loaded, instance, first.cursor)
    assert _names(second) == [TABLES_LOAD]
    assert not _failed(second.asset_events)


def test_a_narrowed_run_hides_no_stop_elsewhere(world: PlatformWorld, instance: dg.DagsterInstance) -> None:
    world.kafka.create_topic("other.a")
    world.produce(5)
    world.produce(1, topic="other.a")
    world.run("extract_job", instance)
    world.produce(5)
    world.kafka.delete_before(TopicPartition(TOPIC, 0), 8)
    result = world.run(
        "extract_job", instance, config={"ops": {"extract": {"config": {"keys": ["other.*"]}}}}
    )
    check = _failed(result.get_asset_check_evaluations())[PARTITIONS_RUN]
    assert f"kbq accept-gap --topic {TOPIC} --partition 0" in (check.description or "")


def test_a_narrowed_run_says_nothing_of_stops_while_the_broker_is_away(
    world: PlatformWorld, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.produce(5)
    world.run("extract_job", instance)
    monkeypatch.setattr(checks, "BrokerView", Away)
    result = world.run("extract_job", instance, config={"ops": {"extract": {"config": {"keys": ["nyc.*"]}}}})
    written = [e.check_name for e in _overall(result.get_asset_check_evaluations())]
    assert (result.success, written) == (True, [CONTIGUOUS, ERRORS_FEW, COMMITS_SMALL])


def test_a_broker_that_is_away_leaves_its_checks_as_they_were(
    loaded: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    loaded.kafka.down = True
    tick = _tick(loaded, instance)
    assert _names(tick) == [name for name in FREE if name not in NEED_BROKER]
    assert "the broker is down" in str(tick.skip_reason)
    loaded.kafka.down = False
    assert _names(_tick(loaded, instance, tick.cursor)) == [name for name in FREE if name in NEED_BROKER]


def test_checks_can_be_asked_for_one_at_a_time(loaded: PlatformWorld, instance: dg.DagsterInstance) -> None:
    asked = dg.AssetCheckKey(dg.AssetKey("warehouse_tables"), DATA_FRESH)
    job = dg.define_asset_job("some", selection=dg.AssetSelection.checks(asked))
    definitions = dg.Definitions.merge(loaded.definitions, dg.Definitions(jobs=[job]))
    result = definitions.resolve_job_def("some").execute_in_process(instance=instance)
    assert [e.check_name for e in result.get_asset_check_evaluations()] == [DATA_FRESH]


def test_a_run_whose_state_cannot_be_read_afterwards_has_done_its_work(
    world: PlatformWorld, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*args: object, **options: object) -> object:
        raise Unavailable("the store does not answer")

    monkeypatch.setattr(checks, "run_checks", away)
    world.produce(5)
    assert world.run("extract_and_load", instance).success


# Events


def _results(count: int) -> list[CheckResult]:
    return [
        CheckResult(TABLES_LOAD, f"d.t{n}", "parked", False, (f"kbq resume --table d.t{n}",))
        for n in range(count)
    ]


def test_however_many_fail_there_is_one_evaluation_of_bounded_size() -> None:
    found = check_events.evaluation(dg.AssetKey("warehouse_tables"), TABLES_LOAD, _results(500))
    assert found.metadata["problems"].value == 500
    assert len(_records(found)) == SHOWN_LINES
    assert len((found.description or "").splitlines()) == SHOWN_LINES + 1
    assert (found.description or "").endswith("…and 450 more")


def test_numbers_of_many_topics_are_added_up_or_the_largest_is_reported() -> None:
    results = [
        CheckResult(DATA_FRESH, f"t{n}", "", numbers={"oldest_waiting_seconds": n, "records": n, "share": 1})
        for n in (3, 5)
    ]
    found = check_events.evaluation(dg.AssetKey("warehouse_tables"), DATA_FRESH, results)
    values = {name: entry.value for name, entry in found.metadata.items()}
    assert values == {"problems": 0, "checked": 2, "oldest_waiting_seconds": 5, "records": 8}


def test_stops_of_one_topic_are_one_result_with_each_command_once() -> None:
    stops = [
        PartitionStop(TopicPartition("t", p), "retention_loss", f"gone {p}", ("kbq reset --topic t",))
        for p in (0, 1)
    ]
    found = check_events.evaluation(
        dg.AssetKey("staged_files"), PARTITIONS_RUN, broker_checks.stop_results((), stops)
    )
    assert found.description == (
        "t: t[0]: retention_loss: gone 0; t[1]: retention_loss: gone 1; next: `kbq reset --topic t`"
    )
