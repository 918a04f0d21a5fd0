"""A replay from a backup needs no registry, however records and keys name their schemas (PROTOCOL B8)."""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kbq_assets.core.avro.canonical import rabin_fingerprint
from kbq_assets.core.avro.tree import load_schema, parse
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets_tests.cli.conftest import Shell, cycle
from kbq_assets_tests.fakes.platform import GOOD, SCHEMAS, SOURCES, TOPIC, FakePlatform

GUID = uuid.UUID("12345678-0000-4000-8000-000000000001")
BODY = GOOD[5:]
ID = GOOD[:5]
FINGERPRINT = rabin_fingerprint(parse(load_schema(SCHEMAS[1])))


@dataclass(frozen=True)
class Named:
    """A record, and the options that say how it names its schema."""

    options: str
    value: bytes
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = field(default=())


CASES = {
    "declared": Named("framing=none value_schema=1", BODY),
    "header with an id": Named("framing=header", BODY, headers=(("__value_schema_id", ID),)),
    "header with a GUID": Named(
        "framing=header", BODY, headers=(("__value_schema_id", b"\x01" + GUID.bytes),)
    ),
    "GUID before the value": Named("framing=header", b"\x01" + GUID.bytes + BODY),
    "fingerprint": Named("framing=single_object", b"\xc3\x01" + FINGERPRINT + BODY),
    "keys": Named("key_format=avro", GOOD, struct.pack(">bI", 0, 2) + b"\x02\x02a"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_registry_is_gone_when_the_backup_is_read(tmp_path: Path, case: str) -> None:
    named = CASES[case]
    options = f"table=orders backup=true {named.options}"
    world = FakePlatform(
        tmp_path, keep_records=True, partitions=1, sources=SOURCES.replace("table=orders", options)
    )
    world.registry.guids[str(GUID)] = 1
    world.registry.subjects[f"{TOPIC}-value"] = {1: 1}
    for _ in range(3):
        world.kafka.produce(TopicPartition(TOPIC, 0), named.value, key=named.key, headers=named.headers)
    run = Shell(world)
    cycle(run)
    before = world.warehouse.records(TableReference("shop", "orders"))
    assert len(before) == 3
    for down in (True, False):
        world.registry.down = down
        world.registry.schemas.clear()
        run.done("replay", "start", TOPIC, "--source", "backup", "--yes")
        number = 1 if down else 2
        assert world.warehouse.records(TableReference("shop", f"_kbq_replay_{number}_orders")) == before
    run.done("backup", "verify")


@pytest.mark.parametrize("damage", [b"", b"[]", b'{"s": 1}', b'{"shop.orders.v1-value": {"1": 2}}'])
def test_damaged_versions_of_a_subject_are_not_used(tmp_path: Path, damage: bytes) -> None:
    options = "table=orders backup=true framing=single_object"
    world = FakePlatform(tmp_path, partitions=1, sources=SOURCES.replace("table=orders", options))
    world.registry.subjects[f"{TOPIC}-value"] = {1: 1}
    world.kafka.produce(TopicPartition(TOPIC, 0), CASES["fingerprint"].value)
    run = Shell(world)
    cycle(run)
    [path] = [path for path in world.objects() if "/versions-" in path]
    world.store.swap(path, damage, world.store.get(path).generation)
    world.registry.down = True
    assert run("replay", "start", TOPIC, "--source", "backup", "--yes").exit_code == 75
    world.registry.down = False
    run.done("replay", "resume", "1")
