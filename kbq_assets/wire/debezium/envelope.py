"""Change events without their envelope: the row after the change, or the deleted row, and the columns that describe the
change.

The functions expect valid records, so validate them first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from kbq_assets.core.avro import tree as avro
from kbq_assets.core.avro.canonical import recursive_record
from kbq_assets.core.avro.visitor import visit
from kbq_assets.core.debezium.change_columns import (
    CHANGE_COLUMNS,
    DELETE,
    DELETED,
    MESSAGE,
    OF_ROWS,
    OP,
    SOURCE,
    TRUNCATE,
    UNAVAILABLE,
)
from kbq_assets.core.debezium.envelopes import is_envelope, record_of
from kbq_assets.core.errors import UnstageableSchema
from kbq_assets.wire.chunk import decode_long, encode_bytes, encode_long
from kbq_assets.wire.debezium.logical_types import TypedForms, UnfitValue, conversion
from kbq_assets.wire.debezium.placeholders import encoded_placeholders
from kbq_assets.wire.privacy.rewriting import Rewrite
from kbq_assets.wire.records.reasons import Reason
from kbq_assets.wire.records.skip import Skip, skip_of

_ENVELOPE: Final = ".Envelope"

#: Returns the column name of each field whose column has another name.
NamesOf: TypeAlias = Callable[[Iterable[str]], Mapping[str, str]]


def as_written(fields: Iterable[str]) -> Mapping[str, str]:
    """No field has another column name."""
    return {}


class NoRow(Exception):
    """Raised if a change event has no row, with the reason."""

    def __init__(self, reason: Reason, message: str = "") -> None:
        super().__init__(message or reason.message)
        self.reason = reason
        self.message = str(self)


@dataclass(frozen=True)
class Unwrapped:
    """Converts the records of one writer schema to rows. ``schema`` is the schema of the rows, as JSON values."""

    schema: Any
    _rows: _Envelope | _Plain

    def __call__(self, body: bytes, *, has_order: bool) -> bytes:
        """The row of a record. With ``has_order``, the truncation of a table has a place in the order of its rows.
        Raises NoRow."""
        try:
            return self._rows.row(body, has_order=has_order)
        except UnfitValue as error:
            raise NoRow(Reason.OUT_OF_RANGE, f"{Reason.OUT_OF_RANGE.message}: {error}") from error


def unwrapped(schema: Any, names_of: NamesOf = as_written) -> Unwrapped:
    """The conversion to rows for a writer schema: unwraps change events if the schema is an envelope, else keeps the
    records. The list of unavailable columns has the names that ``names_of`` returns. Raises UnstageableSchema."""
    root = avro.parse(schema)
    if not isinstance(root, avro.RecordType):
        raise UnstageableSchema("it is not a record", next_step="set format to that of the topic")
    if recursive := recursive_record(root):
        raise UnstageableSchema(f"record {recursive!r} contains itself", next_step="change the schema")
    if not is_envelope(root):
        return Unwrapped(visit(root, TypedForms()), _Plain(conversion(root)))
    return _of_envelope(root, names_of)


def _of_envelope(root: avro.RecordType, names_of: NamesOf) -> Unwrapped:
    forms = TypedForms()
    name = forms.free_name(root.name.removesuffix(_ENVELOPE))
    parts = [key for key in ("after", "before") if key in root.fields]
    rows: dict[str, avro.RecordType | None] = {key: record_of(root.fields[key].type) for key in parts}
    if any(row is None for row in rows.values()):
        raise UnstageableSchema(
            "the events hold documents, not rows, and documents (MongoDB) are not supported",
            next_step="use the connector's ExtractNewDocumentState, and format=json_columns",
        )
    row = rows.get("after") or rows.get("before") or avro.RecordType((), "None")
    if taken := [key for key in row.fields if key.lower() in CHANGE_COLUMNS]:
        raise UnstageableSchema(
            f"the column {taken[0]!r} collides with the change's own", next_step="rename or exclude it"
        )
    source = _RowColumn.of("source", root.fields["source"].type)
    columns = [_RowColumn.of(key, field.type) for key, field in row.fields.items()]
    fields = [
        *(forms.field(row.fields[each.name], each.form(forms)) for each in columns),
        {"name": OP, "type": ["null", "string"], "doc": "c create, u update, d delete, r read, t truncate."},
        {"name": DELETED, "type": ["null", "boolean"], "doc": "Whether the row no longer exists."},
        {
            "name": UNAVAILABLE,
            "type": {"type": "array", "items": "string"},
            "doc": "Columns whose value the database did not send: null here, and unchanged there.",
        },
        {
            **forms.field(root.fields["source"], source.form(forms)),
            "name": SOURCE,
            "doc": "Where and when the change happened.",
        },
    ]
    names = names_of(row.fields)
    readers = {key: _Reader.of(root.fields[key].type, names) for key in rows}
    skips = tuple((key, skip_of(field.type)) for key, field in root.fields.items())
    op = _RowColumn.of("op", root.fields["op"].type)
    made = _Envelope(skips, op, tuple(columns), source, conversion(source.node), readers)
    return Unwrapped({"type": "record", "name": name, "fields": fields}, made)


@dataclass(frozen=True)
class _Plain:
    """Records that are not change events: schema changes, transactions, heartbeats."""

    step: Rewrite

    def row(self, body: bytes, *, has_order: bool) -> bytes:
        out: list[bytes] = []
        self.step(body, 0, out)
        return b"".join(out)


@dataclass(frozen=True)
class _RowColumn:
    """A column of a row. Every column may be null, because a deleted row may have only its key. ``absent`` is the
    encoding of null or of an empty list. ``before`` is written before a value."""

    name: str
    node: avro.AvroType
    absent: bytes
    before: bytes
    placeholders: frozenset[bytes]

    @classmethod
    def of(cls, name: str, node: avro.AvroType) -> _RowColumn:
        if isinstance(node, avro.Union):
            nulls = [index for index, each in enumerate(node.branches) if avro.is_null(each)]
            if not nulls:
                raise UnstageableSchema(f"the column {name!r} is a union without null", next_step="change it")
            marks = [(encode_long(index), each) for index, each in enumerate(node.branches)]
            found = frozenset(mark + value for mark, each in marks for value in encoded_placeholders(each))
            return cls(name, node, encode_long(nulls[0]), b"", found)
        before = b"" if isinstance(node, avro.Array | avro.Map) else b"\x02"
        return cls(name, node, b"\x00", before, frozenset(encoded_placeholders(node)))

    def form(self, forms: TypedForms) -> Any:
        made = visit(self.node, forms)
        return ["null", made] if self.before else made


@dataclass(frozen=True)
class _Reader:
    """Reads the columns of a row in an event, if the row is not null. ``null`` is the encoded branch of null. ``names``
    are the column names of the table that differ from the field names."""

    columns: tuple[tuple[_RowColumn, Skip, Rewrite], ...]
    null: bytes
    names: Mapping[str, str]

    @classmethod
    def of(cls, node: avro.AvroType, names: Mapping[str, str]) -> _Reader:
        row = record_of(node)
        assert row is not None  # `_of_envelope` has checked it
        columns = [_RowColumn.of(key, field.type) for key, field in row.fields.items()]
        steps = tuple((each, skip_of(each.node), conversion(each.node)) for each in columns)
        null = _RowColumn.of("row", node).absent if isinstance(node, avro.Union) else b""
        return cls(steps, null, names)

    def read(self, data: bytes, position: int) -> tuple[dict[str, bytes], list[str]] | None:
        """The converted columns by name, and the names of unavailable columns. None for null."""
        if self.null:
            if data[position : position + 1] == self.null:
                return None
            position += 1
        found: dict[str, bytes] = {}
        unavailable: list[str] = []
        for column, skip, step in self.columns:
            end = skip(data, position)
            if data[position:end] in column.placeholders:
                unavailable.append(self.names.get(column.name, column.name))
            else:
                out = [column.before]
                step(data, position, out)
                found[column.name] = b"".join(out)
            position = end
        return found, unavailable


@dataclass(frozen=True)
class _Envelope:
    parts: tuple[tuple[str, Skip], ...]
    op: _RowColumn
    columns: tuple[_RowColumn, ...]
    source: _RowColumn
    source_step: Rewrite
    readers: Mapping[str, _Reader]

    def row(self, body: bytes, *, has_order: bool) -> bytes:
        starts, position = dict[str, int](), 0
        for key, skip in self.parts:
            starts[key] = position
            position = skip(body, position)
        op = self._op(body, starts["op"])
        if op == MESSAGE:
            raise NoRow(Reason.NO_CHANGE)
        if op == TRUNCATE and not has_order:
            raise NoRow(Reason.TABLE_TRUNCATED)
        if op != TRUNCATE and op not in OF_ROWS:
            raise NoRow(Reason.INVALID_CHANGE, f"{Reason.INVALID_CHANGE.message}: op={op[:20]!r}")
        found, unavailable = ({}, []) if op == TRUNCATE else self._read(body, starts, op)
        out = [found.get(each.name, each.absent) for each in self.columns]
        out += [b"\x02" + encode_bytes(op.encode()), b"\x02\x01" if op == DELETE else b"\x02\x00"]
        if unavailable:
            out += [encode_long(len(unavailable)), *(encode_bytes(name.encode()) for name in unavailable)]
        out += [b"\x00", self.source.before]
        self.source_step(body, starts["source"], out)
        return b"".join(out)

    def _op(self, body: bytes, position: int) -> str:
        if not self.op.before:  # a union with null
            if body[position : position + 1] == self.op.absent:
                return ""
            position += 1
        size, start = decode_long(body, position)
        return body[start : start + size].decode()

    def _read(self, body: bytes, starts: Mapping[str, int], op: str) -> tuple[dict[str, bytes], list[str]]:
        part = "before" if op == DELETE else "after"
        found = self.readers[part].read(body, starts[part]) if part in self.readers else None
        if found is None and op != DELETE:  # only the key identifies the deleted row
            raise NoRow(Reason.INVALID_CHANGE, f"{Reason.INVALID_CHANGE.message}: op={op}, without {part}")
        return found or ({}, [])
