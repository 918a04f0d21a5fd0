"""Metadata for people: lag, age, cost, columns, per staged partition, table, topic and run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.defs.extraction.metadata import SHOWN_TOPICS
from kbq_assets_tests.defs.test_runs import materialise, materialise_tables, materialised
from kbq_assets_tests.defs.world import RECORD, TABLE, TOPIC, PlatformWorld

STAGED = dg.AssetKey("staged_files")


def observed(instance: dg.DagsterInstance, asset: dg.AssetKey) -> dict[str, Any]:
    """Metadata of an asset's last observation."""
    [record] = instance.fetch_observations(asset, limit=1).records
    assert record.asset_observation is not None
    return {name: entry.value for name, entry in record.asset_observation.metadata.items()}


def produce_at(world: PlatformWorld, seconds_ago: float) -> None:
    timestamp = world.clock.now_ms() - int(seconds_ago * 1000)
    world.kafka.produce(TopicPartition(TOPIC, 0), RECORD, timestamp=timestamp)


def test_what_was_read_to_the_end_has_no_lag_and_says_how_long_it_took(
    world: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    produce_at(world, 90)
    produce_at(world, 30)
    entries = materialised(world.run("extract_job", instance))[f"{TOPIC}/0/{TABLE}"]
    assert (entries["lag_records"], entries["lag_seconds"], entries["log_to_staged_seconds"]) == (0, 0, 90)


def test_what_a_limit_left_is_behind_by_no_more_than_the_last_files_age(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    world = PlatformWorld(
        tmp_path, partitions=1, chunk_records=1, KBQ_RUN_RECORDS="2", KBQ_WINDOW_RECORDS="1"
    )
    for seconds_ago in (90, 60, 30, 10):
        produce_at(world, seconds_ago)
    entries = materialised(world.run("extract_job", instance))[f"{TOPIC}/0/{TABLE}"]
    assert (entries["lag_records"], entries["lag_seconds"]) == (2, 60)
    assert observed(instance, STAGED)["run_lag_records"] == 2


def test_rows_without_a_business_time_are_counted_everywhere(
    world: PlatformWorld, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    (tmp_path / "topics.txt").write_text(f"{TOPIC} dataset=nyc table=flights event_date=sold_at")
    world.produce(2)
    entries = materialised(world.run("extract_job", instance))
    assert entries[f"{TOPIC}/0/{TABLE}"]["event_time_fallbacks"] == 2
    assert observed(instance, STAGED)["run_event_time_fallbacks"] == 2


def test_a_partition_that_was_chosen_and_is_stopped_is_not_called_up_to_date(
    world: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    world.produce(3)
    world.produce(3, partition=1)
    world.run("extract_job", instance)
    world.produce(3)
    world.kafka.delete_before(TopicPartition(TOPIC, 0), 5)
    result = materialise(world, instance, f"{TOPIC}/0/{TABLE}", f"{TOPIC}/1/{TABLE}")
    assert set(materialised(result)) == {f"{TOPIC}/1/{TABLE}"}


def test_a_table_shows_its_columns_its_age_and_its_row_count(
    world: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    produce_at(world, 45)
    entries = materialised(world.run("extract_and_load", instance))[TABLE]
    columns = {column.name: column.type for column in entries["dagster/column_schema"].columns}
    assert columns["x"] == "INT64"
    assert (entries["dagster/row_count"], entries["log_to_table_seconds"]) == (1, 45)
    assert entries["bytes"] > 0


def test_times_that_producers_chose_are_no_delays(world: PlatformWorld, instance: dg.DagsterInstance) -> None:
    produce_at(world, 13 * 365 * 24 * 3600)
    changed = materialised(world.run("extract_and_load", instance))
    assert not any("log_to_" in name for entries in changed.values() for name in entries)


def test_a_table_that_nothing_was_staged_for_is_up_to_date(
    world: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    result = materialise_tables(world, instance, TABLE)
    assert {key: entries["rows"] for key, entries in materialised(result).items()} == {TABLE: 0}


def test_an_error_table_is_brought_up_to_date_alone(
    world: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    world.kafka.produce(TopicPartition(TOPIC, 0), b"\x01poison")
    world.run("extract_and_load", instance)
    world.kafka.produce(TopicPartition(TOPIC, 0), b"\x01poison")
    world.produce(1)
    world.run("extract_job", instance)
    result = materialise_tables(world, instance, "nyc.kbq_errors")
    assert {key: entries["rows"] for key, entries in materialised(result).items()} == {"nyc.kbq_errors": 1}
    assert len(world.warehouse.rows(TableReference.parse(TABLE))) == 0


def test_a_topic_shows_what_was_read_of_it_over_time(
    world: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    for topic in ("other.a", "other.b"):
        world.kafka.create_topic(topic)
        world.produce(2, topic=topic)
    world.produce(5)
    world.run("extract_job", instance)
    found = observed(instance, dg.AssetKey(["kafka", TOPIC]))
    assert (found["records"], found["lag_records"], found["topics"]) == (5, 0, 1)
    together = observed(instance, dg.AssetKey(["kafka", "other.any"]))
    assert (together["records"], together["partitions"], together["topics"]) == (4, 2, 2)


def test_a_topic_that_nothing_was_read_of_writes_no_event(
    world: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    world.produce(1)
    world.run("extract_job", instance)
    world.run("extract_job", instance)
    assert len(instance.fetch_observations(dg.AssetKey(["kafka", TOPIC]), limit=9).records) == 1


def test_the_cost_of_a_topic_is_shared_out_among_its_partitions(
    world: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    world.produce(4)
    world.produce(4, partition=1)
    staged = materialised(world.run("extract_job", instance)).values()
    whole = observed(instance, STAGED)["run_core_seconds"]
    assert sum(entries["core_seconds"] for entries in staged) == pytest.approx(whole, abs=0.01)


@pytest.mark.thorough
def test_the_summary_names_the_topics_and_is_capped(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    world = PlatformWorld(tmp_path)
    for number in range(SHOWN_TOPICS + 5):
        world.kafka.create_topic(f"other.{number:03}")
        world.produce(1, topic=f"other.{number:03}")
    world.run("extract_job", instance)
    summary = observed(instance, STAGED)["summary"]
    assert "| other.000 | 1 | 1 | 0 | 0 |" in summary
    assert "…and 5 more" in summary


def test_the_summary_names_columns_that_are_variants_of_others(
    world: PlatformWorld, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    (tmp_path / "topics.txt").write_text(f"{TOPIC} dataset=nyc table=flights on_incompatible=variant_column")
    world.registry.schemas[9] = '{"type":"record","name":"R","fields":[{"name":"x","type":"bytes"}]}'
    world.produce(1)
    world.kafka.produce(TopicPartition(TOPIC, 0), b"\x00\x00\x00\x00\x09\x00")
    world.run("extract_job", instance)
    assert "- new: nyc.flights: x__bytes BYTES is a variant of x" in observed(instance, STAGED)["summary"]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [(["*.a/0/*", "other.c/*"], {"other.a", "other.c"}), (["other.b/0/nyc.Flight"], {"other.b"})],
)
def test_a_job_takes_keys_as_scattered_as_one_likes(
    world: PlatformWorld, instance: dg.DagsterInstance, keys: list[str], expected: set[str]
) -> None:
    for topic in ("other.a", "other.b", "other.c"):
        world.kafka.create_topic(topic)
        world.produce(1, topic=topic)
    world.run("extract_job", instance)
    for topic in ("other.a", "other.b", "other.c"):
        world.produce(1, topic=topic)
    result = world.run("extract_job", instance, config={"ops": {"extract": {"config": {"keys": keys}}}})
    assert {(key or "").split("/")[0] for key in materialised(result)} == expected


def test_a_key_that_matches_nothing_fails_and_reads_nothing(
    world: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    world.produce(1)
    config = {"ops": {"load": {"config": {"keys": ["no.such"]}}}}
    assert not world.run("load_job", instance, config=config).success
