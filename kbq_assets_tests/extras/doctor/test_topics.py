"""`kbq doctor` finds what would make the next extraction fail, over a platform of fakes."""

from __future__ import annotations

import json
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kbq_assets.core.config.settings import parse_settings
from kbq_assets.extras.doctor import places
from kbq_assets.extras.doctor.check import Check, Outcome
from kbq_assets.extras.doctor.cli import Doctor, LocalServices, examine, examine_topics
from kbq_assets_tests.fakes.platform import SCHEMAS, TOPIC, FakePlatform
from kbq_assets_tests.fixtures.local_stack import free_ports
from kbq_assets_tests.worker.debezium.events import avro_envelope

FAIL, OK = Outcome.FAIL, Outcome.OK


def examined(world: FakePlatform) -> list[Check]:
    parts = world.reopened()
    local = LocalServices("", "", lambda: ())
    patient = Doctor(
        parts.deployment, lambda: world.registry, lambda: world.subjects, local, lambda name: parts
    )
    return list(examine_topics(patient, has_broker=True, has_registry=True))


def failed(world: FakePlatform) -> list[Check]:
    return [check for check in examined(world) if check.outcome is not OK]


def listed(options: str) -> Callable[[FakePlatform], None]:
    def write(world: FakePlatform) -> None:
        world.source_topics.write_text(f"{TOPIC} dataset=shop {options}\n")

    return write


def no_topic(world: FakePlatform) -> None:
    world.source_topics.write_text("")


def no_archiver(world: FakePlatform) -> None:
    world.source_topics.unlink()
    entry = world.source_topics / "shop" / "sales" / "orders" / "prod" / "topic.yaml"
    entry.parent.mkdir(parents=True)
    entry.write_text(f"kafka: {{name: {TOPIC}}}")


def out_of_reach(world: FakePlatform) -> None:
    world.kafka.advertised = [("127.0.0.1", free_ports(1)[0])]


def unreadable_schema(world: FakePlatform) -> None:
    world.registry.schemas[1] = '"string"'


def misspelt(world: FakePlatform) -> None:
    world.registry.schemas[1] = SCHEMAS[1].replace('"x"', '"ordered_at"')
    listed("event_date=orderd_at")(world)


def change_data(schema: Any, options: str = "format=debezium") -> Callable[[FakePlatform], None]:
    def harm(world: FakePlatform) -> None:
        world.registry.schemas[1] = json.dumps(schema)
        listed(options)(world)

    return harm


def test_the_envelope_of_change_data_is_judged_by_its_rows(tmp_path: Path) -> None:
    world = FakePlatform(tmp_path)
    world.registry.subjects[f"{TOPIC}-value"] = {1: 1}
    tagged = avro_envelope({"email": {"type": "string", "pii": "HIGH"}})
    change_data(tagged, "format=debezium pii=email:drop event_date=__source.ts_ms")(world)
    assert failed(world) == []
    change_data(tagged)(world)
    [check] = failed(world)
    assert "personal data: email" in check.found


@pytest.mark.parametrize(
    ("harm", "name", "found", "fix"),
    [
        (no_topic, "topics", "chooses no topic", "add topics"),
        (no_archiver, "topics", "chooses no topic", "add archiver to the consumers"),
        (listed("pii=x:pseudonym,_key:keep headers=false"), "pseudonym keys", TOPIC, "kbq pii new-key"),
        (listed("pii=x:drop,_key:keep pii_errors=seal"), "seal key", TOPIC, "kbq pii keygen"),
        (listed("format=avr"), "topics", "format", ""),
        (out_of_reach, "brokers", "127.0.0.1:", "advertised.listeners"),
        (unreadable_schema, "schemas", "not a record", "unstageable_schema"),
        (change_data(avro_envelope({"__op": "int"})), "schemas", "collides", "rename"),
        (misspelt, "schemas", "did you mean ordered_at?", "correct the topic's options"),
        (lambda world: world.source_topics.write_text("other dataset=d"), "topics", "not on the broker: other", ""),
    ],
)  # fmt: skip
def test_what_the_next_run_would_fail_on_is_found_with_its_fix(
    tmp_path: Path, harm: Callable[[FakePlatform], None], name: str, found: str, fix: str
) -> None:
    world = FakePlatform(tmp_path)
    world.registry.subjects[f"{TOPIC}-value"] = {1: 1}
    assert failed(world) == []
    harm(world)
    [check] = failed(world)
    assert (check.name, found in check.found, fix in check.fix) == (name, True, True), check


def test_a_key_that_is_there_and_a_broker_within_reach_are_fine(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text(
        json.dumps({"current": "a", "keys": {"a": "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="}})
    )
    world = FakePlatform(tmp_path, environ={"KBQ_PII_KEYS": f"file:{keys}"})
    listed("pii=x:pseudonym,_key:keep headers=false")(world)
    with socket.create_server(("127.0.0.1", 0)) as server:
        world.kafka.advertised = [server.getsockname()]
        assert failed(world) == []
    keys.write_text("{}")
    assert [check.name for check in failed(world)] == ["brokers", "pseudonym keys"]


def test_protobuf_without_protoc_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = FakePlatform(tmp_path)
    listed("format=protobuf")(world)
    assert failed(world) == []
    monkeypatch.setitem(sys.modules, "grpc_tools", None)
    [check] = failed(world)
    step = "pip install 'kbq-assets[protobuf]', also on the workers if a Spark cluster runs the tasks"
    assert (check.name, check.fix) == ("protoc", step)


def test_the_room_of_each_disk_is_checked_under_its_own_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_disks = (Path("/dev/shm"), Path("/proc"))
    small = next(
        each for each in other_disks if each.is_dir() and each.stat().st_dev != tmp_path.stat().st_dev
    )
    environ = {"KBQ_HOME": str(tmp_path), "KBQ_STAGING": str(small / "kbq-test" / "staging")}
    usage = shutil.disk_usage(tmp_path)
    free = {tmp_path: 50.0, small: 0.1}
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=int(free[path] * places.GIB)))
    home, staging = places.disks([parse_settings(environ)])
    assert (home.name, home.outcome, staging.name, staging.outcome) == ("disk", OK, "staging space", FAIL)
    assert "KBQ_STAGING" in staging.fix


@pytest.mark.parametrize(
    ("master", "address", "needed"),
    [
        ("local[1]", "", {"java", "pyspark"}),
        ("processes[1]", "", set()),
        ("processes[1]", "127.0.0.1:9", {"java"}),
    ],
    ids=["Spark", "processes", "processes, and a broker of kbq local"],
)
def test_java_and_pyspark_are_asked_for_only_where_something_runs_on_them(
    tmp_path: Path, master: str, address: str, needed: set[str]
) -> None:
    environ = {"KBQ_SPARK_MASTER": master, "KBQ_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:9"}
    world = FakePlatform(tmp_path, environ=environ)
    parts = world.parts
    local = LocalServices(address, "", lambda: ())
    patient = Doctor(
        parts.deployment, lambda: world.registry, lambda: world.subjects, local, lambda name: parts
    )
    names = {check.name for check in examine(patient)}
    assert {"java", "pyspark"} & names == needed


@pytest.mark.parametrize(("first", "is_named"), [(TOPIC, True), ("shop*", True), ("other*", False)])
def test_a_line_that_an_earlier_line_hides_is_named(world: FakePlatform, first: str, is_named: bool) -> None:
    world.source_topics.write_text(f"{first} dataset=a\n{TOPIC} dataset=b\n")
    found = [check for check in failed(world) if "never applies" in check.found]
    expected = f"the line of {TOPIC} never applies: the line of {first} comes first"
    assert [check.found for check in found] == [expected] * is_named
