"""Runs and their reports: only what changed, every record once, and stops with their commands."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from kbq_assets.core.errors import Unavailable
from kbq_assets.core.observation import check_names
from kbq_assets.core.observation.run_totals import EXTRACTION, LOADING, totals_path
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.defs import metadata
from kbq_assets.defs.extraction.step import ProgressLog
from kbq_assets.defs.loading.step import TableLog
from kbq_assets.pipelines.extraction.ports import Progress
from kbq_assets.pipelines.loading.ports import TableReport
from kbq_assets.pipelines.operate import commands as operate
from kbq_assets.ports.warehouse import JobError, LoadJob
from kbq_assets_tests.defs.world import RECORD, TABLE, TOPIC, PlatformWorld
from kbq_assets_tests.fakes.faults import Call, Outcome

STAGED, TABLES = dg.AssetKey("staged_files"), dg.AssetKey("warehouse_tables")
FLIGHTS = TableReference.parse(TABLE)


def materialised(result: dg.ExecuteInProcessResult) -> dict[str | None, dict[str, Any]]:
    """Metadata of each materialised partition and table."""
    events = [
        e.step_materialization_data.materialization for e in result.all_events if e.is_step_materialization
    ]
    return {
        e.partition or ".".join(e.asset_key.path): {k: v.value for k, v in e.metadata.items()} for e in events
    }


def check_of(result: dg.ExecuteInProcessResult, name: str) -> dg.AssetCheckEvaluation:
    """The last evaluation of a check in a run."""
    evaluations = [e for e in result.get_asset_check_evaluations() if e.check_name == name]
    return evaluations[-1]


def test_one_job_moves_records_into_their_table(world: PlatformWorld, instance: dg.DagsterInstance) -> None:
    world.produce(10)
    world.produce(5, partition=1)
    result = world.run("extract_and_load", instance)
    assert result.success
    assert len(world.warehouse.rows(FLIGHTS)) == 15
    assert set(materialised(result)) == {f"{TOPIC}/0/{TABLE}", f"{TOPIC}/1/{TABLE}", TABLE}


def test_a_second_run_adds_and_reports_nothing(world: PlatformWorld, instance: dg.DagsterInstance) -> None:
    world.produce(10)
    world.run("extract_and_load", instance)
    result = world.run("extract_and_load", instance)
    assert result.success
    assert materialised(result) == {}
    assert len(world.warehouse.rows(FLIGHTS)) == 10


def test_runs_report_only_what_changed(world: PlatformWorld, instance: dg.DagsterInstance) -> None:
    world.produce(3)
    world.produce(3, partition=1)
    world.run("extract_job", instance)
    world.produce(2, partition=1)
    result = world.run("extract_job", instance)
    assert set(materialised(result)) == {f"{TOPIC}/1/{TABLE}"}


def test_metadata_says_what_was_staged(world: PlatformWorld, instance: dg.DagsterInstance) -> None:
    world.produce(4)
    world.kafka.produce(TopicPartition(TOPIC, 0), b"\x01poison")
    [staged, errors] = sorted(
        (k, v) for k, v in materialised(world.run("extract_job", instance)).items() if k is not None
    )
    assert staged[0] == f"{TOPIC}/0/{TABLE}"
    expected = {"rows": 4, "files": 1, "first_offset": 0, "error_rows": 1, "lag_records": 0}
    assert {key: staged[1][key] for key in expected} == expected
    assert staged[1]["staged_files"].records[0].data["rows"] == 4
    assert (errors[0], errors[1]["rows"]) == (f"{TOPIC}/0/nyc.kbq_errors", 1)


def test_tables_of_files_are_capped(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    world = PlatformWorld(tmp_path, chunk_records=1, KBQ_WINDOW_RECORDS="1")
    world.produce(metadata.SHOWN_FILES + 5)
    [(_, entries)] = materialised(world.run("extract_job", instance)).items()
    assert entries["files"] == metadata.SHOWN_FILES + 5
    assert len(entries["staged_files"].records) == metadata.SHOWN_FILES


def test_of_many_loaded_tables_the_log_names_the_first_and_all_in_trouble() -> None:
    tables = [TableReference("shop", f"t{number}") for number in range(5)]
    logged: list[str] = []
    lines = TableLog(logged.append, left=2)
    for table in tables:
        lines(TableReport(table, "idle", rows=1, files=1))
    lines(TableReport(tables[0], "parked", message="it is broken"))
    lines(TableReport(tables[1], "idle"))
    assert logged == [
        "shop.t0: loaded, 1 row of 1 file",
        "shop.t1: loaded, 1 row of 1 file",
        "shop.t0: parked, 0 rows of 0 files: it is broken",
    ]


def test_every_run_leaves_a_summary(world: PlatformWorld, instance: dg.DagsterInstance) -> None:
    world.produce(7)
    world.run("extract_and_load", instance)
    for key in (STAGED, TABLES):
        [record] = instance.fetch_observations(key, limit=1).records
        observation = record.asset_observation
        assert observation is not None
        assert "7 r" in str(observation.metadata["summary"].value)
        assert observation.metadata["run_rows"].value == 7


def test_an_extraction_shows_what_each_topic_cost(world: PlatformWorld, instance: dg.DagsterInstance) -> None:
    world.produce(7)
    world.run("extract_and_load", instance)
    [record] = instance.fetch_observations(STAGED, limit=1).records
    assert record.asset_observation is not None
    costs = record.asset_observation.metadata["costs"]
    assert isinstance(costs, dg.TableMetadataValue)
    [row] = costs.records
    assert (row.data["topic"], row.data["records"]) == (TOPIC, 7)


def materialise(
    world: PlatformWorld,
    instance: dg.DagsterInstance,
    first: str,
    last: str,
    **tags: str,
) -> dg.ExecuteInProcessResult:
    """Materialise a range of a topic's partitions as the UI and backfills do: in one run."""
    ends = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}
    return materialise_assets(
        world, instance, dg.AssetKey(["staged", first.split("/", maxsplit=1)[0]]), **ends, **tags
    )


def materialise_tables(
    world: PlatformWorld, instance: dg.DagsterInstance, *tables: str
) -> dg.ExecuteInProcessResult:
    """Materialise tables in one run."""
    return materialise_assets(world, instance, *(dg.AssetKey(table.split(".")) for table in tables))


def materialise_assets(
    world: PlatformWorld, instance: dg.DagsterInstance, *assets: dg.AssetKey, **tags: str
) -> dg.ExecuteInProcessResult:
    """Materialise what the code location has, after a reload."""
    definitions = world.reopened().definitions
    return dg.materialize(
        [a for a in definitions.assets or () if isinstance(a, dg.AssetsDefinition | dg.AssetSpec)],
        selection=list(assets),
        instance=instance,
        resources=dict(definitions.resources or {}),
        tags=tags,
        raise_on_error=False,
    )


def test_chosen_partitions_are_one_run_and_all_reported(
    world: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    world.produce(3)
    world.produce(3, partition=1)
    world.run("extract_job", instance)
    world.produce(2)
    result = materialise(world, instance, f"{TOPIC}/0/{TABLE}", f"{TOPIC}/1/{TABLE}")
    rows = {key: entries["rows"] for key, entries in materialised(result).items()}
    assert rows == {f"{TOPIC}/0/{TABLE}": 2, f"{TOPIC}/1/{TABLE}": 0}


def test_a_selection_narrows_to_its_topics(world: PlatformWorld, instance: dg.DagsterInstance) -> None:
    world.kafka.create_topic("other.a")
    world.produce(1)
    world.produce(1, topic="other.a")
    world.run("extract_job", instance)
    world.produce(1)
    world.produce(1, topic="other.a")
    key = "other.a/0/nyc.Flight"
    result = materialise(world, instance, key, key)
    assert set(materialised(result)) == {key}
    assert [unit.range.topic_partition.topic for unit in world.parts.extractor.plan().units] == [TOPIC]


def test_chosen_tables_are_loaded_and_no_other(world: PlatformWorld, instance: dg.DagsterInstance) -> None:
    world.kafka.create_topic("other.a")
    world.produce(1)
    world.produce(1, topic="other.a")
    world.run("extract_and_load", instance)
    world.produce(2)
    world.produce(2, topic="other.a")
    world.run("extract_job", instance)
    result = materialise_tables(world, instance, TABLE)
    assert {key: entries["rows"] for key, entries in materialised(result).items()} == {TABLE: 2}
    assert [str(batch.table) for batch in world.parts.loader.plan().batches] == ["nyc.Flight"]


NO_KEYS = ["nyc.flights", "nyc.flights.v1/x/nyc.flights", f"nyc.flights.v1/{'9' * 5000}/nyc.flights"]
OF_TOPIC = f"staged/{TOPIC}"


def test_keys_that_people_made_up_stop_no_run(world: PlatformWorld, instance: dg.DagsterInstance) -> None:
    instance.add_dynamic_partitions(OF_TOPIC, ["neither"])
    for _ in range(2):
        world.produce(2)
        assert world.run("extract_and_load", instance).success
    assert len(world.warehouse.rows(FLIGHTS)) == 4
    assert "neither" in instance.get_dynamic_partitions(OF_TOPIC)


def test_chosen_keys_that_are_none_are_left_out(world: PlatformWorld, instance: dg.DagsterInstance) -> None:
    world.produce(2)
    key = f"{TOPIC}/0/{TABLE}"
    instance.add_dynamic_partitions(OF_TOPIC, [key, *NO_KEYS])
    result = materialise(world, instance, key, NO_KEYS[-1])
    assert {key: entries["rows"] for key, entries in materialised(result).items()} == {key: 2}


def test_a_choice_of_no_partition_fails_and_says_how_one_is_written(
    world: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    instance.add_dynamic_partitions(OF_TOPIC, ["neither"])
    tags = {f"dagster/asset_partition_range_{end}": "neither" for end in ("start", "end")}
    result = materialise_assets(world, instance, dg.AssetKey(["staged", TOPIC]), **tags)
    [failure] = [e.step_failure_data for e in result.all_events if e.is_step_failure]
    assert re.search(r"'neither' is not a .*\n.*dataset\.table", failure.error_display_string)


def test_any_tables_are_one_run(world: PlatformWorld, instance: dg.DagsterInstance) -> None:
    world.kafka.create_topic("other.a")
    world.produce(1)
    world.produce(2, topic="other.a")
    world.kafka.produce(TopicPartition(TOPIC, 0), b"\x01poison")
    world.run("extract_and_load", instance)
    world.produce(3)
    world.produce(4, topic="other.a")
    world.run("extract_job", instance)
    result = materialise_tables(world, instance, TABLE, "nyc.Flight", "nyc.kbq_errors")
    rows = {key: entries["rows"] for key, entries in materialised(result).items()}
    assert rows == {TABLE: 3, "nyc.Flight": 4, "nyc.kbq_errors": 0}
    assert len([e for e in result.all_events if e.is_step_start]) == 1


def _refused(world: PlatformWorld) -> None:
    def refused(job: LoadJob) -> None:
        raise Unavailable("the warehouse does not answer")

    world.warehouse.insert_job = refused  # type: ignore[method-assign]


def _parked(world: PlatformWorld) -> None:
    operate.propose_park_table(world.store, FLIGHTS).apply()


def _under_way(world: PlatformWorld) -> None:
    world.warehouse.auto_run = False


@pytest.mark.parametrize(("trouble", "succeeds"), [(_refused, False), (_parked, True), (_under_way, True)])
def test_a_chosen_table_that_was_not_brought_up_to_date_is_not_materialised(
    world: PlatformWorld,
    instance: dg.DagsterInstance,
    trouble: Callable[[PlatformWorld], None],
    succeeds: bool,
) -> None:
    world.produce(2)
    world.run("extract_and_load", instance)
    world.produce(2)
    world.run("extract_job", instance)
    trouble(world)
    result = materialise_tables(world, instance, TABLE)
    assert (result.success, materialised(result)) == (succeeds, {})
    assert len(world.warehouse.rows(FLIGHTS)) == 2


def test_a_stopped_partition_fails_its_check_with_the_commands_that_go_on(
    world: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    world.produce(5)
    world.run("extract_job", instance)
    world.produce(5)
    world.kafka.delete_before(TopicPartition(TOPIC, 0), 8)
    result = world.run("extract_job", instance)
    check = check_of(result, check_names.PARTITIONS_RUN)
    assert result.success
    assert not check.passed
    assert f"kbq accept-gap --topic {TOPIC} --partition 0" in (check.description or "")


def test_a_check_asked_again_by_hand_sees_what_was_fixed(
    world: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    world.produce(5)
    world.run("extract_job", instance)
    selection = dg.AssetSelection.checks(dg.AssetCheckKey(STAGED, check_names.PARTITIONS_RUN))
    job = dg.define_asset_job("checks", selection=selection)
    definitions = dg.Definitions.merge(world.definitions, dg.Definitions(jobs=[job]))
    result = definitions.resolve_job_def("checks").execute_in_process(instance=instance)
    assert check_of(result, check_names.PARTITIONS_RUN).passed


def test_a_parked_table_fails_its_check_and_not_the_run(
    world: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    world.produce(5)
    world.warehouse.job_errors = lambda job: JobError("invalid", "not today", transient=False)
    result = world.run("extract_and_load", instance)
    check = check_of(result, check_names.TABLES_LOAD)
    assert result.success
    assert not check.passed
    assert f"kbq resume --table {TABLE}" in (check.description or "")


def test_a_registry_that_is_down_fails_the_run_and_loses_nothing(
    world: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    world.produce(5)
    world.registry.down = True
    assert not world.run("extract_and_load", instance).success
    world.registry.down = False
    assert world.run("extract_and_load", instance).success
    assert len(world.warehouse.rows(FLIGHTS)) == 5


def test_a_table_that_cannot_be_loaded_now_hides_no_other(
    world: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    world.kafka.create_topic("other.a")
    world.produce(2)
    world.produce(2, topic="other.a")
    find_table = world.warehouse.find_table

    def unavailable(table: TableReference) -> Any:
        if str(table) == "nyc.Flight":
            raise Unavailable("the warehouse does not answer")
        return find_table(table)

    world.warehouse.find_table = unavailable  # type: ignore[method-assign]
    result = world.run("extract_and_load", instance)
    assert not result.success
    assert TABLE in materialised(result)
    assert len(world.warehouse.rows(FLIGHTS)) == 2


@pytest.mark.parametrize(
    ("job", "end", "reported"),
    [
        ("extract_job", totals_path(EXTRACTION), {f"{TOPIC}/0/{TABLE}": 2}),
        ("load_job", totals_path(LOADING), {TABLE: 5}),
    ],
)
def test_what_was_done_is_reported_although_the_store_goes_away(
    world: PlatformWorld, instance: dg.DagsterInstance, job: str, end: str, reported: dict[str, int]
) -> None:
    memory, ended = world.store, [False]

    def goes_away(call: Call) -> Outcome:
        ended[0] = ended[0] or call.target == end
        return Outcome.UNAVAILABLE if ended[0] else Outcome.OK

    world.produce(5)
    world.run("extract_job", instance)
    world.produce(2)
    memory.faults, world.store = goes_away, memory.view("kbq")  # type: ignore[assignment]
    result = world.reopened().run(job, instance)
    assert (result.success, ended) == (True, [True])
    assert {key: entries["rows"] for key, entries in materialised(result).items()} == reported


def test_rows_that_differ_from_the_files_are_a_failed_check(
    world: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    world.produce(2)
    run_pending = world.warehouse.run_pending

    def doubled(job_id: str, error: JobError | None = None) -> Any:
        run_pending(job_id, error)
        for job in world.warehouse.jobs.values():
            job.status = type(job.status)(job_id, "DONE", job.status.source_uris, output_rows=4)

    world.warehouse.run_pending = doubled  # type: ignore[method-assign]
    result = world.run("extract_and_load", instance)
    assert not check_of(result, check_names.ROWS_MATCH).passed
    assert check_of(result, check_names.TABLES_LOAD).passed


def test_clean_up_is_a_job(world: PlatformWorld, instance: dg.DagsterInstance) -> None:
    world.produce(2)
    world.run("extract_and_load", instance)
    world.store.create(f"staging/1-dead/{TOPIC}.0.{TABLE}.1.0.avro", b"orphan")
    assert world.run("clean_job", instance).success
    assert list(world.store.list("staging/")) == []


def test_progress_is_a_line_every_few_seconds() -> None:
    lines: list[str] = []
    now = [0.0]
    log = ProgressLog(lines.append, monotonic=lambda: now[0], every_seconds=5)
    for second in range(12):
        now[0] = float(second)
        log(Progress(positions=100, published=second, records=second))
    assert [line.split(" of ")[0] for line in lines] == ["0", "5", "10"]


def test_progress_shows_what_keeps_a_run_waiting() -> None:
    lines: list[str] = []
    ProgressLog(lines.append)(Progress(100, 5, 5, "no executor"))
    assert lines == ["5 of 100 positions (5%), 5 records; no executor"]


def test_a_run_with_nothing_to_read_says_nothing() -> None:
    lines: list[str] = []
    ProgressLog(lines.append)(Progress(0, 0, 0))
    assert lines == []


def counts_of(check: dg.AssetCheckEvaluation) -> list[dict[str, Any]]:
    """The table of a count."""
    table = check.metadata["counts"]
    assert isinstance(table, dg.TableMetadataValue)
    return [dict(record.data) for record in table.records]


def test_the_warehouse_is_counted_by_a_job(world: PlatformWorld, instance: dg.DagsterInstance) -> None:
    world.produce(3)
    world.produce(2, partition=1)
    world.run("extract_and_load", instance)
    check = check_of(world.run("reconcile_job", instance), check_names.COUNTS_AGREE)
    assert (check.passed, check.description) == (True, "all rows agree with what was loaded and committed")
    values = {name: entry.value for name, entry in check.metadata.items()}
    assert (values["rows"], values["duplicates"], values["problems"]) == (5, 0, 0)
    assert [(c["partition"], c["rows"]) for c in counts_of(check)] == [(f"{TOPIC}[0]", 3), (f"{TOPIC}[1]", 2)]


def test_counts_that_differ_fail_the_check_and_not_the_run(
    world: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    world.produce(3)
    world.produce(2, partition=1)
    world.run("extract_and_load", instance)
    rows = world.warehouse.stored[FLIGHTS].rows
    rows.append(next(row for row in rows if row.partition == 1))
    result = world.run("reconcile_job", instance)
    check = check_of(result, check_names.COUNTS_AGREE)
    assert (result.success, check.passed, check.severity) == (True, False, dg.AssetCheckSeverity.ERROR)
    assert f"{TABLE}: {TOPIC}[1] epoch 1: 3 rows of 2 offsets" in (check.description or "")
    first = counts_of(check)[0]
    assert (first["partition"], first["rows"], first["offsets"]) == (f"{TOPIC}[1]", 3, 2)


def test_a_count_that_agrees_says_what_it_did_not_compare(
    world: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    world.produce(3)
    world.run("extract_and_load", instance)
    world.kafka.delete_topic(TOPIC)
    check = check_of(world.run("reconcile_job", instance), check_names.COUNTS_AGREE)
    assert check.passed
    assert f"{TOPIC}[0]: not on the broker" in (check.description or "")


def test_the_count_of_some_days_reads_no_older_rows(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    world = PlatformWorld(tmp_path, KBQ_RECONCILE_DAYS="7")
    world.produce(3)
    world.run("extract_and_load", instance)
    today = datetime.fromtimestamp(world.clock.now_ms() / 1000, UTC).date()
    dates = world.warehouse.stored[FLIGHTS].dates
    for row, days in zip(world.warehouse.rows(FLIGHTS), (0, 7, 8), strict=True):
        dates[row] = today - timedelta(days)
    check = check_of(world.run("reconcile_job", instance), check_names.COUNTS_AGREE)
    assert (check.passed, check.metadata["rows"].value) == (True, 2)
    assert check.metadata["counted"].value == f"rows since {today - timedelta(7)}"


def test_the_daily_count_waits_to_be_turned_on(world: PlatformWorld) -> None:
    schedule = world.definitions.resolve_schedule_def("reconcile_schedule")
    assert (schedule.default_status, schedule.job.name) == (dg.DefaultScheduleStatus.STOPPED, "reconcile_job")


@pytest.mark.parametrize("job", ["extract_and_load", "extract_job", "load_job", "clean_job", "reconcile_job"])
def test_every_job_runs_on_an_empty_platform(
    world: PlatformWorld, instance: dg.DagsterInstance, job: str
) -> None:
    assert world.run(job, instance).success


def test_records_of_a_job_are_read_by_the_engine_alone(
    world: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    world.produce(1)
    world.kafka.produce(TopicPartition(TOPIC, 1), RECORD)
    world.run("extract_job", instance)
    assert world.engine.tasks > 0


def test_a_load_job_loads_files_of_one_schema(world: PlatformWorld, instance: dg.DagsterInstance) -> None:
    jobs: list[LoadJob] = []
    world.warehouse.job_errors = jobs.append
    world.produce(2)
    world.run("extract_and_load", instance)
    assert [str(job.table) for job in jobs if not job.replace] == [TABLE]
