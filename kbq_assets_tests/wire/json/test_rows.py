"""Columns and side column together are the document, whatever it is."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbq_assets.core.topics.business_time import BusinessTime
from kbq_assets.core.topics.json.inference import REST, InferredSchema, InferredType, avro_schema
from kbq_assets.wire.json.rows import RepeatedKey, RowEncoder, event_time, parse
from kbq_assets_tests.core.topics.json.test_numbers import FRACTIONS

KEYS = st.sampled_from(["a", "b", "c", "A", "1", "x y"])


@dataclass(frozen=True)
class Written:
    """A number as a producer writes it."""

    text: str

    def is_in(self, found: object) -> bool:
        """Whether a value of a row is this number: the same decimal, or the digits where no number of a table is it."""
        if isinstance(found, str):
            return found == self.text and not self.is_held
        if isinstance(found, bool) or not isinstance(found, int | float | Decimal):
            return False
        return Decimal(str(found)) == Decimal(self.text)

    @property
    def is_held(self) -> bool:
        """Whether 64 bits or a float hold it."""
        decimal, nearest = Decimal(self.text), float(self.text)
        if self.text.lstrip("-").isdigit() and -(2**63) <= decimal < 2**64:
            return True
        return math.isfinite(nearest) and Decimal(repr(nearest)) == decimal


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70).map(str).map(Written),
    st.integers(-5, 5).map(str).map(Written),
    st.floats(allow_nan=False, allow_infinity=False).map(repr).map(Written),
    FRACTIONS.map(Written),
    st.text(max_size=5),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=15,
)
DOCUMENTS = st.one_of(st.dictionaries(KEYS, VALUES, max_size=5), VALUES)


def written(document: object) -> str:
    """A document's text."""
    if isinstance(document, Written):
        return document.text
    if isinstance(document, Mapping):
        return "{" + ",".join(f"{json.dumps(key)}:{written(each)}" for key, each in document.items()) + "}"
    if isinstance(document, list):
        return "[" + ",".join(map(written, document)) + "]"
    return json.dumps(document)


def is_same(found: Any, document: Any) -> bool:
    """Whether all of a document was found."""
    if isinstance(document, Written):
        return document.is_in(found)
    if type(found) is not type(document):
        return False
    if isinstance(document, dict):
        return found.keys() == document.keys() and all(is_same(found[key], document[key]) for key in document)
    if isinstance(document, list):
        return len(found) == len(document) and all(map(is_same, found, document))
    return bool(found == document)


def decoded(text: str) -> Any:
    """JSON as a table reads it, without a loss. Fails for what BigQuery's would round or refuse."""

    def number(said: str) -> Decimal:
        assert Written(said).is_held
        return Decimal(said)

    def constant(said: str) -> None:
        raise AssertionError(f"{said} is no JSON")

    return json.loads(text, parse_float=number, parse_int=number, parse_constant=constant)


def row_of(inferred: InferredSchema, document: object) -> dict[str, Any]:
    """A document's row in the table."""
    schema = fastavro.parse_schema(avro_schema(inferred, event_time=False))
    data = io.BytesIO(RowEncoder(inferred).encode(document)[0])
    row = fastavro.schemaless_reader(data, schema, None)
    assert not data.read()
    assert isinstance(row, dict)
    return row


def restored(inferred: InferredType, value: Any) -> Any:
    """A column's value as the document had it."""
    if inferred.kind == "RECORD":
        pairs = ((each, value[each.column]) for each in inferred.fields)
        return {each.key: restored(each.inferred, inner) for each, inner in pairs if inner not in (None, [])}
    if inferred.kind == "LIST":
        assert inferred.item is not None
        return [restored(inferred.item, inner) for inner in value]
    return decoded(value) if inferred.kind == "JSON" else value


def joined(columns: Any, rest: Any) -> Any:
    """Columns and what was left over."""
    if not isinstance(columns, dict) or not isinstance(rest, dict):
        return rest
    return {**columns, **{key: joined(columns.get(key), left) for key, left in rest.items()}}


def without_nulls(value: Any) -> Any:
    """A document without fields that are null: as a column, no value is null too."""
    if isinstance(value, dict):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


def document_of(inferred: InferredSchema, row: dict[str, Any]) -> Any:
    columns = restored(inferred.root, row)
    return columns if row[REST] is None else joined(columns, decoded(row[REST]))


@given(st.lists(DOCUMENTS, max_size=4), st.lists(DOCUMENTS, max_size=4))
def test_nothing_of_a_document_is_lost_under_any_version(known: list[Any], later: list[Any]) -> None:
    inferred = InferredSchema().grown(parse(written(document)) for document in known)
    for version in (inferred, inferred.grown(parse(written(document)) for document in later)):
        for document in [*known, *later]:
            found = without_nulls(document_of(version, row_of(version, parse(written(document)))))
            assert is_same(found, without_nulls(document)), (found, document)


@pytest.mark.thorough
@given(st.lists(DOCUMENTS, min_size=1, max_size=5))
def test_growing_by_documents_that_fit_changes_nothing(drawn: list[Any]) -> None:
    documents = [parse(written(document)) for document in drawn]
    inferred = InferredSchema().grown(documents)
    encoder = RowEncoder(inferred)
    whole = [document for document in documents if encoder.encode(document)[1]]
    assert inferred.grown(whole) is inferred


def test_what_fits_no_column_is_in_the_side_column_at_its_place() -> None:
    inferred = InferredSchema().grown([{"a": 1, "r": {"x": 1, "l": [1]}}])
    row = row_of(inferred, {"a": "one", "new": True, "r": {"x": 1.5, "l": [1, "two"], "more": None}})
    assert row["a"] is None
    assert json.loads(row[REST]) == {"a": "one", "r": {"x": 1.5, "l": [1, "two"]}, "new": True}
    assert row_of(inferred, {"a": 1})[REST] is None


def test_a_float_that_cannot_hold_a_whole_number_does_not_get_it() -> None:
    inferred = InferredSchema().grown([{"a": 1.5}])
    assert row_of(inferred, {"a": 2**53})["a"] == 2.0**53
    assert json.loads(row_of(inferred, {"a": 2**53 + 1})[REST]) == {"a": 2**53 + 1}


def test_a_float_takes_a_decimal_that_it_stands_for_and_no_other() -> None:
    inferred = InferredSchema().grown([{"a": 1.5}])
    assert row_of(inferred, parse('{"a": 1.10}'))["a"] == 1.1
    row = row_of(inferred, parse('{"a": 1234567890123456.789, "b": [1e400, 0.1]}'))
    assert (row["a"], row[REST]) == (None, '{"a":"1234567890123456.789","b":["1e400",0.1]}')


def test_a_document_that_stays_whole_is_json_that_a_table_takes() -> None:
    data = io.BytesIO(RowEncoder(InferredSchema()).raw('{"a": 1.10, "a": 1e400}'))
    schema = fastavro.parse_schema(avro_schema(InferredSchema(), event_time=False))
    assert fastavro.schemaless_reader(data, schema, None) == {REST: '{"a": 1.10, "a": "1e400"}'}


def test_a_key_that_is_there_twice_is_reported() -> None:
    assert parse('{"a": {"b": 1}}') == {"a": {"b": 1}}
    with pytest.raises(RepeatedKey):
        parse('{"a": {"b": 1, "b": 2}}')


def test_the_business_time_is_found_by_its_path() -> None:
    assert event_time({"a": {"at": "1970-01-01T00:00:01Z"}}, BusinessTime(("a.at",))) == b"\x02\x80\x89\x7a"
    assert event_time({"a": {"at": "soon"}}, BusinessTime(("a.at",))) == b"\x00"
    assert event_time({"a": 1}, BusinessTime(("a.at",))) == b"\x00"
