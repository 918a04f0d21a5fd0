"""Subjects of fuzzing: each makes its case from a seed and checks that a fault stays where it is."""

from __future__ import annotations

import functools
import io
import json
import random
import string
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import fastavro

from kbq_assets.adapters.catalog_files import parse_document
from kbq_assets.adapters.http import Reply
from kbq_assets.adapters.registry import ConfluentSchemaRegistry
from kbq_assets.adapters.registry.subjects import ConfluentSubjects
from kbq_assets.core import avro
from kbq_assets.core.catalog import CatalogProblem, build_catalog
from kbq_assets.core.config.parts import RegistrySettings
from kbq_assets.core.errors import KbqError
from kbq_assets.core.protocol.commits import Commit
from kbq_assets.core.protocol.names import commit_path
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.pipelines.protocol import state
from kbq_assets.worker.framing import KEY_HEADER, VALUE_HEADER
from kbq_assets_tests.adapters.protobuf.messages import ORDER, order
from kbq_assets_tests.core.catalog.documents import ENTRY
from kbq_assets_tests.fakes.platform import TOPIC, FakePlatform
from kbq_assets_tests.fuzz.mutate import mutated_json, mutated_text
from kbq_assets_tests.pipelines.filebatches.world import FilesWorld
from kbq_assets_tests.wire import generate, reference
from kbq_assets_tests.wire.samples import framed
from kbq_assets_tests.worker.debezium.events import (
    CREATE,
    DELETE,
    ENVELOPE_ID,
    MESSAGE,
    READ,
    SCHEMA_CHANGE,
    TRUNCATE,
    UPDATE,
    avro_envelope,
    envelope_schema,
    in_avro,
)

_OPTIONS: Final = (
    "",
    "event_date=auto on_incompatible=variant_column",
    "pii=id:null,items.sku:truncate:3,f0:drop,_key:keep,_headers:keep pii_others=keep",
    "event_date=f0|at tombstones=row",
)
#: Other ways to name the schema of a value, or of a key. The registry knows `_ID` and `_GUID`.
_FRAMINGS: Final = ("framing=header", "framing=none value_schema=77", "keys=true key_format=avro")
_OWN_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "avro": (*_FRAMINGS, "framing=single_object"),
    "debezium": ("load=upsert order=offset key=_kafka_key",),
    "json_schema": _FRAMINGS,
    "protobuf": _FRAMINGS,
}
#: Records of one schema and topic.
PER_SCHEMA: Final = 150
_ID: Final = 77
_GUID: Final = uuid.UUID(int=_ID)
_LEGAL: Final = string.ascii_letters + string.digits + "._-"


@dataclass(frozen=True)
class Subject:
    """A kind of input. ``run`` makes and judges ``cases`` cases from a seed, below a folder. ``share`` is its part of a
    campaign."""

    name: str
    share: float
    cases: int
    run: Callable[[int, Path], None]


# Records, in each format: a topic of them next to a healthy one, which is always extracted.


def _extract(format: str, seed: int, folder: Path) -> None:
    chance = random.Random(f"{format} {seed}")
    topic = "".join(chance.choices(_LEGAL, k=chance.choice((1, 8, 60, 118, 200, 249)))).strip(".") or "x"
    route = chance.choice(("", "route=record_name")) if format in ("avro", "protobuf") else ""
    options = (*_OPTIONS, *_OWN_OPTIONS.get(format, ()))
    more = options[seed % len(options)] + " validate=true" * (
        format == "json_schema" and chance.random() < 0.5
    )
    line = f"{topic} dataset=fuzz {route or f'table=t{seed}'} format={format} keys=true headers=true {more}"
    world = FakePlatform(folder, sources=f"{line}\n{TOPIC} dataset=shop table=orders\n", partitions=1)
    world.produce(2)
    world.kafka.create_topic(topic, 1)
    world.registry.guids[str(_GUID)] = _ID
    for value in _MAKERS[format](world, chance):
        name = chance.choice((VALUE_HEADER, KEY_HEADER, mutated_text("h", chance).replace("\ud800", "?")))
        named = (b"\x00" + _ID.to_bytes(4, "big"), b"\x01" + _GUID.bytes)
        headers = [(name, chance.choice([None, b"", b"\xff", *named]))]
        world.kafka.produce(
            TopicPartition(topic, 0), value, key=chance.choice([None, b"", b"\xff"]), headers=headers
        )
    report = world.parts.extractor.extract()
    commit = state.read(world.store, Commit, commit_path(TOPIC, 0)).value
    assert commit.partitions[0].next == 2, f"the neighbor was not read: {report.failures}"
    defects = [failure for failure in map(str, report.failures.values()) if "report a bug" in failure]
    assert not defects, defects
    for entry in world.store.list("staging/"):
        list(
            fastavro.reader(io.BytesIO(world.store.get(entry.path).data))
        )  # any reader takes each staged file
    load = world.parts.loader.load()
    assert [
        table for table in load.tables if str(table.table) == "shop.orders" and table.state != "idle"
    ] == []


def _avro(world: FakePlatform, chance: random.Random) -> list[bytes | None]:
    schema: Any = generate.make_schema(chance)
    node = avro.tree.parse(schema)
    bodies = [reference.encode(node, generate.make_value(node, chance), chance) for _ in range(10)]
    if chance.random() < 0.2:
        schema, bodies = ["null", schema], [b"\2" + body for body in bodies]
    if chance.random() < 0.5:
        schema = mutated_json(schema, chance)
    world.registry.schemas[_ID] = _as_text(schema, chance)
    return _damaged([framed(body, _ID) for body in bodies], chance)


def _json(world: FakePlatform, chance: random.Random) -> list[bytes | None]:
    return _damaged([_document(chance) for _ in range(10)], chance)


def _json_schema(world: FakePlatform, chance: random.Random) -> list[bytes | None]:
    schema = mutated_json(_JSON_SCHEMA, chance) if chance.random() < 0.5 else _json_schema_of(chance)
    world.registry.documents[_ID] = _as_text(schema, chance)
    return _damaged([framed(_document(chance), _ID) for _ in range(10)], chance)


def _json_schema_of(chance: random.Random) -> Any:
    """A schema of any keywords, whose types may contain themselves and one another."""
    definitions = {name: _part(chance, 3) for name in ("item", "id", "a")}
    return {**_JSON_SCHEMA, **_part(chance, 0), "definitions": definitions}


def _part(chance: random.Random, depth: int) -> Any:
    kinds: list[Any] = ["string", "integer", "number", "boolean", "null", "object", "array"]
    if depth > 4 or chance.random() < 0.3:
        kind = chance.choice(kinds)
        return {"type": chance.choice((kind, [kind, "null"], [kind, {"type": "object"}])), "description": "x"}
    inner = [_part(chance, depth + 1) for _ in range(chance.randrange(1, 4))]
    names = chance.sample(("id", "at", "price", "items", "first", "größe", "a b"), len(inner))
    match chance.randrange(5):
        case 0:
            return {chance.choice(("allOf", "anyOf", "oneOf", "type", "items")): inner}
        case 1:
            return {"$ref": f"#/definitions/{chance.choice(('item', 'id', 'a', 'x'))}"}
        case 2:
            return {"type": "array", "items": inner[0], "if": inner[-1], "then": inner[-1]}
        case _:
            any_name = chance.choice(("additionalProperties", "patternProperties", "x"))
            return {"type": "object", "properties": dict(zip(names, inner, strict=True)), any_name: inner[0]}


def _protobuf(world: FakePlatform, chance: random.Random) -> list[bytes | None]:
    world.registry.messages[_ID] = _as_mutated(ORDER, chance)
    index = chance.choice((b"\x00", b"\x02\x02", b"\x04\x04\x00", b"\x02\x7f"))
    messages = []
    for number in range(10):
        message = order(
            id=chance.randint(-(2**63), 2**63 - 1), note=_text(chance), price=chance.uniform(-1, 1)
        )
        message.by_sku[_text(chance)].count = number
        message.more.update({"a": [1, {"b": _text(chance)}]})
        messages.append(framed(index + message.SerializeToString(), _ID))
    return _damaged(messages, chance)


def _debezium(world: FakePlatform, chance: random.Random) -> list[bytes | None]:
    events: list[Any] = [CREATE, UPDATE, DELETE, READ, TRUNCATE, MESSAGE, SCHEMA_CHANGE]
    if chance.random() < 0.4:
        world.registry.schemas[ENVELOPE_ID] = _as_text(_maybe_mutated(avro_envelope(), chance), chance)
        return _damaged([in_avro(event) for event in events[:4]], chance)
    texts = []
    for event in events:
        payload = _maybe_mutated(event, chance)
        schema = _maybe_mutated(envelope_schema(), chance)
        texts.append(json.dumps(chance.choice((payload, {"schema": schema, "payload": payload}))))
    return _damaged([text.encode("utf-8", "surrogatepass") for text in texts], chance)


_MAKERS: Final[Mapping[str, Callable[[FakePlatform, random.Random], list[bytes | None]]]] = {
    "avro": _avro,
    "debezium": _debezium,
    "json": _json,
    "json_columns": _json,
    "json_schema": _json_schema,
    "protobuf": _protobuf,
}
_JSON_SCHEMA: Final = {
    "type": "object",
    "definitions": {
        "item": {"type": "object", "properties": {"sku": {"type": "string"}, "n": {"type": "integer"}}}
    },
    "properties": {
        "id": {"type": "integer"},
        "at": {"type": "string", "format": "date-time"},
        "price": {"type": ["number", "null"]},
        "items": {"type": "array", "items": {"$ref": "#/definitions/item"}},
        "first": {"anyOf": [{"$ref": "#/definitions/item"}, {"type": "null"}]},
    },
}


def _damaged(values: list[bytes], chance: random.Random) -> list[bytes | None]:
    """Valid values, and many more that are not."""
    broken = [
        generate.damaged(chance.choice(values), values, chance) for _ in range(PER_SCHEMA - len(values) - 1)
    ]
    return [*values, *broken, None]


def _document(chance: random.Random) -> bytes:
    item = {"sku": _text(chance), "n": chance.randint(-(2**40), 2**40)}
    document = {"id": 1, "at": "2026-01-01T00:00:00Z", "price": 1.5, "items": [item, item], "first": item}
    changed = mutated_json(document, chance) if chance.random() < 0.7 else document
    return json.dumps(changed, ensure_ascii=chance.random() < 0.5).encode("utf-8", "surrogatepass")


def _maybe_mutated(value: Any, chance: random.Random) -> Any:
    return mutated_json(value, chance) if chance.random() < 0.5 else value


def _text(chance: random.Random) -> str:
    return chance.choice(("", "a", "é", "😀", "\x00", "x" * 300, "a b"))


def _as_text(schema: Any, chance: random.Random) -> str:
    return _as_mutated(json.dumps(schema), chance, 0.2)


def _as_mutated(text: str, chance: random.Random, share: float = 0.5) -> str:
    return mutated_text(text, chance) if chance.random() < share else text


# Answers of a registry


class _Endpoint:
    """A registry's address whose answers are mutated."""

    address = "http://registry"

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def get(self, path: str) -> Reply:
        return self._reply(_answer_to(path))

    def post(self, path: str, body: Any) -> Reply:
        return self._reply({"is_compatible": False, "messages": ["a"], "id": 3})

    def _reply(self, answer: Any) -> Reply:
        chance = self._chance
        if chance.random() < 0.8:
            answer = mutated_json(answer, chance)
        text = _as_mutated(json.dumps(answer), chance, 0.2)
        status = chance.choice((200, 200, 200, 200, 404, 422, 409, 500, 401, 302, 204, 999))
        return Reply(status, text.encode("utf-8", "surrogatepass"))


def _answer_to(path: str) -> Any:
    if path.startswith("subjects?"):
        return ["a-value", "b-value"]
    if path.partition("?")[0].endswith("/versions"):
        return [1, 2]
    reference = {"name": "a.proto", "subject": "a", "version": 1}
    kind = {"schemaType": "PROTOBUF", "schema": ORDER, "references": [reference]}
    return {**kind, "id": 7, "version": 1, "subject": "a", "error_code": 40403, "compatibilityLevel": "FULL"}


def _registry(seed: int, folder: Path) -> None:
    chance = random.Random(f"registry {seed}")
    registry = ConfluentSchemaRegistry(RegistrySettings(url="http://registry"))
    registry.endpoints = [_Endpoint(chance)]  # type: ignore[list-item]
    subjects = ConfluentSubjects(registry)
    calls: tuple[Callable[[], Any], ...] = (
        lambda: registry.schema(_ID),
        lambda: registry.by_guid("a"),
        lambda: registry.versions("a-value"),
        subjects.names,
        lambda: subjects.latest("a-value"),
        lambda: subjects.incompatibilities("a-value", "{}", "JSON"),
        lambda: subjects.is_registered("a-value", "{}", "JSON"),
        lambda: subjects.register("a-value", "{}", "JSON"),
    )
    for call in calls:
        try:
            call()
        except KbqError as error:
            assert str(error).isprintable() or "\n" in str(error)


# Documents of the catalog

_YAML: Final = """
extends: [../defaults]
description: Orders & more
consumers: [archiver, warehouse]
kafka: {name: shop.orders, partitions: 3, config: {retention.ms: 604800000}}
destination: {dataset: shop, table: orders}
settings: &s {event_date: at, pii: "email:drop", tombstones: row}
more: *s
columns:
  x: {description: 'How many'}
"""


def _catalog(seed: int, folder: Path) -> None:
    chance = random.Random(f"catalog {seed}")
    for _ in range(10):
        text = mutated_text(_YAML, chance).encode("utf-8", "surrogatepass")
        document = parse_document(text, ENTRY)
        if not isinstance(document, CatalogProblem):
            assert all(map(str, build_catalog({ENTRY: document}, None).problems))


# Configurations of batches of files

_LOAD_JSON: Final = {
    "sourceFormat": "CSV", "skipLeadingRows": 1, "labels": {"a": "b"}, "dataSourceName": "s",
    "schema": {"fields": [{"name": "id", "type": "INT64"}]}, "timePartitioning": {"type": "DAY"},
    "destinationTable": {"datasetId": "x", "tableId": "y"},
    "destinationRegex": r"(?P<dataset>\w+)/(?P<table>\w+)/(?P<yyyy>.+)",
}  # fmt: skip


def _files(seed: int, folder: Path) -> None:
    """Ten batches, each with its own configuration, next to a healthy table."""
    chance, world = random.Random(f"files {seed}"), FilesWorld()
    world.batch("shop/healthy/1")
    for number in range(10):
        own = f"shop/bad{number}/{chance.choice(('1', '2026/01/01', '$2026', '²', '٣', 'x.y', 'é'))}"
        text = _as_text(mutated_json(_LOAD_JSON, chance), chance).encode("utf-8", "replace").decode()
        world.put(f"{chance.choice((own, own.rpartition('/')[0]))}/_config/load.json", text)
        if chance.random() < 0.3:
            sql = mutated_text("INSERT INTO {dest_dataset}.t FROM temp_ext", chance)
            world.put(f"{own}/_config/x.sql", sql.encode("utf-8", "replace").decode())
        world.batch(own)
    report = world.run()
    assert "shop/healthy/1" in world.loaded
    defects = [table.error for table in report.tables if "report a bug" in table.error]
    assert not defects, defects


SUBJECTS: Final = (
    *(Subject(format, 0.14, PER_SCHEMA, functools.partial(_extract, format)) for format in _MAKERS),
    Subject("registry", 0.06, 7, _registry),
    Subject("catalog", 0.06, 10, _catalog),
    Subject("files", 0.04, 10, _files),
)
