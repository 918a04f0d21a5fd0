"""The pages over real HTTP respond even if services are down, and say which services, and how old their data is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kbq_assets.core.errors import ConfigurationError, Unavailable
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.extras.metrics.families import GAUGE, labelled
from kbq_assets.pipelines.operate.commands import propose_park_table
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets_tests.extras.metrics.http import Site, site
from kbq_assets_tests.extras.metrics.scrape import parsed, types, values
from kbq_assets_tests.fakes.faults import Outcome
from kbq_assets_tests.fakes.platform import POISON, TOPIC, UNKNOWN_SCHEMA, FakePlatform

KBE = {
    "gcswriter_filecount": "counter",
    "gcswriter_closedfilecount": "counter",
    "gcswriter_avrofilesdeletedcounter": "counter",
    "gcswriter_consumedmessages": "counter",
    "gcswriter_publishbatchsize": "histogram",
    "gcswriter_latency": "histogram",
    "gcswriter_bytes_written": "counter",
    "bqwriter_submittedjobstobq": "counter",
    "bqwriter_failed_bqjobs": "counter",
    "bqwriter_bqjobs_count": "gauge",
    "bqwriter_stagingfiles": "gauge",
    "bqwriter_stagingfilesdeleted": "counter",
}


@pytest.fixture
def world(tmp_path: Path) -> FakePlatform:
    return FakePlatform(tmp_path)


@pytest.fixture
def pages(world: FakePlatform) -> Iterator[Site]:
    """The service of a world in which something was extracted and loaded, and something waits."""
    world.produce(5)
    world.produce(1, value=POISON)
    world.parts.extractor.extract()
    world.parts.loader.load()
    world.produce(3, partition=1)
    with site(world.reopened()) as running:
        yield running


def test_the_process_says_that_it_lives_before_its_first_poll(pages: Site) -> None:
    assert pages.get("/healthcheck")[:1] == (200,)
    assert pages.get("/")[2] == "kbq, ready for service\n"
    assert pages.json("/version")["name"] == "kbq-assets"
    assert pages.json("/status")["status"] is None
    status, content_type, body = pages.get("/metrics")
    assert (status, content_type) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert "kbq_build_info" in body


def test_kafka_bigquery_express_s_names_are_served_as_they_are(pages: Site) -> None:
    pages.watches.poll()
    body = pages.get("/metrics")[2]
    declared = types(body)
    assert {name: declared.get(name) for name in KBE} == KBE
    found = parsed(body)
    assert found["gcswriter_consumedmessages"] == {(): 6}
    assert not any(name.endswith("_total") for name in found if not name.startswith("kbq_"))
    assert (
        found["gcswriter_publishbatchsize_bucket"][("10",)]
        == found["gcswriter_publishbatchsize_count"][()]
        == 1
    )
    assert {"gcswriter_latency_bucket", "gcswriter_latency_sum", "gcswriter_latency_count"} <= found.keys()


def test_every_family_says_what_it_is_and_none_appears_twice(pages: Site) -> None:
    pages.watches.poll()
    names = [family.name for family in pages.watches.families()]
    assert len(names) == len(set(names))
    assert all(family.help for family in pages.watches.families())
    own = [name for name in names if name not in KBE]
    assert all(name.startswith("kbq_") for name in own)
    counters = [f.name for f in pages.watches.families() if f.kind == "counter" and f.name not in KBE]
    assert all(name.endswith("_total") for name in counters)


def test_what_waits_on_the_broker_is_lag(pages: Site) -> None:
    pages.watches.poll()
    found = parsed(pages.get("/metrics")[2])
    assert found["kbq_lag_records"] == {("shop.orders.v1",): 3}
    assert found["kbq_up"] == {("broker",): 1, ("warehouse",): 1, ("store",): 1}


def test_lag_is_reported_per_partition_where_it_is_asked_for(tmp_path: Path) -> None:
    world = FakePlatform(tmp_path, environ={"KBQ_LAG_LABEL": "partition"})
    world.produce(2, partition=1)
    with site(world.parts) as running:
        running.watches.poll()
        found = parsed(running.get("/metrics")[2])
    assert found["kbq_lag_records"] == {("0", "shop.orders.v1"): 0, ("1", "shop.orders.v1"): 2}


class Away:
    """A port that does not answer while ``away``."""

    def __init__(self, port: object) -> None:
        self._port = port
        self.away = False

    def __getattr__(self, name: str) -> Any:
        if self.away:
            raise Unavailable("it does not answer", next_step="wait")
        return getattr(self._port, name)


@pytest.mark.parametrize("dependency", ["broker", "warehouse", "store"])
def test_a_dependency_that_goes_away_takes_no_page_with_it(world: FakePlatform, dependency: str) -> None:
    world.produce(5)
    world.parts.extractor.extract()
    away = Away({"broker": world.kafka, "warehouse": world.warehouse, "store": world.store}[dependency])
    opener = {"broker": "offsets", "warehouse": "warehouse", "store": "store"}[dependency]
    opened: dict[str, Any] = {opener: lambda: away}
    with site(world.reopened(**opened)) as running:
        running.watches.poll()
        before = parsed(running.get("/metrics")[2])
        away.away = True
        world.clock.seconds += 100
        running.watches.poll()
        after, document = parsed(running.get("/metrics")[2]), running.json("/status")
        assert running.get("/healthcheck")[0] == 200
    assert after["kbq_up"] == {**before["kbq_up"], (dependency,): 0}
    assert after["kbq_reading_age_seconds"][(dependency,)] == 100
    assert after["gcswriter_consumedmessages"] == before["gcswriter_consumedmessages"] == {(): 5}
    assert after["kbq_lag_records"] == before["kbq_lag_records"]
    [problem] = [p for p in document["problems"] if p["what"] == dependency]
    assert "does not answer" in problem["message"]
    assert document["dependencies"][dependency]["age_seconds"] == 100


def test_a_broker_that_was_never_there_leaves_lag_out_and_all_else_in(world: FakePlatform) -> None:
    world.produce(2)
    world.parts.extractor.extract()
    away = Away(world.kafka)
    away.away = True
    opened: dict[str, Any] = {"offsets": lambda: away}
    with site(world.reopened(**opened)) as running:
        running.watches.poll()
        found, document = parsed(running.get("/metrics")[2]), running.json("/status")
    assert "kbq_lag_records" not in found
    assert found["kbq_backlog_rows"] == {("shop.orders",): 2}
    assert document["lag_known"] is False


def test_a_page_asks_nothing_of_the_store(pages: Site, world: FakePlatform) -> None:
    pages.watches.poll()
    asked: list[object] = []

    def asks(call: object) -> Outcome:
        asked.append(call)
        return Outcome.OK

    world.store.faults = asks
    for page in ("/metrics", "/status", "/healthcheck"):
        assert pages.get(page)[0] == 200
    assert asked == []


def test_status_names_what_waits_for_an_operator_and_the_commands_that_go_on(
    pages: Site, world: FakePlatform
) -> None:
    world.produce(1, value=UNKNOWN_SCHEMA)
    world.parts.extractor.extract()
    propose_park_table(world.store, TableReference("shop", "orders")).apply()
    pages.watches.poll()
    document = pages.json("/status")
    commands = [command for problem in document["problems"] for command in problem["commands"]]
    assert "kbq resume --table shop.orders" in commands
    assert any(command.startswith("kbq resume --topic shop.orders.v1 --partition 0") for command in commands)
    found = parsed(pages.get("/metrics")[2])
    assert found["kbq_table_parked"] == {("shop.orders",): 1}
    assert found["kbq_parked_tables"] == found["kbq_stopped"] == {(): 1}
    assert document["status"]["tables"][1]["state"] == "parked"


def test_a_stopped_backup_is_measured_and_named_with_its_own_command(world: FakePlatform) -> None:
    world.source_topics.write_text(f"{TOPIC} dataset=shop table=orders backup=only\n")
    world.produce(3)
    with site(world.reopened()) as running:
        world.reopened().extractor.extract()
        world.produce(2)
        running.watches.poll()
        found = parsed(running.get("/metrics")[2])
        assert found["kbq_backup_lag_records"] == {(TOPIC,): 2}
        assert found["kbq_up"]["backups",] == 1
        assert "kbq_stopped_backups" not in found
        world.kafka.recreate_topic(TOPIC)
        running.watches.poll()
        assert parsed(running.get("/metrics")[2])["kbq_stopped_backups"] == {("recreated",): 1}
        [problem] = running.json("/status")["problems"]
    assert problem["what"] == f"backup of {TOPIC}"
    assert problem["commands"] == [f"kbq backup reset --topic {TOPIC}"]


def test_a_place_of_backups_out_of_reach_keeps_no_other_metric_away(world: FakePlatform) -> None:
    world.produce(3)
    world.parts.extractor.extract()
    world.source_topics.write_text(f"{TOPIC} dataset=shop table=orders backup=true\n")

    def away(area: str, role: object) -> ObjectStore:
        raise ConfigurationError("no such bucket", next_step="create it")

    with site(world.reopened(backup=away)) as running:
        running.watches.poll()
        found = parsed(running.get("/metrics")[2])
    assert found["kbq_stopped_backups"] == {("backup_unreachable",): 1}
    assert found["kbq_records_total"] == {(TOPIC,): 3}


def test_labels_of_any_text_are_read_back_as_they_were(world: FakePlatform) -> None:
    text = 'a "quoted" \\ line\nbreak'
    assert values([labelled("kbq_x", GAUGE, "x", "l", {text: 1.0})]) == {"kbq_x": {(text,): 1.0}}
