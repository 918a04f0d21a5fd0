"""Rows of staged files, found by the text of a column."""

from __future__ import annotations

import io
import random
from typing import Any

import fastavro
import pytest

from kbq_assets.wire.arrow.errors import BadFile
from kbq_assets.wire.files.find_rows import ColumnSearch

SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "_kafka_offset", "type": "long"},
        {"name": "name", "type": ["null", "string"]},
        {"name": "raw", "type": "bytes"},
        {"name": "ok", "type": "boolean"},
        {
            "name": "customer",
            "type": ["null", {"type": "record", "name": "C", "fields": [{"name": "Id", "type": "long"}]}],
        },
    ],
}


def file_of(*rows: tuple[str | None, int | None]) -> io.BytesIO:
    found = io.BytesIO()
    records = [
        {
            "_kafka_offset": n,
            "name": name,
            "raw": b"k%d" % n,
            "ok": n % 2 == 1,
            "customer": id_ and {"Id": id_},
        }
        for n, (name, id_) in enumerate(rows)
    ]
    fastavro.writer(found, SCHEMA, records, codec="snappy")
    found.seek(0)
    return found


@pytest.mark.parametrize(
    ("column", "value", "offsets"),
    [
        ("name", "anna", [0, 3]),
        ("NAME", "anna", [0, 3]),
        ("raw", "k1", [1]),
        ("ok", "true", [1, 3]),
        ("customer.id", "4711", [2]),
        ("customer", "4711", []),
        ("customer.id.more", "4711", None),
        ("nothing", "anna", None),
    ],
)
def test_rows_are_found_by_a_columns_text(column: str, value: str, offsets: list[int] | None) -> None:
    search = ColumnSearch([(column, value)])
    assert list(search.offsets(file_of(("anna", None), (None, 1), ("bert", 4711), ("anna", 2)))) == (
        offsets or []
    )
    assert search.columns == (set() if offsets is None else {column})


def test_one_reading_finds_all_values() -> None:
    search = ColumnSearch([("name", "anna"), ("customer.id", "1")])
    assert list(search.offsets(file_of(("anna", None), ("bert", 1), ("carla", 2)))) == [0, 1]


@pytest.mark.parametrize("name", ["Address", "shop.Address"])
def test_a_type_that_the_schema_defines_at_another_field_is_searched(name: str) -> None:
    address = {"type": "record", "name": "Address", "fields": [{"name": "street", "type": "string"}]}
    fields = [
        {"name": "_kafka_offset", "type": "long"},
        {"name": "billing", "type": address},
        {"name": "shipping", "type": ["null", name]},
    ]
    schema = {"type": "record", "name": "Order", "namespace": "shop", "fields": fields}
    rows = [
        {"_kafka_offset": n, "billing": {"street": "a"}, "shipping": street and {"street": street}}
        for n, street in enumerate(("b", None, "a"))
    ]
    file = io.BytesIO()
    fastavro.writer(file, schema, rows)
    file.seek(0)
    assert list(ColumnSearch([("shipping.street", "a")]).offsets(file)) == [2]


def test_a_damaged_file_says_so() -> None:
    whole = file_of(("anna", 1)).getvalue()
    with pytest.raises(BadFile):
        list(ColumnSearch([("name", "anna")]).offsets(io.BytesIO(whole[:-20])))


@pytest.mark.parametrize("codec", ["snappy", "deflate", "null"])
def test_a_file_with_any_bytes_changed_is_searched_or_damaged(codec: str) -> None:
    out, chance = io.BytesIO(), random.Random(codec)
    rows = [
        {"_kafka_offset": n, "name": f"name {n}", "raw": b"r", "ok": True, "customer": None} for n in range(9)
    ]
    fastavro.writer(out, SCHEMA, rows, codec=codec)
    damaged = 0
    for _ in range(1_500):
        data = bytearray(out.getvalue())
        for _ in range(chance.randint(1, 2)):
            data[chance.randrange(len(data))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        try:
            list(ColumnSearch([("name", "name 3")]).offsets(io.BytesIO(data)))
        except BadFile:
            damaged += 1
    assert damaged > 1_000
