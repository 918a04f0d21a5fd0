"""`kbq catalog`: validated without a network, shown completely, and compared and applied after showing a plan."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from kbq_assets.core.catalog.changes import LiveTopic
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets_tests.cli.conftest import Shell
from kbq_assets_tests.contracts.topic_admin import NUMBERS, OTHERS, json_order, order, proto_order
from kbq_assets_tests.fakes.platform import GOOD, TOPIC, FakePlatform
from kbq_assets_tests.worker.debezium.events import avro_envelope

PLACE = "shop/sales/orders"
ENTRY = f"consumers: [archiver]\nownership: {{team: sales}}\nkafka: {{name: {TOPIC}, partitions: 2}}\n"
Write = Callable[[Mapping[str, str]], None]


@pytest.fixture
def world(tmp_path: Path) -> FakePlatform:
    (tmp_path / "catalog").mkdir()
    return FakePlatform(tmp_path, environ={"KBQ_SOURCE_TOPICS": str(tmp_path / "catalog")})


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(texts: Mapping[str, str]) -> None:
        for path, text in texts.items():
            file = tmp_path / "catalog" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    write({f"{PLACE}/prod/topic.yaml": ENTRY, "catalog.yaml": "names: {dataset: '{company}'}"})
    return write


def test_a_catalogue_drives_extraction(world: FakePlatform, run: Shell, write: Write) -> None:
    world.produce(3)
    run.done("extract")
    run.done("load")
    assert {str(table.table): table.loaded_rows for table in world.parts.observer.tables()} == {
        "shop.orders": 3
    }


def test_an_entry_that_is_added_is_extracted_by_the_next_run(
    world: FakePlatform, run: Shell, write: Write
) -> None:
    parts = world.parts
    assert [source.pattern for source in parts.deployment.sources.read()] == [TOPIC]
    world.kafka.create_topic("shop.items", 1)
    world.kafka.produce(TopicPartition("shop.items", 0), GOOD)
    write({"shop/sales/items/prod/topic.yaml": "consumers: [archiver]\nkafka: {name: shop.items}"})
    assert [source.pattern for source in parts.deployment.sources.read()] == ["shop.items", TOPIC]
    run.done("extract")
    run.done("load")
    assert {str(t.table): t.loaded_rows for t in world.reopened().observer.tables()} == {"shop.items": 1}


ITEMS, ITEM = "shop.items", TopicPartition("shop.items", 0)
ITEMS_ENTRY = ENTRY.replace(TOPIC, ITEMS)
KEY = "loading: {load: upsert, key: [_kafka_offset]}\n"


@pytest.fixture
def two(world: FakePlatform, run: Shell, write: Write) -> FakePlatform:
    """Two topics; of the second, rows are loaded and others wait for an upsert."""
    write({"shop/sales/items/prod/topic.yaml": ITEMS_ENTRY + KEY})
    world.kafka.create_topic(ITEMS, 1)
    world.kafka.produce(ITEM, GOOD)
    run.done("extract")
    run.done("load")
    world.kafka.produce(ITEM, GOOD)
    run.done("extract")
    world.kafka.produce(ITEM, GOOD)
    world.produce(3)
    return world


def loaded_rows(world: FakePlatform) -> dict[str, int]:
    return {str(table.table): table.loaded_rows for table in world.reopened().observer.tables()}


@pytest.mark.parametrize(
    "text",
    [
        ITEMS_ENTRY + KEY + "checks: {max_lag: 1}\n",
        ITEMS_ENTRY + "loading: {load: upsert}\n",
        "kafka: [",
        ITEMS_ENTRY + KEY + "destination: {table: ORDERS}\nscope: secret\n",
    ],
)
def test_a_mistake_in_an_entry_stops_its_topic_alone_until_it_is_fixed(
    two: FakePlatform, run: Shell, write: Write, text: str
) -> None:
    path = "shop/sales/items/prod/topic.yaml"
    write({path: text})
    assert run("catalog", "validate").exit_code == 1
    staged = set(two.store.objects)

    extracted = run("extract")
    assert (extracted.exit_code, f"{path}:" in extracted.stdout) == (1, True)
    assert "next: kbq catalog validate" in extracted.stdout
    loaded = run("load")
    assert (loaded.exit_code, "its options are unknown" in loaded.stdout) == (1, True)
    assert loaded_rows(two) == {"shop.items": 1, "shop.orders": 3}, "the other topic goes on"
    run("clean")
    lost = staged - set(two.store.objects)
    assert not [each for each in lost if ITEMS in each and each.startswith(("staging/", "commits/"))]

    stops = json.loads(run("status", "--json").stdout)["stops"]
    assert [(stop["reason"], path in stop["message"]) for stop in stops] == [("wrong_entry", True)]
    assert any(name in run("check").stdout for name in (ITEMS, path))
    assert run("doctor").exit_code == 1

    write({path: ITEMS_ENTRY + KEY})
    run.done("extract")
    run.done("load")
    assert loaded_rows(two) == {"shop.items": 3, "shop.orders": 3}


def test_a_topic_that_is_named_says_why_it_is_not_extracted(
    two: FakePlatform, run: Shell, write: Write
) -> None:
    write({"shop/sales/items/prod/topic.yaml": ITEMS_ENTRY + "records: {kesy: true}"})
    result = run("extract", "--topic", ITEMS)
    assert (result.exit_code, "unknown key 'kesy'" in result.stderr) == (1, True)
    run.done("extract", "--topic", TOPIC)


def test_nothing_runs_if_the_catalog_s_own_file_has_a_mistake(run: Shell, write: Write) -> None:
    write({"catalog.yaml": "name: {dataset: x}"})
    result = run("plan")
    assert (result.exit_code, "catalog.yaml:1: name: unknown key 'name'" in result.stderr) == (1, True)
    assert "next: fix them: kbq catalog validate" in result.stderr


def test_validate_lists_every_mistake(run: Shell, write: Write) -> None:
    assert run.done("catalog", "validate") == "1 entry, environments: prod; no mistake\n"
    write({f"{PLACE}/prod/topic.yaml": "consumer: [x]\nscope: secret"})
    result = run("catalog", "validate")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1] == "1 entry, environments: prod; 2 mistakes"
    found = json.loads(run("catalog", "validate", "--json").stdout)
    assert [(each["line"], each["key"]) for each in found] == [(1, "consumer"), (2, "scope")]


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (order("a"), None),
        ("{", "not JSON"),
        ('{"type": "string"}', "the writer schema is not a record"),
        (order("_kafka_offset"), "collides with the metadata column '_kafka_offset'"),
        (order("created_at"), "created_at: is named like a time, but does not have a time's type"),
    ],
)
def test_schemas_are_judged_as_tables_will(
    run: Shell, write: Write, schema: str, expected: str | None
) -> None:
    write({f"{PLACE}/schemas/value.avsc": schema, "catalog.yaml": "rules: {time_fields: '.*_at'}"})
    result = run("catalog", "validate")
    assert result.exit_code == (1 if expected else 0)
    assert expected is None or f"{PLACE}/schemas/value.avsc:1: " in result.stdout
    assert expected is None or expected in result.stdout


JSON_ENTRY = {f"{PLACE}/prod/topic.yaml": ENTRY + "encoding: json-schema\n"}
PROTO_ENTRY = {f"{PLACE}/prod/topic.yaml": ENTRY + "encoding: protobuf\n"}
NESTED = proto_order("Line line = 1").replace("message", "message Line { string sent_at = 1; }\nmessage", 1)
STAMP = 'import "google/protobuf/timestamp.proto";\nmessage'


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (json_order(a="string"), None),
        ('{\n"type":', ":2: not JSON"),
        ('{"type": "string"}', ":1: does not describe objects, but rows need them"),
        (
            json_order(a="string", sent_at="string"),
            ":1: sent_at: is named like a time, but does not have a time's type",
        ),
        ('{"type": "object", "properties": {"sent_at": {"type": "string", "format": "date-time"}}}', None),
        (
            '{"type": "object", "properties": {"a": {"type": "array", "items": {"type": "object", "properties":'
            ' {"sent_at": {"type": "integer"}}}}}}',
            ":1: a.sent_at: is named like a time",
        ),
    ],
)
def test_json_schemas_are_judged_without_a_registry(
    run: Shell, write: Write, schema: str, expected: str | None
) -> None:
    write({**JSON_ENTRY, "catalog.yaml": "rules: {time_fields: '.*_at'}"})
    write({f"{PLACE}/schemas/value.json": schema})
    result = run("catalog", "validate")
    assert (result.exit_code, (expected or "no mistake") in result.stdout) == (1 if expected else 0, True)


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (proto_order("string a = 1"), None),
        ("message {", ":1: the schema is not Protobuf"),
        (proto_order("string a = 1", "int64 sent_at = 2"), ":3: Order.sent_at: is named like a time"),
        (proto_order("google.protobuf.Timestamp sent_at = 1").replace("message", STAMP, 1), None),
        (NESTED, ":2: Line.sent_at: is named like a time"),
    ],
)
def test_protobuf_schemas_are_compiled_when_they_are_judged(
    run: Shell, write: Write, schema: str, expected: str | None
) -> None:
    write({**PROTO_ENTRY, "catalog.yaml": "rules: {time_fields: '.*_at'}"})
    write({f"{PLACE}/schemas/value.proto": schema})
    result = run("catalog", "validate")
    assert (result.exit_code, (expected or "no mistake") in result.stdout) == (1 if expected else 0, True)
    run.done("plan")


def test_without_protoc_the_rest_is_judged_and_nothing_is_reported_as_well(
    run: Shell, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write({**PROTO_ENTRY, f"{PLACE}/schemas/value.proto": proto_order("string uncompiled = 1")})
    monkeypatch.setitem(sys.modules, "grpc_tools", None)
    result = run("catalog", "validate")
    step = "pip install 'kbq-assets[protobuf]', also on the workers if a Spark cluster runs the tasks"
    assert (result.exit_code, step in result.stderr) == (1, True)
    assert "no mistake" not in result.stdout
    write({f"{PLACE}/prod/topic.yaml": "scope: secret"})
    assert "'secret' is not a value of scope" in run("catalog", "validate").stdout


@pytest.mark.parametrize(
    ("entry", "path", "kind"), [(JSON_ENTRY, "value.json", "JSON"), (PROTO_ENTRY, "value.proto", "PROTOBUF")]
)
def test_every_kind_of_schema_goes_to_the_registry_as_what_it_is(
    world: FakePlatform, run: Shell, write: Write, entry: Mapping[str, str], path: str, kind: str
) -> None:
    first, second, wrong = OTHERS[kind]
    write({**entry, f"{PLACE}/schemas/{path}": first})
    run.done("catalog", "apply", "--yes")
    assert world.subjects.versions[f"{TOPIC}-value"] == [(first, kind)]
    write({f"{PLACE}/schemas/{path}": wrong})
    assert "not compatible with subject" in run("catalog", "validate", "--registry").stdout
    write({f"{PLACE}/schemas/{path}": second})
    assert run("catalog", "validate", "--registry").exit_code == 0
    assert f"register {PLACE}/schemas/{path}" in run("catalog", "diff").stdout


def test_a_partition_time_that_the_schema_lacks_is_a_mistake(run: Shell, write: Write) -> None:
    write({f"{PLACE}/prod/topic.yaml": ENTRY + "partition_time: ordered_at\n"})
    write({f"{PLACE}/prod/schemas/value.avsc": order("a")})
    result = run("catalog", "validate")
    assert result.exit_code == 1
    assert (
        f"{PLACE}/prod/topic.yaml:4: partition_time: {PLACE}/prod/schemas/value.avsc has no" in result.stdout
    )


@pytest.mark.parametrize(
    ("loading", "found"),
    [
        (
            "{load: upsert, key: [aa]}",
            "loading.key: {}/prod/schemas/value.avsc does not make a column 'aa' (did you mean 'a'?)",
        ),
        (
            "{load: delete_insert, key: [a], version: b}",
            "loading.version: {}/prod/schemas/value.avsc does not make a column 'b'",
        ),
        ("{load: upsert, key: [a, _kafka_partition]}", ""),
    ],
)
def test_a_key_that_the_schema_lacks_is_a_mistake(run: Shell, write: Write, loading: str, found: str) -> None:
    write({f"{PLACE}/prod/topic.yaml": ENTRY + f"loading: {loading}\n"})
    write({f"{PLACE}/prod/schemas/value.avsc": order("a")})
    result = run("catalog", "validate")
    assert (result.exit_code, found.format(PLACE) in result.stdout) == (int(bool(found)), True)


THREE_MISTAKES = """\
consumers: [archiver]
kafka: {name: shop.orders.v1, retention: 7 days}
partition_time: orderd_at
pii:
  fields:
    emial: drop
    _key: keep
columns: {adress: Where it goes.}
ownership: {teem: sales}
records: {errors: sometimes}
"""
FIELDS = {name: {"type": "string"} for name in ("ordered_at", "email", "address")}
OF_FIELDS = {
    "avsc": json.dumps(
        {"type": "record", "name": "O", "fields": [{"name": n, "type": "string"} for n in FIELDS]}
    ),
    "json": json.dumps({"type": "object", "properties": FIELDS}),
}


@pytest.mark.parametrize(("encoding", "extension"), [("avro", "avsc"), ("json-schema", "json")])
def test_one_run_reports_all_mistakes_of_an_entry_each_in_its_own_line(
    run: Shell, write: Write, encoding: str, extension: str
) -> None:
    path = f"{PLACE}/schemas/value.{extension}"
    write({path: OF_FIELDS[extension]})
    write({f"{PLACE}/prod/topic.yaml": THREE_MISTAKES, f"{PLACE}/defaults.yaml": f"encoding: {encoding}"})
    found = json.loads(run("catalog", "validate", "--json").stdout)
    assert {each["path"] for each in found} == {f"{PLACE}/prod/topic.yaml"}
    expected = [
        (2, "kafka.retention", "12h, 7d, or forever"),
        (3, "partition_time", "did you mean 'ordered_at'?"),
        (6, "pii.fields.emial", "did you mean 'email'?"),
        (8, "columns.adress", "did you mean 'address'?"),
        (9, "ownership.teem", "did you mean 'team'?"),
    ]
    assert [(each["line"], each["key"], each["hint"]) for each in found[:-1]] == (
        expected if encoding == "avro" else [each for each in expected if each[0] != 8]
    )
    assert (found[-1]["line"], found[-1]["key"]) == (10, "records.errors")


def test_a_mistake_in_a_default_is_reported_where_it_is(run: Shell, write: Write) -> None:
    write({f"{PLACE}/schemas/value.avsc": OF_FIELDS["avsc"], "defaults.yaml": "\npartition_time: orderd_at"})
    assert "defaults.yaml:2: partition_time: " in run("catalog", "validate").stdout


@pytest.mark.parametrize(("route", "exit_code"), [("{route: record_name}", 0), ("{table: orders}", 1)])
def test_a_union_of_records_is_a_table_for_each(run: Shell, write: Write, route: str, exit_code: int) -> None:
    write({f"{PLACE}/prod/topic.yaml": ENTRY + f"destination: {route}\n"})
    union = [json.loads(order("id")), json.loads(order("id").replace("Order", "Refund"))]
    write({f"{PLACE}/prod/schemas/value.avsc": json.dumps(union)})
    result = run("catalog", "validate")
    assert (result.exit_code, "route=record_name" in result.stdout) == (exit_code, exit_code == 1)
    assert run("catalog", "show", "shop.sales.orders").exit_code in (0, 1)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("orders_{field.b}", "has no field 'b', which names"),
        ("orders_{field.a}", "field 'a' cannot be part of a table's name"),
        ("orders_{key}", None),
    ],
)
def test_a_destination_that_the_schema_cannot_fill_is_a_mistake(
    run: Shell, write: Write, template: str, message: str | None
) -> None:
    write({f"{PLACE}/prod/topic.yaml": ENTRY + f'destination: {{table: "{template}"}}\n'})
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "double"}]}
    write({f"{PLACE}/prod/schemas/value.avsc": json.dumps(schema)})
    result = run("catalog", "validate")
    assert result.exit_code == (0 if message is None else 1)
    where = "schemas/value.avsc:1: " if "part of" in str(message) else "topic.yaml:4: destination.table: "
    assert message is None or f"{PLACE}/prod/{where}" in result.stdout
    assert message is None or message in result.stdout


@pytest.mark.parametrize(
    ("said", "field", "reported"),
    [
        ("auto", "eventTime", "eventTime: text, by its name"),
        ("auto", "note", "the Kafka time, because no field has a time"),
        ("{candidates: [sent, note]}", "note", "note: the first candidate there"),
    ],
)
def test_the_chosen_business_time_is_shown_with_the_reason(
    run: Shell, write: Write, said: str, field: str, reported: str
) -> None:
    write({f"{PLACE}/prod/topic.yaml": ENTRY + f"partition_time: {said}\n"})
    schema = json.dumps({"type": "record", "name": "R", "fields": [{"name": field, "type": "string"}]})
    write({f"{PLACE}/prod/schemas/value.avsc": schema})
    run.done("catalog", "validate")
    assert f"# business time: {reported}" in run("catalog", "show", TOPIC).stdout


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("", "no decision about fields that are tagged as personal data: a"),
        ("fields: {a: pseudonym}", ""),
        ("fields: {a: 'generalise:year'}", "cannot be generalised to year"),
        ("fields: {a: drop, b: drop}", "pii.fields.b: shop/sales/orders/schemas/value.avsc has no field 'b'"),
    ],
)
def test_personal_data_wants_decisions_that_can_be_carried_out(
    run: Shell, write: Write, fields: str, expected: str
) -> None:
    schema = order("a", "id").replace('"name": "a"', '"name": "a", "pii": "HIGH"')
    write({f"{PLACE}/prod/topic.yaml": ENTRY + f"pii: {{{fields}}}", f"{PLACE}/schemas/value.avsc": schema})
    result = run("catalog", "validate")
    assert (result.exit_code, expected in result.stdout) == (1 if expected else 0, True)


def test_the_registry_judges_compatibility_when_it_is_asked(
    world: FakePlatform, run: Shell, write: Write
) -> None:
    write({f"{PLACE}/schemas/value.avsc": NUMBERS})
    world.subjects.register(f"{TOPIC}-value", order("a"), "AVRO")
    assert run("catalog", "validate").exit_code == 0
    result = run("catalog", "validate", "--registry")
    assert result.exit_code == 1
    assert f"not compatible with subject {TOPIC}-value: TYPE_MISMATCH: a" in result.stdout


def test_show_prints_what_holds_for_a_topic_defaults_included(run: Shell, write: Write) -> None:
    write({"defaults.yaml": "encoding: json"})
    assert TOPIC in run.done("catalog", "show")
    text = run.done("catalog", "show", "orders")
    assert f"# topic {TOPIC}, rows go to shop.orders" in text
    assert 'encoding: "json"' in text
    assert run.json("catalog", "show", TOPIC)["tables"] == "shop.orders"
    assert "is not in the catalog" in run("catalog", "show", "other").stderr
    for wrong in ("order", "shop.ordres"):
        assert "did you mean" in run("catalog", "show", wrong).stderr


def test_the_environment_must_be_clear(run: Shell, write: Write, world: FakePlatform) -> None:
    write({f"{PLACE}/dev/topic.yaml": ""})
    assert "set KBQ_ENV to one of dev, prod" in run("plan").stderr
    assert "shop_dev_sales_orders_public_avro" in run.done("catalog", "show", "--env", "dev")
    assert "no environment 'test'" in run("catalog", "show", "--env", "test").stderr


def test_a_subject_that_the_registry_cannot_compare_is_a_line_of_its_own(
    world: FakePlatform, run: Shell, write: Write
) -> None:
    entry = ENTRY.replace("{name: shop.orders.v1, partitions: 2}", "{name: shop.items, partitions: 1}")
    write({f"{PLACE}/schemas/value.avsc": order("a"), "shop/sales/items/prod/topic.yaml": entry})
    write({"shop/sales/items/schemas/value.avsc": order("a")})
    world.subjects.broken = {"shop.items-value"}
    unknown = "shop.items-value: not compared: subject shop.items-value: HTTP 500"
    compared = run("catalog", "diff")
    assert compared.stdout.splitlines()[-1] == f"unknown: {unknown}"
    assert f"to do: register {PLACE}/schemas/value.avsc as subject {TOPIC}-value" in compared.stdout
    applied = run("catalog", "apply", "--yes")
    assert (applied.exit_code, f"{TOPIC}-value" in world.subjects.versions) == (75, True)
    assert run("catalog", "diff").exit_code == 75
    judged = run("catalog", "validate", "--registry")
    assert (judged.exit_code, "was not compared: subject shop.items-value: HTTP 500" in judged.stdout) == (
        1,
        True,
    )
    world.subjects.broken = set()
    assert run("catalog", "diff").exit_code == 1


def test_a_registry_that_answers_about_nothing_is_away(world: FakePlatform, run: Shell, write: Write) -> None:
    for number in range(4):
        name = f"shop.items{number}"
        write({f"shop/sales/items{number}/prod/topic.yaml": ENTRY.replace(TOPIC, name)})
        write({f"shop/sales/items{number}/schemas/value.avsc": order("a")})
        world.subjects.broken.add(f"{name}-value")
    result = run("catalog", "diff")
    assert (result.exit_code, result.stdout) == (75, "")


def test_apply_shows_asks_and_does(world: FakePlatform, run: Shell, write: Write) -> None:
    write({f"{PLACE}/schemas/value.avsc": order("a")})
    world.topic_admin.live = {"stranger": LiveTopic(1, 1)}
    compared = run("catalog", "diff")
    assert compared.exit_code == 1
    assert compared.stdout.splitlines() == [
        f"to do: create {TOPIC}: 2 partitions",
        f"to do: register {PLACE}/schemas/value.avsc as subject {TOPIC}-value",
        "by hand: stranger: not in the catalog",
    ]
    refused = run("catalog", "apply", answer="n\n")
    assert refused.exit_code == 1
    assert "nothing was changed" in refused.stdout
    assert world.topic_admin.live.keys() == {"stranger"}
    run.done("catalog", "apply", "--yes")
    assert world.topic_admin.live[TOPIC] == LiveTopic(2, 1)
    assert world.subjects.is_registered(f"{TOPIC}-value", order("a"), "AVRO")
    assert run("catalog", "diff").exit_code == 0
    assert "the broker matches the catalog" in run.done("catalog", "apply")


#: Unintended names, and a schema without decisions about its personal data.
MISTAKES = [
    {"catalog.yaml": "name: {topic: '{domain}.{topic}'}"},
    {f"{PLACE}/schemas/value.avsc": order("a").replace('"name": "a"', '"name": "a", "pii": "HIGH"')},
    {**PROTO_ENTRY, f"{PLACE}/schemas/value.proto": "message {"},
]


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("command", [("diff",), ("apply", "--yes")])
def test_nothing_is_applied_of_a_catalogue_with_mistakes(
    world: FakePlatform, run: Shell, write: Write, mistake: Mapping[str, str], command: tuple[str, ...]
) -> None:
    write(mistake)
    assert run("catalog", "validate").exit_code == 1
    result = run("catalog", *command)
    assert (result.exit_code, "the catalog has mistakes:" in result.stderr) == (1, True)
    assert "next: fix them: kbq catalog validate" in result.stderr
    assert (world.topic_admin.live, world.subjects.versions) == ({}, {})


def test_pages_are_of_catalogues_without_mistakes_and_what_is_shown_of_others_says_so(
    run: Shell, write: Write, tmp_path: Path
) -> None:
    write({"shop/sales/items/prod/topic.yaml": "scope: secret"})
    assert "the catalog has mistakes:" in run("catalog", "site", str(tmp_path / "site")).stderr
    assert not (tmp_path / "site").exists()
    shown = run("catalog", "show")
    assert (TOPIC in shown.stdout, "has mistakes" in shown.stderr) == (True, True)


def test_nothing_is_applied_where_the_registry_would_refuse_a_schema_half_way(
    world: FakePlatform, run: Shell, write: Write
) -> None:
    write({f"{PLACE}/schemas/value.avsc": NUMBERS})
    world.subjects.register(f"{TOPIC}-value", order("a"), "AVRO")
    result = run("catalog", "apply", "--yes")
    assert (result.exit_code, f"not compatible with subject {TOPIC}-value" in result.stderr) == (1, True)
    assert world.topic_admin.live == {}


def test_acls_are_shown_and_added_after_topics(world: FakePlatform, run: Shell, write: Write) -> None:
    write({f"{PLACE}/prod/topic.yaml": ENTRY + "producers: [web]\n"})
    write({"catalog.yaml": "access: {principal: 'User:{name}'}"})
    assert run("catalog", "diff").stdout.splitlines() == [
        f"to do: create {TOPIC}: 2 partitions",
        f"to do: allow User:web WRITE, DESCRIBE on topic {TOPIC}",
        f"to do: allow User:archiver READ, DESCRIBE on topic {TOPIC}",
    ]
    run.done("catalog", "apply", "--yes")
    assert len(world.topic_admin.acls) == 4
    assert run("catalog", "diff").exit_code == 0


def test_without_an_authorizer_everything_else_is_applied(
    world: FakePlatform, run: Shell, write: Write
) -> None:
    write({"catalog.yaml": "access: {principal: 'User:{name}'}"})
    world.topic_admin.problem = "the broker has no authorizer"
    assert "by hand: ACLs: the broker has no authorizer" in run.done("catalog", "apply", "--yes")
    assert TOPIC in world.topic_admin.live


def test_topics_to_be_ignored_are_no_difference(world: FakePlatform, run: Shell, write: Write) -> None:
    write({"catalog.yaml": "ignore: [tmp.*]"})
    world.topic_admin.live = {name: LiveTopic(1, 1) for name in ("tmp.a", "_schemas", "stranger")}
    assert run("catalog", "diff").stdout.splitlines()[1:] == ["by hand: stranger: not in the catalog"]


def test_init_writes_what_is_there_and_keeps_what_was_written(
    world: FakePlatform, run: Shell, tmp_path: Path
) -> None:
    world.topic_admin.live = {"shop.orders.v1": LiveTopic(3, 1), "clicks": LiveTopic(1, 1)}
    world.subjects.register("shop.orders.v1-value", order("a"), "AVRO")
    world.subjects.register("clicks-value", proto_order("string a = 1"), "PROTOBUF")
    world.topic_admin.live["db.shop.customers"] = LiveTopic(1, 1)
    world.subjects.register("db.shop.customers-value", json.dumps(avro_envelope()), "AVRO")
    folder = tmp_path / "catalog"
    run.done("catalog", "init", str(folder), "--company", "shop", "--domain", "found")
    changes = folder / "shop/found/db-shop-customers/prod"
    assert (
        "encoding: debezium\nrecords: {key_format: avro, tombstones: skip}"
        in (changes / "topic.yaml").read_text()
    )
    assert not (changes / "schemas").exists()
    entry = folder / "shop/found/shop-orders-v1/prod/topic.yaml"
    assert "encoding: avro" in entry.read_text()
    assert json.loads((entry.parent / "schemas/value.avsc").read_text()) == json.loads(order("a"))
    clicks = folder / "shop/found/clicks/prod"
    assert "encoding: protobuf" in (clicks / "topic.yaml").read_text()
    assert (clicks / "schemas/value.proto").read_text() == proto_order("string a = 1")
    assert run.done("catalog", "validate") == "3 entries, environments: prod; no mistake\n"
    assert run("catalog", "diff").exit_code == 0
    entry.write_text("description: mine")
    again = run.done("catalog", "init", str(folder), "--company", "shop", "--domain", "found")
    assert f"kept {entry}" in again
    assert entry.read_text() == "description: mine"


def test_init_leaves_out_topics_whose_schema_is_bad_and_names_them(
    world: FakePlatform, run: Shell, tmp_path: Path
) -> None:
    names = ("a.500", "b.broken", "c.strange", "d.deep", "orders", "plain")
    world.topic_admin.live = {name: LiveTopic(1, 1) for name in names}
    kinds = {"b.broken": ("{", "AVRO"), "c.strange": ("x", "THRIFT"), "d.deep": ("[" * 10**5, "JSON")}
    for name in names[:4]:
        world.subjects.versions[f"{name}-value"] = [kinds.get(name, (order("a"), "AVRO"))]
    world.subjects.register("orders-value", order("a"), "AVRO")
    world.subjects.broken.add("a.500-value")
    folder = tmp_path / "catalog"
    init = ("catalog", "init", str(folder), "--company", "shop", "--domain", "found")
    found = run(*init)
    assert found.exit_code == 1
    assert {path.parts[-3] for path in folder.rglob("topic.yaml")} == {"orders", "plain"}
    left_out = [line for line in found.output.splitlines() if line.startswith("left out")]
    for line, part in zip(sorted(left_out), ("HTTP 500", "not JSON", "THRIFT", "not JSON"), strict=True):
        assert part in line
    for name in ("b.broken", "c.strange", "d.deep"):
        del world.subjects.versions[f"{name}-value"]
    assert run(*init).exit_code == 75
    world.subjects.broken.clear()
    assert "wrote" in run.done(*init)
    wrong = run(*init, "--topic", "oders")
    assert (wrong.exit_code, "left out: oders: not on the broker" in wrong.output) == (1, True)


def test_the_site_shows_what_the_catalogue_and_the_state_know(
    world: FakePlatform, run: Shell, write: Write, tmp_path: Path
) -> None:
    schema = json.loads(order("a"))
    schema["fields"][0]["doc"] = "The <first> letter."
    write(
        {
            f"{PLACE}/prod/topic.yaml": ENTRY
            + "description: Orders & more.\npii: {level: LOW, tags: {a: LOW}, fields: {a: keep}}\n",
            f"{PLACE}/schemas/value.avsc": json.dumps(schema),
            "shop/sales/clicks/prod/topic.yaml": "description: <script>alert(1)</script>\nkafka: {name: clicks}",
        }
    )
    world.produce(3)
    run.done("extract")
    run.done("load")
    site = tmp_path / "site"
    assert "wrote 3 pages" in run.done("catalog", "site", str(site), "--state")
    index, page = (site / "index.html").read_text(), (site / "topics" / f"{TOPIC}.html").read_text()
    assert "Orders &amp; more." in index
    assert "<script>alert" not in index
    assert "not archived" in index
    assert "2 topics of the environment prod, 1 archived" in index
    for words in (
        "<td>3, 0 to load, ready",
        "<th>team</th>",
        "loaded within",
        '<span class="LOW">LOW</span>',
    ):
        assert words in page
    assert '<span class="soft">keep</span>' in page
    assert re.search(r"last load</th><td>[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}<", page)
    assert "The &lt;first&gt; letter." in page
    assert "FROM &#34;shop&#34;.&#34;orders&#34;" in page
    assert "http" not in index + page, "the pages name no other host"
    for column in ("_kafka_offset", "event_date"):
        assert f"<tr><td>{column}</td>" in page, "the table's own columns"


def test_a_table_is_found_by_its_name_with_the_columns_it_has(
    world: FakePlatform, run: Shell, write: Write
) -> None:
    schema = json.loads(order("a"))
    schema["fields"].append({"name": "late", "type": "string", "default": ""})
    write(
        {
            f"{PLACE}/prod/topic.yaml": f"{ENTRY}pii: {{tags: {{a: LOW}}}}\n",
            f"{PLACE}/schemas/value.avsc": json.dumps(schema),
        }
    )
    world.produce(3)
    run.done("extract")
    run.done("load")
    shown = run.json("catalog", "show", "shop.orders")
    columns = {column["name"]: column for column in shown["columns"]}
    assert (columns["a"]["pii"], columns["_kafka_offset"]["type"]) == ("LOW", "INT64")
    assert columns["late"]["mode"] == "not in the table"
    assert run.json("catalog", "show", "orders") == shown


def test_an_entry_is_shown_with_its_columns_and_a_query(run: Shell, write: Write) -> None:
    schema = json.loads(order("a"))
    schema["fields"][0]["doc"] = "The first letter."
    schema["fields"].append({"name": "many", "type": {"type": "array", "items": "long"}})
    entry = f"{ENTRY}pii: {{tags: {{a: LOW}}}}\n"
    write({f"{PLACE}/schemas/value.avsc": json.dumps(schema), f"{PLACE}/prod/topic.yaml": entry})
    shown = run.done("catalog", "show", TOPIC)
    assert "#   a  STRING  LOW  The first letter.\n" in shown
    assert "#   many  INT64  REPEATED\n" in shown
    assert '# FROM "shop"."orders"\n' in shown
    reported = json.loads(run.done("catalog", "show", TOPIC, "--json"))
    assert (reported["columns"][0]["name"], reported["columns"][0]["pii"]) == ("a", "LOW")


def test_what_describes_no_column_is_a_mistake(run: Shell, write: Write) -> None:
    entry = f"{ENTRY}columns: {{aa: The first letter., _kafka_key: The order's number.}}\n"
    write({f"{PLACE}/schemas/value.avsc": order("a"), f"{PLACE}/prod/topic.yaml": entry})
    found = run("catalog", "validate")
    assert found.exit_code == 1
    assert f"columns.aa: is not a column of {PLACE}/schemas/value.avsc (did you mean 'a'?)" in found.output
    assert "_kafka_key" not in found.output


def test_without_state_the_site_needs_nothing_but_the_catalogue(
    run: Shell, write: Write, tmp_path: Path
) -> None:
    run.done("catalog", "site", str(tmp_path / "site"))
    assert "last load" not in (tmp_path / "site" / "topics" / f"{TOPIC}.html").read_text()
