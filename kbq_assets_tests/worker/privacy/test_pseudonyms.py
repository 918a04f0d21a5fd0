"""Pseudonyms by kernels, judged by those of Python."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

from kbq_assets.core.avro import tree as avro
from kbq_assets.core.topics.personal import Pseudonyms
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.wire.chunk import Chunk, RawRecord, Spans
from kbq_assets.wire.privacy.avro import rewriter
from kbq_assets.wire.privacy.hashes import ContextHash
from kbq_assets.wire.records.reasons import Reason
from kbq_assets.worker.privacy.avro import PersonalData, quickly
from kbq_assets.worker.translate import rejected
from kbq_assets_tests.fakes.registry import FakeRegistry
from kbq_assets_tests.wire.samples import avro_body, framed

KEYS = Pseudonyms("2025", {"2025": b"k" * 32})
HOME = {
    "type": "record",
    "name": "Home",
    "fields": [{"name": "street", "type": ["null", "string"]}, {"name": "city", "type": "string"}],
}
PERSON: dict[str, Any] = {
    "type": "record",
    "name": "Person",
    "fields": [
        {"name": "n", "type": "long"},
        {"name": "email", "type": "string"},
        {"name": "home", "type": ["null", HOME]},
        {"name": "nick", "type": ["string", "null"]},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "none", "type": "null"},
        {"name": "nothing", "type": {"type": "record", "name": "Nothing", "fields": []}},
    ],
}
FAST = "nick:pseudonym,email:pseudonym:mail,home.street:pseudonym,gone:pseudonym,n:keep"


@pytest.mark.parametrize("key", [b"k" * 32, b"k" * 64, b"k" * 100])
@pytest.mark.parametrize("context", ["email", "x" * 70, "é"])
def test_a_value_of_any_length_has_the_pseudonym_of_python(key: bytes, context: str) -> None:
    keys = Pseudonyms("a", {"a": key, "b": b"other" * 8})
    values = [random.Random(size).randbytes(size) for size in range(200)] + [None, b""]
    found = ContextHash(keys, context).texts(Spans.of(values))
    expected = [None if value is None else keys.of(context, value).encode() for value in values]
    assert [found.get(index) for index in range(len(values))] == expected


def person(chance: random.Random) -> dict[str, Any]:
    def text() -> str:
        return chance.choice(["", "ä", "x" * chance.randrange(200)])

    return {
        "n": chance.randrange(-(2**40), 2**40),
        "email": text(),
        "home": chance.choice([None, {"street": None, "city": text()}, {"street": text(), "city": ""}]),
        "nick": chance.choice([None, text()]),
        "tags": [text() for _ in range(chance.randrange(3))],
        "none": None,
        "nothing": {},
    }


def translated(pii: str, values: list[bytes | None], keys: list[bytes | None] | None = None) -> Chunk:
    settings = TopicSettings.of(dataset="d", table="t", pii=pii)
    personal = PersonalData(settings, FakeRegistry({7: json.dumps(PERSON)}), KEYS)
    records = [
        RawRecord(value, offset, 0, None if keys is None else keys[offset])
        for offset, value in enumerate(values)
    ]
    return personal.translate(Chunk.from_messages(records, keys=keys is not None))


QUICK = (
    FAST,
    "email:pseudonym",
    "email:pseudonym,nick:drop",
    "n:drop,email:null,home.street:null,nick:pseudonym,tags:drop,gone:null",
    "home:drop,tags:null,nick:null,none:drop",
    "home:null,n:null,nothing:drop",
    "home.street:drop,n:keep",
    "_key:pseudonym",
)


@pytest.mark.parametrize("pii", [*QUICK, "tags:pseudonym,email:pseudonym", "n:pseudonym", "email:truncate:3"])
def test_rewritten_records_are_those_of_the_oracle(pii: str) -> None:
    chance = random.Random(pii)
    bodies = [avro_body(PERSON, person(chance)) for _ in range(300)]
    settings = TopicSettings.of(dataset="d", table="t", pii=pii)
    oracle = rewriter(PERSON, settings.privacy.decisions, KEYS)
    assert (quick_rewriter(PERSON, pii) is not None) == (pii in QUICK)
    found = translated(pii, [framed(body, 7) for body in bodies])
    assert [found.value(row) for row in range(len(found))] == [framed(oracle(body), 7) for body in bodies]


def quick_rewriter(schema: Any, pii: str) -> object:
    settings = TopicSettings.of(dataset="d", table="t", pii=pii)
    record = avro.parse(schema)
    assert isinstance(record, avro.RecordType)
    return quickly(record, settings.privacy.decisions, KEYS)


def test_a_field_of_no_bytes_that_gets_some_needs_the_oracle() -> None:
    assert quick_rewriter(PERSON, "nothing:null") is None
    two = {
        **PERSON,
        "fields": [
            *PERSON["fields"],
            {"name": "u", "type": ["null", HOME | {"name": "A"}, HOME | {"name": "B"}]},
        ],
    }
    assert quick_rewriter(two, "u.street:null") is None
    assert quick_rewriter(two, "u.street:drop") is not None


def test_bad_records_nulls_and_unknown_schemas_lie_among_the_others() -> None:
    good = framed(avro_body(PERSON, person(random.Random(1))), 7)
    [expected] = (found.value(0) for found in [translated(FAST, [good])])
    found = translated(FAST, [None, good, good[:-1], b"\x01", good, framed(b"x", 9), None])
    assert [found.value(row) for row in (1, 4)] == [expected] * 2
    assert [found.value(row) for row in (0, 6)] == [None] * 2
    assert found.value(2) == rejected(Reason.TRUNCATED)
    assert all(b"x" not in (found.value(row) or b"") for row in (3, 5))
    assert found.offsets.tolist() == list(range(7))


def test_a_chunk_without_values_stays_one() -> None:
    assert [translated(FAST, [None, None]).value(row) for row in range(2)] == [None, None]


def test_keys_become_pseudonyms() -> None:
    good = framed(avro_body(PERSON, person(random.Random(1))), 7)
    found = translated(f"{FAST},_key:pseudonym:customer", [good, good], [b"anna", None])
    assert found.keys is not None
    assert [found.keys.get(0), found.keys.get(1)] == [KEYS.of("customer", b"anna").encode(), None]


def test_the_same_record_twice_is_the_same_pseudonym_wherever_it_lies() -> None:
    values: list[bytes | None] = [framed(avro_body(PERSON, person(random.Random(3))), 7)] * 3
    found = translated(FAST, values)
    assert len({found.value(row) for row in range(3)}) == 1
    assert np.all(np.diff(found.starts) > 0)
