"""Columns and side column together are the document, whatever it is."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbq_assets.core.business_time import BusinessTime
from kbq_assets.core.json_shape import REST, Shape, TopicShape, avro_schema
from kbq_assets.wire.json_rows import RepeatedKey, RowEncoder, event_time, parse

KEYS = st.sampled_from(["a", "b", "c", "A", "1", "x y"])
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(-5, 5),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=15,
)
DOCUMENTS = st.one_of(st.dictionaries(KEYS, VALUES, max_size=5), VALUES)


def row_of(shape: TopicShape, document: object) -> dict[str, Any]:
    """What a table's row holds of a document."""
    schema = fastavro.parse_schema(avro_schema(shape, event_time=False))
    data = io.BytesIO(RowEncoder(shape).encode(document)[0])
    row = fastavro.schemaless_reader(data, schema, None)
    assert not data.read()
    assert isinstance(row, dict)
    return row


def restored(shape: Shape, value: Any) -> Any:
    """A column's value as the document had it."""
    if shape.kind == "RECORD":
        pairs = ((each, value[each.column]) for each in shape.fields)
        return {each.key: restored(each.shape, inner) for each, inner in pairs if inner not in (None, [])}
    if shape.kind == "LIST":
        assert shape.item is not None
        return [restored(shape.item, inner) for inner in value]
    return json.loads(value) if shape.kind == "JSON" else value


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


def document_of(shape: TopicShape, row: dict[str, Any]) -> Any:
    columns = restored(shape.root, row)
    return columns if row[REST] is None else joined(columns, json.loads(row[REST]))


@given(st.lists(DOCUMENTS, max_size=4), st.lists(DOCUMENTS, max_size=4))
def test_nothing_of_a_document_is_lost_under_any_version(known: list[Any], later: list[Any]) -> None:
    shape = TopicShape().grown(known)
    for version in (shape, shape.grown(later)):
        for document in [*known, *later]:
            found = without_nulls(document_of(version, row_of(version, document)))
            assert found == without_nulls(document)


@given(st.lists(DOCUMENTS, min_size=1, max_size=5))
def test_growing_by_documents_that_fit_changes_nothing(documents: list[Any]) -> None:
    shape = TopicShape().grown(documents)
    encoder = RowEncoder(shape)
    whole = [document for document in documents if encoder.encode(document)[1]]
    assert shape.grown(whole) is shape


def test_what_fits_no_column_is_in_the_side_column_at_its_place() -> None:
    shape = TopicShape().grown([{"a": 1, "r": {"x": 1, "l": [1]}}])
    row = row_of(shape, {"a": "one", "new": True, "r": {"x": 1.5, "l": [1, "two"], "more": None}})
    assert row["a"] is None
    assert json.loads(row[REST]) == {"a": "one", "r": {"x": 1.5, "l": [1, "two"]}, "new": True}
    assert row_of(shape, {"a": 1})[REST] is None


def test_a_float_that_cannot_hold_a_whole_number_does_not_get_it() -> None:
    shape = TopicShape().grown([{"a": 1.5}])
    assert row_of(shape, {"a": 2**53})["a"] == 2.0**53
    assert json.loads(row_of(shape, {"a": 2**53 + 1})[REST]) == {"a": 2**53 + 1}


def test_a_key_that_is_there_twice_is_told() -> None:
    assert parse('{"a": {"b": 1}}') == {"a": {"b": 1}}
    with pytest.raises(RepeatedKey):
        parse('{"a": {"b": 1, "b": 2}}')


def test_the_business_time_is_found_by_its_path() -> None:
    assert event_time({"a": {"at": "1970-01-01T00:00:01Z"}}, BusinessTime(("a.at",))) == b"\x02\x80\x89\x7a"
    assert event_time({"a": {"at": "soon"}}, BusinessTime(("a.at",))) == b"\x00"
    assert event_time({"a": 1}, BusinessTime(("a.at",))) == b"\x00"
