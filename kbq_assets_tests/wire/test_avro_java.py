"""Avro's Java implementation reads the staged files, and judges damaged records next to the kernel.

``KBQ_FUZZ_JAVA`` sets the number of damaged records, ``KBQ_FUZZ_SEED`` the first seed.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError

from kbq_assets.adapters.java import find_java
from kbq_assets.wire.files.codec import Codec
from kbq_assets.wire.files.container import header
from kbq_assets.wire.records.reasons import Reason
from kbq_assets_tests.core.avro.test_header import REFUSED_AS_THEY_ARE, random_schemas
from kbq_assets_tests.sizes import FUZZ_JAVA_RECORDS
from kbq_assets_tests.wire import generate, reference
from kbq_assets_tests.wire.avro_java import AvroJava
from kbq_assets_tests.wire.test_fuzz import (
    LIMITS,
    PER_SCHEMA,
    Subject,
    subject,
    verdicts,
    without_logical_types,
)
from kbq_assets_tests.worker.test_files import staged_files

pytestmark = pytest.mark.thorough

FIRST_SEED = int(os.environ.get("KBQ_FUZZ_SEED", "0"))

JAVA_IS_LAX = {
    Reason.INT_OVERFLOW: "it forgets the bits beyond an int's or a long's",
    Reason.INVALID_BOOLEAN: "it takes any byte but 1 for false",
    Reason.INVALID_BLOCK: "it ignores the size a block states",
    Reason.INVALID_UTF8: "it puts U+FFFD in the place of what is not UTF-8",
    Reason.OUT_OF_RANGE: "it is told of no logical types here",
}
"""What Avro Java reads and KBQ rejects, and why."""


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AvroJava]:
    folder = tmp_path_factory.mktemp("avro-java")
    with pytest.MonkeyPatch.context() as environ:
        environ.setenv("JAVA_HOME", str(find_java(folder / "java").home))
        opened = AvroJava(folder)
        yield opened
        opened.close()


@pytest.mark.parametrize("codec", ["snappy", "deflate", "null"])
def test_java_reads_every_staged_row(java: AvroJava, tmp_path: Path, codec: Codec) -> None:
    files = staged_files(codec, tmp_path)
    assert [java.rows(file) for file in files] == [(2, 0 + 2), (1, 1), (1, 3)]


def test_java_reads_the_header_of_every_schema(java: AvroJava, tmp_path: Path) -> None:
    refused = []
    for schema in [*REFUSED_AS_THEY_ARE, *random_schemas(200)]:
        file = tmp_path / "empty.avro"
        file.write_bytes(header(json.dumps(schema), "null", bytes(16), {}))
        try:
            assert java.rows(file) == (0, 0)
        except Py4JJavaError as error:
            refused.append((schema, str(error.java_exception)))
    assert refused == []


def test_java_and_the_validator_agree_on_damaged_records(java: AvroJava) -> None:
    subjects = [subject(seed) for seed in range(FIRST_SEED, FIRST_SEED + FUZZ_JAVA_RECORDS // PER_SCHEMA)]
    tested = [
        each for each in subjects if not each.has_empty_items
    ]  # Java would build 2**31 nulls, if told to
    damaged = [_damaged(each) for each in tested]
    schemas = [json.dumps(_schema(each)) for each in tested]
    answers = java.decode(list(zip(schemas, damaged, strict=True)))
    for each, bodies in zip(tested, damaged, strict=True):
        for body, reason in zip(bodies, verdicts(each, bodies), strict=True):
            answer = next(answers)
            where = f"seed {each.seed}, body {body.hex()}: {answer.told!r}"
            if reason is Reason.GOOD:
                assert answer.accepted, f"Java does not read what KBQ stages: {where}"
                assert _plain(each, answer.told) == _plain(each, body), where
            elif answer.accepted:
                assert reason in JAVA_IS_LAX, f"Java reads what KBQ rejects as {reason.name}: {where}"
    assert next(answers, None) is None


def _damaged(tested: Subject) -> list[bytes]:
    rng = random.Random(~tested.seed)
    return [generate.damaged(rng.choice(tested.bodies), tested.bodies, rng) for _ in range(PER_SCHEMA)]


def _schema(tested: Subject) -> object:
    return without_logical_types(generate.make_schema(random.Random(tested.seed)))


def _plain(tested: Subject, body: bytes) -> str:
    """A record as text, maps in one order. By repr: NaN is NaN."""
    return repr(_ordered(reference.plain(tested.node, reference.decode(tested.node, body, LIMITS))))


def _ordered(value: object) -> object:
    if isinstance(value, dict):
        return sorted((key, _ordered(each)) for key, each in value.items())
    return [_ordered(each) for each in value] if isinstance(value, list) else value
