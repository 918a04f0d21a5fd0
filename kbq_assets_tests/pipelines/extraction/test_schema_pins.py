"""A registry that has another schema under a known id stops the partitions whose records name it (PROTOCOL E12)."""

from __future__ import annotations

import json
import struct

import pytest

from kbq_assets.core.errors import Refused, SchemaChanged
from kbq_assets.core.protocol.commits import Stop
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.pipelines.operate.commands import propose_new_schemas, propose_resume
from kbq_assets.ports.registry import RegisteredSchema
from kbq_assets.worker.pinned_schemas import PinnedSchemas
from kbq_assets_tests.fakes.registry import FakeRegistry
from kbq_assets_tests.pipelines.bench import SCHEMAS, TOPIC, TP, A, B, Bench

OTHER = '{"type":"record","name":"A","fields":[{"name":"z","type":"long"}]}'


def _stop(bench: Bench, partition: int = 0) -> Stop | None:
    return bench.commit().partitions[partition].stop


@pytest.fixture
def bench() -> Bench:
    """A bench whose registry was emptied and refilled: the schema id of the record at offset 1 now means another
    schema."""
    bench = Bench(partitions=2)
    bench.produce(1)
    bench.extract()
    bench.registry.schemas[1] = OTHER
    bench.produce(1, 1)
    bench.produce(3, partition=1)
    [stop] = bench.extract().stops
    assert (stop.reason, bench.commit().partitions[0].next) == ("schema_changed", 1)
    assert stop.commands[1] == f"kbq resume --topic {TOPIC} --new-schemas"
    return bench


def test_no_record_is_decoded_by_another_schema_and_others_are_read(bench: Bench) -> None:
    bench.load()
    assert (bench.offsets(A), bench.offsets(B)) == ([0], [0])
    stop = _stop(bench)
    assert stop is not None
    assert "schema 1 differs from the one" in stop.message


def test_a_restored_registry_lets_the_partition_continue_without_a_command(bench: Bench) -> None:
    bench.registry.schemas[1] = SCHEMAS[1]
    bench.store.time_ms += 60_000
    bench.extract()
    bench.extract()
    bench.load()
    assert (_stop(bench), bench.offsets(A)) == (None, [0, 1, 2])


def test_an_operator_may_accept_the_registrys_schemas(bench: Bench) -> None:
    proposal = propose_new_schemas(bench.store, TOPIC)
    assert "ids 1, 3:" in proposal.lines[0]
    proposal.apply()
    assert not bench.extract().stops
    bench.load()
    assert bench.offsets(A) == [0, 1, 2]
    bench.registry.schemas[1] = SCHEMAS[1]
    bench.produce(1)
    assert [stop.reason for stop in bench.extract().stops] == ["schema_changed"]


def test_neither_a_try_nor_error_rows_pass_it(bench: Bench) -> None:
    with pytest.raises(Refused, match="schema_changed"):
        propose_resume(bench.store, TOPIC, as_errors=True)
    propose_resume(bench.store, TOPIC).apply()
    assert [stop.reason for stop in bench.extract().stops] == ["schema_changed"]
    assert bench.commit().partitions[0].next == 1


def test_a_unit_that_meets_two_schemas_under_one_id_stops_at_the_second() -> None:
    schemas = PinnedSchemas(registry := FakeRegistry(SCHEMAS), {})
    first = schemas.schema(1)
    registry.schemas[1] = OTHER
    with pytest.raises(SchemaChanged, match="schema 1 differs"):
        schemas.schema(1)
    assert schemas.seen == {1: first.fingerprint}


def test_the_layout_of_a_schema_is_no_change() -> None:
    bench = Bench()
    bench.produce(1)
    bench.extract()
    bench.registry.schemas[1] = json.dumps(json.loads(SCHEMAS[1]), indent=2)
    bench.produce(1)
    assert not bench.extract().stops


def test_tasks_that_see_different_schemas_do_not_both_publish() -> None:
    bench = Bench(partitions=2)
    bench.produce(1)
    bench.produce(1, partition=1)
    texts = iter([SCHEMAS[1], SCHEMAS[1], OTHER, OTHER])  # a task asks for its union, then for its route
    ask = bench.registry.schema

    def changing(schema_id: int) -> RegisteredSchema:
        bench.registry.schemas[1] = next(texts)
        return ask(schema_id)

    bench.registry.schema = changing  # type: ignore[method-assign]
    report = bench.extract()
    assert [tp.partition for tp in report.failures] == [1]
    assert "changed schema 1 while it was read" in report.failures[TopicPartition(TOPIC, 1)]
    assert [p.next for p in bench.commit().partitions.values()] == [1, 0]


@pytest.mark.parametrize("format_", ["json_schema", "protobuf"])
@pytest.mark.parametrize("errors", ["error_table", "fail"])
def test_translated_values_stop_as_well(format_: str, errors: str) -> None:
    bench = Bench(TopicSettings.of(dataset="d", table="A", format=format_, errors=errors))
    texts = bench.registry.documents if format_ == "json_schema" else bench.registry.messages
    schema, other, body = {
        "json_schema": (
            '{"properties":{"x":{"type":"integer"}}}',
            '{"properties":{"y":{"type":"integer"}}}',
            b"{}",
        ),
        "protobuf": ("message A {int64 x=1;}", "message A {int32 x=1;}", b"\x00\x08\x01"),
    }[format_]
    syntax = 'syntax="proto3"; ' if format_ == "protobuf" else ""
    texts[1] = syntax + schema
    bench.kafka.produce(TP, struct.pack(">bI", 0, 1) + body)
    assert not bench.extract().stops
    texts[1] = syntax + other
    bench.kafka.produce(TP, struct.pack(">bI", 0, 1) + body)
    assert [stop.reason for stop in bench.extract().stops] == ["schema_changed"]
    bench.load()
    assert bench.offsets(A) == [0]
