"""The kernel redacts as `JsonRedactor` does, or leaves a document to it."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from kbq_assets.core.topics.json.declared import declared
from kbq_assets.core.topics.personal import Pseudonyms, parse_decisions
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.wire.chunk import Chunk, RawRecord
from kbq_assets.wire.json.rows import parse, text_of
from kbq_assets.wire.privacy.json import JsonRedactor, LostValues
from kbq_assets.wire.privacy.json_quick import QuickRedactor, RedactedDocuments
from kbq_assets.wire.records.reasons import Reason
from kbq_assets.wire.records.validate import validate_json
from kbq_assets.wire.records.verdicts import RecordLimits
from kbq_assets.worker.json.inferred_columns import JsonColumns
from kbq_assets.worker.privacy.json import JsonPrivacy
from kbq_assets_tests.fakes.memory_store import FaultyMemoryStore
from kbq_assets_tests.sizes import JSON_DOCUMENTS
from kbq_assets_tests.wire.json import test_encode as documents

KEYS = Pseudonyms("2026", {"2026": b"k" * 32})
LIMITS = RecordLimits()
BATCH = 500
PII = (
    "email:pseudonym,phone:pseudonym:tel,gone:drop,none:null,short:truncate:2,kept:keep"
    ",in.name:pseudonym,in.gone:drop"
)
#: Decisions about the keys of random documents.
DECISIONS = (
    "a:pseudonym,b:drop,c:null",
    "a:drop,b:drop,c:drop,x y:drop,é:drop,ts:truncate:1",
    "a.b:pseudonym,b.a:drop,c.c.c:null,12345678:keep,created_at:keep,ts:keep",
    "a.a.a:drop,b:truncate:3,é:pseudonym:x,a long key of a document:drop",
    "c:generalise:10,a:pseudonym",
)


def redactor_of(pii: str, others: str, lost: LostValues | None = None) -> JsonRedactor:
    return JsonRedactor(parse_decisions(pii), KEYS, others, lost)


def redacted(redactor: JsonRedactor, texts: Sequence[bytes | None]) -> RedactedDocuments:
    chunk = Chunk.from_messages([RawRecord(text, offset) for offset, text in enumerate(texts)])
    return QuickRedactor(redactor, KEYS).redact(chunk, np.arange(len(texts)), LIMITS)


def text_at(found: RedactedDocuments, row: int) -> str | None:
    if found.starts[row] < 0:
        return None
    return found.buffer[found.starts[row] : found.ends[row]].tobytes().decode()


@pytest.mark.parametrize("others", ["keep", "drop"])
@pytest.mark.parametrize(
    "text",
    [
        '{"email":"a@b.org","id":1}',
        '{"id":1,"email":"a@b.org"}',
        '{"email":null,"gone":null,"none":null,"short":null}',
        '{"email":["a",["b"],null,5,-5,0,true,false],"phone":"+49 30 1234567"}',
        '{"email":"","short":""}',
        '{"gone":1}',
        '{"gone":1,"id":2}',
        '{"id":2,"gone":1}',
        '{"gone":1,"id":1,"new":2,"in":{"gone":3,"name":"x","more":4}}',
        ' {\n "gone" : 1 , "new" : 1 , "gone2" : [ ] , "id" : 5 , "last" : 1 } ',
        '{"gone":{"a":[1,{"b":"\\u00e9"}],"c":{}},"in":{"gone":[1,2],"name":["x","y"]}}',
        '{"in":[{"name":"x","gone":1},{"gone":1},{}]}',
        '{"none":{"a":{"b":[1]}},"kept":{"a":[{"b":null}]}}',
        '{"none":5,"kept":"\\n\\ud83d\\ude00"}',
        '{"short":"héllo","in":{"name":"Zürich"}}',
        '{"short":["😀😀😀","ab","a"]}',
        '{"new":"\\"escaped\\"","other":1.5e3}',
        "{}",
    ],
)
def test_common_documents_need_no_python_objects(text: str, others: str) -> None:
    lost = LostValues()
    redactor = redactor_of(PII, others, lost)
    found = redacted(redactor, [text.encode()])
    made = text_at(found, 0)
    assert made is not None
    assert exactly(parse(made)) == exactly(redactor(parse(text)))
    assert found.lost[0] == lost.count


@pytest.mark.parametrize(
    "text",
    [
        '{"email":1.5}',
        '{"email":-0}',
        '{"email":{"a":1}}',
        '{"email":"\\u0041"}',
        '{"short":"a\\n"}',
        '{"short":5}',
        '{"short":{}}',
        '{"in":"canary"}',
        '{"in":[5]}',
        '{"in.name":"canary"}',
        '{"\\u0065mail":"canary"}',
        '{"email":"a","email":"b"}',
        '{"in":{"gone":1,"gone":2}}',
        '{"gone":{"a":1,"a":2}}',
        '{"none":[{"a":1,"b":2,"a":3}]}',
        '{"new":1,"new":2}',
        '{"gone":1234567890123456789}',
        '{"gone":1e400}',
        '{"gone":tru}',
        '{"gone":"a\nb"}',
        '{"gone":"\\x"}',
        '{"gone":[1,]}',
        '{"gone":1,}',
        '{"gone":1}}',
        '{"gone":1',
        '{"gone":"\\ud800"}',
        "[]",
        '"canary"',
        "",
        "{",
    ],
)
def test_the_rest_is_left(text: str) -> None:
    assert text_at(redacted(redactor_of(PII, "drop"), [text.encode()]), 0) is None


def test_an_undecided_field_is_left_if_it_stops_its_partition() -> None:
    redactor = redactor_of("a:drop,b.c:keep", "stop")
    texts = [b'{"a":1}', b'{"a":1,"new":2}', b'{"b":{"c":1}}', b'{"b":{"d":1}}', b'{"b":{"c":{"d":1}}}']
    found = redacted(redactor, texts)
    assert (found.starts >= 0).tolist() == [True, False, True, False, True]


def test_fields_of_a_schema_are_known() -> None:
    schema = {"type": "object", "properties": {"id": {}, "at": {"type": "object", "properties": {"x": {}}}}}
    redactor = redactor_of("a:drop", "stop")
    redactor.declare(declared(schema))
    found = redacted(redactor, [b'{"id":1,"a":2,"at":{"x":1}}', b'{"at":{"y":1}}'])
    assert (text_at(found, 0), text_at(found, 1)) == ('{"id":1,"at":{"x":1}}', None)


def test_a_declared_key_with_dots_is_hidden_as_its_decision_says() -> None:
    redactor = redactor_of("home.street:drop", "stop")
    redactor.declare(declared({"properties": {"home.street": {"type": "string"}, "id": {}}}))
    found = redacted(redactor, [b'{"id":1,"home.street":"canary"}'])
    assert text_at(found, 0) == '{"id":1}'


def test_a_schema_that_contains_itself_needs_objects() -> None:
    node: dict[str, Any] = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}, "id": {}}}
    redactor = redactor_of("a:drop", "stop")
    assert QuickRedactor.takes(redactor, KEYS)
    redactor.declare(declared({"$ref": "#/$defs/node", "$defs": {"node": node}}))
    assert not QuickRedactor.takes(redactor, KEYS)


def test_an_id_of_a_key_that_is_no_plain_text_needs_objects() -> None:
    assert not QuickRedactor.takes(redactor_of("a:drop", "stop"), Pseudonyms('"', {'"': bytes(32)}))


def test_long_and_deep_documents_and_nulls_are_left() -> None:
    chunk = Chunk.from_messages([RawRecord(text, 0) for text in (None, b'{"a":"xxxxxx"}', b'{"b":[[[1]]]}')])
    limits = RecordLimits(max_bytes=13, max_json_depth=4)
    found = QuickRedactor(redactor_of("a:drop", "keep"), KEYS).redact(chunk, np.arange(3), limits)
    assert (found.starts < 0).all()


def test_edits_without_room_are_found_later_and_a_document_of_too_many_is_left() -> None:
    many = json.dumps({"in": [{"name": "x", "gone": 1}] * 400}).encode()
    too_many = json.dumps({"in": [{"name": "x", "gone": 1}] * 40_000}).encode()
    redactor = redactor_of(PII, "keep")
    found = redacted(redactor, [many, too_many, *[many] * 200])
    assert text_at(found, 1) is None
    expected = exactly(redactor(parse(many.decode())))
    for row in (0, *range(2, 202)):
        assert exactly(parse(text_at(found, row) or "")) == expected


@pytest.mark.parametrize("seed", range(JSON_DOCUMENTS // (BATCH * 20)))
def test_random_documents_become_the_same(seed: int) -> None:
    done = 0
    for batch in range(20):
        chance = random.Random(f"{seed} {batch}")
        pii, others = chance.choice(DECISIONS), chance.choice(("keep", "drop", "stop"))
        made = [documents.document_of(chance) for _ in range(BATCH)]
        texts = [documents.damaged(documents.text_of(each, chance).encode(), chance) for each in made]
        done += compare(pii, others, texts)
    assert done > 2 * BATCH  # the others have undecided fields or values of other types, or are damaged


def compare(pii: str, others: str, texts: Sequence[bytes]) -> int:
    """How many documents the kernel took. Each is what Python objects become, or is refused for the same reason."""
    lost = LostValues()
    redactor = redactor_of(pii, others, lost)
    found = redacted(redactor, texts)
    done = np.flatnonzero(found.starts >= 0)
    reasons = validate_json(Chunk.from_messages([RawRecord(text, 0) for text in texts]), None, LIMITS).reasons
    for row in done.tolist():
        assert reasons[row] in (Reason.GOOD, Reason.OUT_OF_RANGE), texts[row]
        before = lost.count
        expected = outcome(lambda row=row: redactor(parse(texts[row].decode())))
        assert outcome(lambda row=row: parse(text_at(found, row) or "")) == expected, texts[row]
        assert isinstance(expected, type) or found.lost[row] == lost.count - before, texts[row]
    return len(done)


def outcome(made: Any) -> object:
    """A document as text that tells 1 from 1.0 and true, or the kind of its error."""
    try:
        return exactly(made())
    except ValueError as error:
        return type(error)


def exactly(document: object) -> str:
    return text_of(document)


class ByObjects(JsonColumns):
    """Without a kernel."""

    def _quick(self, *args: Any) -> None:
        return None


@pytest.mark.parametrize("seed", range(8))
def test_a_topic_has_the_same_records_with_and_without_the_kernel(seed: int) -> None:
    chance = random.Random(seed)
    pii, others = DECISIONS[seed % len(DECISIONS)], ("keep", "drop", "stop")[seed % 3]
    settings = TopicSettings.of(
        dataset="d",
        table="t",
        format="json_columns",
        pii=f"{pii},_key:keep",
        pii_others=others,
        event_date="auto",
    )
    texts = [
        documents.damaged(documents.text_of(documents.document_of(chance), chance).encode(), chance)
        for _ in range(2 * BATCH)
    ]
    chunk = Chunk.from_messages([RawRecord(text, 0) for text in texts])
    store, made = FaultyMemoryStore(), []
    for kind in (ByObjects, JsonColumns, ByObjects):  # the first one adds all columns
        lost = LostValues()
        columns = kind("t", settings, store, privacy=JsonPrivacy(settings, KEYS, lost=lost))
        translated = columns.translate(chunk)
        made.append(([translated.value(row) for row in range(len(texts))], lost.count))
    assert made[1] == made[2]
