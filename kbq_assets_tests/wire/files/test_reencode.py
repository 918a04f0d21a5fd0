"""A file under a common schema has the same records: what it lacked is null, and no value is converted."""

from __future__ import annotations

import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from kbq_assets.core.avro.common import NoCommonSchema, common_schema
from kbq_assets.wire.arrow.errors import BadFile
from kbq_assets.wire.files.reencode import reencoded

_MICROS = {"type": "long", "logicalType": "timestamp-micros"}
_DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
_FIXED = {"type": "fixed", "name": "D", "size": 4}


def _schema(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": n, "type": t} for n, t in fields]}


RICH = _schema(
    ("id", "int"),
    ("at", _MICROS),
    ("price", ["null", _DECIMAL]),
    ("tags", {"type": "array", "items": "string"}),
    ("more", {"type": "map", "values": ["null", "long"]}),
    ("any", ["null", "long", "string", _schema(("q", "double")) | {"name": "Q"}]),
    ("fix", {"type": "fixed", "name": "F", "size": 2}),
    ("kind", {"type": "enum", "name": "K", "symbols": ["a", "b"]}),
)
POOR = _schema(("new", "string"), ("id", ["null", "long"]))
ROWS: list[dict[str, Any]] = [
    {"id": 1, "at": 2**60, "price": b"\x01\x02", "tags": ["x", "y"], "more": {"k": 5, "n": None},
     "any": {"q": 0.5}, "fix": b"ab", "kind": "b"},
    {"id": -2, "at": -5, "price": None, "tags": [], "more": {}, "any": "text", "fix": b"\x00\xff", "kind": "a"},
    {"id": 3, "at": 0, "price": b"", "tags": ["é"], "more": {}, "any": None, "fix": b"cd", "kind": "a"},
]  # fmt: skip


def _file(schema: dict[str, Any], rows: list[dict[str, Any]], codec: str = "snappy") -> bytes:
    stream = io.BytesIO()
    fastavro.writer(stream, schema, rows, codec=codec, sync_interval=50, metadata={"own": "entry"})
    return stream.getvalue()


def _raw(data: bytes) -> list[dict[str, Any]]:
    """Records without conversions by logical types."""
    header = fastavro.reader(io.BytesIO(data))
    text = json.loads(str(header.metadata["avro.schema"]))

    def plain(node: Any) -> Any:
        if isinstance(node, dict):
            return {k: plain(v) for k, v in node.items() if k not in ("logicalType", "precision", "scale")}
        return [plain(each) for each in node] if isinstance(node, list) else node

    own = json.dumps(plain(text)).encode()
    old = header.metadata["avro.schema"].encode()
    assert data.count(old) == 1
    begin = data.index(old)
    size = io.BytesIO()
    fastavro.schemaless_writer(size, "long", len(own))
    old_size = io.BytesIO()
    fastavro.schemaless_writer(old_size, "long", len(old))
    head = data[: begin - len(old_size.getvalue())]
    found: Any = fastavro.reader(io.BytesIO(head + size.getvalue() + own + data[begin + len(old) :]))
    return list(found)


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy"])
def test_every_value_is_kept_and_fields_that_a_file_lacks_are_null(codec: str) -> None:
    schema = common_schema([json.dumps(RICH), json.dumps(POOR)])
    found = _raw(b"".join(reencoded(io.BytesIO(_file(RICH, ROWS, codec)), schema)))
    assert found == [{**row, "new": None} for row in ROWS]
    poor: list[dict[str, Any]] = [{"new": "n", "id": 7}, {"new": "", "id": None}]
    again = _raw(b"".join(reencoded(io.BytesIO(_file(POOR, poor, codec)), schema)))
    assert [{k: v for k, v in row.items() if v is not None} for row in again] == [
        {"new": "n", "id": 7},
        {"new": ""},
    ]


def test_bytes_and_decimals_of_another_type_keep_their_bytes() -> None:
    one = _schema(("fix", {"type": "fixed", "name": "F", "size": 2}), ("price", {**_DECIMAL, **_FIXED}))
    other = _schema(("fix", "bytes"), ("price", _DECIMAL), ("more", "int"))
    file = _file(one, [{"fix": b"\xff\x00", "price": Decimal("-1.23")}])
    schema = common_schema([json.dumps(one), json.dumps(other)])
    [found] = _raw(b"".join(reencoded(io.BytesIO(file), schema)))
    assert found == {**_raw(file)[0], "more": None}


def test_files_of_both_schemas_get_one_header() -> None:
    schema = common_schema([json.dumps(RICH), json.dumps(POOR)])
    files = [_file(RICH, ROWS), _file(POOR, [{"new": "n", "id": 7}])]
    headers = {
        str(fastavro.reader(io.BytesIO(b"".join(reencoded(io.BytesIO(f), schema)))).metadata["avro.schema"])
        for f in files
    }
    assert len(headers) == 1


def test_a_damaged_file_is_refused() -> None:
    with pytest.raises(BadFile):
        list(reencoded(io.BytesIO(_file(RICH, ROWS)[:-3]), json.dumps(RICH)))


def test_a_record_that_does_not_fit_is_refused() -> None:
    with pytest.raises(NoCommonSchema, match="does not fit"):
        list(
            reencoded(
                io.BytesIO(_file(POOR, [{"new": "n", "id": None}])), json.dumps(_schema(("id", "long")))
            )
        )
