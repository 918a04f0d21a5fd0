"""Differential fuzzing: damaged records judged by the kernel, by the reference decoder, and by fastavro.

``KBQ_FUZZ`` sets the number of damaged records, ``KBQ_FUZZ_SEED`` the first seed.
"""

from __future__ import annotations

import io
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import fastavro
import pytest

from kbq_assets.core.avro import tree as avro
from kbq_assets.core.avro.visitor import SchemaVisitor, visit
from kbq_assets.wire.chunk import Chunk, RawRecord
from kbq_assets.wire.records.compile import compile_program
from kbq_assets.wire.records.program import Program
from kbq_assets.wire.records.reasons import Reason
from kbq_assets.wire.records.validate import validate_avro
from kbq_assets.wire.records.verdicts import RecordLimits
from kbq_assets_tests.sizes import FUZZ_RECORDS
from kbq_assets_tests.wire import generate, reference

FIRST_SEED = int(os.environ.get("KBQ_FUZZ_SEED", "0"))
PER_SCHEMA = 500
LIMITS = RecordLimits(max_items=1000, max_empty_items=50)

FASTAVRO_IS_LAX = {
    Reason.INT_OVERFLOW: "it reads numbers of any length and width",
    Reason.INVALID_BOOLEAN: "it takes any byte but 0 for true",
    Reason.INVALID_BLOCK: "it ignores the size a block states, by which other readers skip",
    Reason.INVALID_ENUM: "it takes a negative index, which counts from the end in Python",
    Reason.INVALID_UNION: "it takes a negative index, which counts from the end in Python",
    Reason.OUT_OF_RANGE: "it is reported of no logical types here",
}
"""What fastavro reads and KBQ rejects, and why."""


@dataclass(frozen=True)
class Subject:
    """A schema under test, with valid records of it."""

    seed: int
    node: avro.AvroType
    program: Program
    parsed: Any
    bodies: list[bytes]
    has_empty_items: bool


def subject(seed: int) -> Subject:
    rng = random.Random(seed)
    schema = generate.make_schema(rng)
    node = avro.parse(schema)
    bodies = [reference.encode(node, generate.make_value(node, rng), rng) for _ in range(10)]
    program = compile_program(node)
    parsed = fastavro.parse_schema(without_logical_types(schema))
    return Subject(seed, node, program, parsed, bodies, visit(node, _HasEmptyItems()))


def without_logical_types(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {key: without_logical_types(value) for key, value in schema.items() if key != "logicalType"}
    return [without_logical_types(each) for each in schema] if isinstance(schema, list) else schema


class _HasEmptyItems(SchemaVisitor[bool]):
    def other(self, node: avro.AvroType, inside: Sequence[bool]) -> bool:
        return any(inside) or (isinstance(node, avro.Array) and reference._is_empty(node.items))


@pytest.mark.parametrize("part", range(4))
def test_the_validator_agrees_with_the_reference_and_fastavro_on_damaged_records(part: int) -> None:
    schemas = max(1, FUZZ_RECORDS // PER_SCHEMA // 4)
    for seed in range(FIRST_SEED + part * schemas, FIRST_SEED + (part + 1) * schemas):
        rng = random.Random(~seed)
        tested = subject(seed)
        damaged = [generate.damaged(rng.choice(tested.bodies), tested.bodies, rng) for _ in range(PER_SCHEMA)]
        for body, reason in zip(damaged, verdicts(tested, damaged), strict=True):
            judge(tested, body, reason)


def test_every_valid_record_is_good() -> None:
    for seed in range(FIRST_SEED, FIRST_SEED + 300):
        tested = subject(seed)
        assert set(verdicts(tested, tested.bodies)) == {Reason.GOOD}, f"seed {seed}"


def verdicts(tested: Subject, bodies: list[bytes]) -> list[Reason]:
    chunk = Chunk.from_messages(RawRecord(body, offset) for offset, body in enumerate(bodies))
    reasons = validate_avro(chunk, tested.program, None, LIMITS, prefix=0).reasons
    return [Reason(reason) for reason in reasons.tolist()]


def judge(tested: Subject, body: bytes, reason: Reason) -> None:
    where = f"seed {tested.seed}, body {body.hex()}"
    try:
        value = reference.decode(tested.node, body, LIMITS)
        expected = Reason.GOOD
    except reference.Invalid as invalid:
        value, expected = None, invalid.reason
    assert (where, reason) == (where, expected)
    if tested.has_empty_items:
        return  # fastavro would build 2**62 nulls, if reported to
    accepted, read = read_with_fastavro(tested, body)
    if reason is Reason.GOOD:
        assert accepted, f"fastavro does not read what KBQ stages: {where}: {read}"
        assert repr(read) == repr(reference.plain(tested.node, value)), where  # by repr: NaN is NaN
    elif accepted:
        assert reason in FASTAVRO_IS_LAX, f"fastavro reads what KBQ rejects as {reason.name}: {where}"


def read_with_fastavro(tested: Subject, body: bytes) -> tuple[bool, Any]:
    """Whether fastavro reads the record to its end, and what it reads or raises."""
    stream = io.BytesIO(body)
    try:
        value = fastavro.schemaless_reader(stream, tested.parsed, None)
    except Exception as error:  # it can raise anything: EOFError, IndexError, …
        return False, error
    return stream.read(1) == b"", value
