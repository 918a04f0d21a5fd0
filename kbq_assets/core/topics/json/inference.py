"""The inferred schema of JSON documents. Columns are derived from documents and only ever added, and no value is lost.

The inferred schema lists the fields that are columns, with their types. A value that does not fit its column, or has no
column yet, goes to the side column `_kbq_rest`, a JSON object nested like the document. Columns and side column
together contain the whole document.

All values seen when a column is added decide its type: whole numbers, else numbers, texts, booleans, objects (nested
columns), lists of one of these, or JSON for a mixture. The type never changes, just like the types of a table's
columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kbq_assets.core.loading.column_limits import MAX_COLUMNS
from kbq_assets.core.protocol.codec import Stored, stored_as
from kbq_assets.core.topics.column_names import AS_WRITTEN, compared
from kbq_assets.core.topics.json.numbers import Number

#: Folder of inferred schemas (PROTOCOL, Objects).
SHAPES: Final = "shapes/"
#: The side column.
REST: Final = "_kbq_rest"
#: The business time of documents, if a field is configured for it.
EVENT_TIME: Final = "_kbq_event_time"

#: Most levels of columns. BigQuery allows 15, and a list counts as one.
MAX_LEVELS: Final = 10
#: An object that first appears with more keys is treated as a map: one JSON column.
MAX_FIELDS_AT_ONCE: Final = 300
#: Most columns of an inferred schema; a table needs some of its own.
MOST_COLUMNS: Final = MAX_COLUMNS // 2
#: Floats are exact for all whole numbers up to this one.
MAX_EXACT: Final = 2**53
MIN_INT64, MAX_INT64 = -(2**63), 2**63 - 1

_BAD_CHARACTER = re.compile(r"[^A-Za-z0-9_]")
#: https://cloud.google.com/bigquery/docs/schemas#column_names
_RESERVED = re.compile(
    r"_table_|_file_|_partition|_row_timestamp|__root__|_colidentifier|_kafka_|_kbq_"
    r"|_change_(type|sequence_number|timestamp)$",
    re.IGNORECASE,
)
_LONGEST_NAME: Final = 120
#: Name of the Avro record for a document with inferred columns.
INFERRED: Final = "Json"
#: Columns of every table, and of tables with a business time.
_TAKEN: Final = frozenset({"event_date", "_event_time"})


@dataclass(frozen=True)
class InferredType(Stored):
    """A type. ``kind`` is BOOL, INT64, FLOAT64, STRING, JSON, RECORD (of ``fields``, in the order found) or LIST (of
    ``item``)."""

    kind: str
    fields: tuple[InferredField, ...] = ()
    item: InferredType | None = None

    @property
    def columns(self) -> int:
        """Number of columns, including nested ones."""
        inner = sum(1 + each.inferred.columns for each in self.fields)
        return inner + (self.item.columns if self.item else 0)


@dataclass(frozen=True)
class InferredField(Stored):
    """A field's key in documents, its column's name, and its type."""

    key: str
    column: str
    inferred: InferredType = field(metadata=stored_as("shape"))


@dataclass(frozen=True)
class InferredSchema(Stored):
    """`shapes/<topic>.json`: the columns of a topic's documents. ``version`` serves as the schema id; each version
    includes the columns of the previous one. Version 1 has no columns and is not stored."""

    version: int = 1
    root: InferredType = field(default_factory=lambda: InferredType("RECORD"))

    def grown(
        self,
        documents: Iterable[object],
        fixed: Mapping[str, object] | None = None,
        kinds: Mapping[tuple[str, ...], str] | None = None,
        style: str = AS_WRITTEN,
    ) -> InferredSchema:
        """The next version, with columns for new fields of documents; this version if there are none. ``fixed`` has a
        value for each field whose type it decides, whatever the documents have there; ``kinds`` the kinds of some new
        columns by the keys that lead to them. ``style`` is that of the table's column names."""
        seen = Seen()
        for document in documents:
            seen.add(document)
        for keys, kind in (kinds or {}).items():
            seen.decide(keys, kind)
        for key in seen.fields.keys() & (fixed or {}).keys():
            seen.fields[key] = Seen()
            seen.fields[key].add((fixed or {})[key], 2)
        return self.grown_by(seen, style)

    def grown_by(self, seen: Seen, style: str = AS_WRITTEN) -> InferredSchema:
        """The next version, with columns for new fields that were seen or declared; this version if there are none."""
        root = _Growth(MOST_COLUMNS - self.root.columns, style).record(self.root, seen, 1)
        return self if root == self.root else replace(self, version=self.version + 1, root=root)


class Seen:
    """The kinds of values seen at one place, and their contents. Only schemas yield the kind JSON and ``again``, the
    places that this one repeats because a field is recursive."""

    __slots__ = ("again", "fields", "item", "kinds")

    def __init__(self) -> None:
        self.kinds: set[str] = set()
        self.fields: dict[str, Seen] = {}
        self.item: Seen | None = None
        self.again: list[Seen] = []

    def alike(self) -> list[Seen]:
        """This place, the places of its items, and the places that it repeats: a field of one is a field of all."""
        found = [self]
        for each in found:
            inner = [*each.again, *([each.item] if each.item is not None else [])]
            found += [one for one in inner if one not in found]
        return found

    def decide(self, keys: Sequence[str], kind: str) -> None:
        """Count only values of a kind at the keys, and only objects on the way there."""
        found: Seen | None = self
        for key in keys:
            found = found.fields.get(key) if found is not None else None
            if found is not None:
                found.kinds = {"RECORD"}
        if found is not None:
            found.kinds = {kind}

    def add(self, value: object, level: int = 1) -> None:
        kind = kind_of(value)
        self.kinds.add(kind)
        if level > MAX_LEVELS:
            return
        if isinstance(value, dict):
            for key, inner in value.items():
                found = self.fields.get(key)
                if found is None:
                    found = self.fields[key] = Seen()
                found.add(inner, level + 1)
        elif isinstance(value, list):
            self.item = self.item or Seen()
            for inner in value:
                self.item.add(inner, level + 1)


def kind_of(value: object) -> str:
    """The kind of a value: one of `InferredType`, NULL, or WIDE for a number that fits neither INT64 nor FLOAT64."""
    if isinstance(value, int) and not isinstance(value, bool):
        return "INT64" if MIN_INT64 <= value <= MAX_INT64 else "WIDE"
    return _KINDS[type(value)]


_KINDS: Final[Mapping[type, str]] = {
    bool: "BOOL",
    float: "FLOAT64",
    Number: "WIDE",
    str: "STRING",
    dict: "RECORD",
    list: "LIST",
    type(None): "NULL",
}


class _Growth:
    """Adds columns within the limit."""

    def __init__(self, room: int, style: str) -> None:
        self._room = room
        self._style = style

    def record(self, inferred: InferredType, seen: Seen, level: int) -> InferredType:
        """A record with columns for new fields, at any depth."""
        fields = {each.key: each for each in inferred.fields}
        taken = {compared(each.column, self._style) for each in fields.values()}
        for key, inner in seen.fields.items():
            known = fields.get(key)
            if known is not None:
                fields[key] = replace(known, inferred=self._known(known.inferred, inner, level + 1))
                continue
            found = self._new(inner, level + 1)
            if found is not None and self._room > found.columns:
                self._room -= 1 + found.columns
                fields[key] = InferredField(key, column_name(key, taken, level, self._style), found)
        return replace(inferred, fields=tuple(fields.values()))

    def _known(self, inferred: InferredType, seen: Seen, level: int) -> InferredType:
        if inferred.kind == "RECORD":
            return self.record(inferred, seen, level)
        if (
            inferred.kind == "LIST"
            and inferred.item is not None
            and inferred.item.kind == "RECORD"
            and seen.item
        ):
            return replace(inferred, item=self.record(inferred.item, seen.item, level + 1))
        return inferred

    def _new(self, seen: Seen, level: int) -> InferredType | None:
        """The type of a new field; None if the values seen do not determine one."""
        kinds = seen.kinds - {"NULL"}
        if "FLOAT64" in kinds and kinds <= {"INT64", "FLOAT64", "WIDE"}:
            return InferredType("FLOAT64")
        if len(kinds) != 1 or kinds == {"WIDE"}:
            return InferredType("JSON") if kinds else None
        [kind] = kinds
        if kind == "RECORD":
            return self._new_record(seen, level)
        return self._new_list(seen, level) if kind == "LIST" else InferredType(kind)

    def _new_record(self, seen: Seen, level: int) -> InferredType | None:
        if level >= MAX_LEVELS or len(seen.fields) > MAX_FIELDS_AT_ONCE:
            return InferredType("JSON")
        made = _Growth(self._room - 1, self._style).record(InferredType("RECORD"), seen, level)
        return made if made.fields else None

    def _new_list(self, seen: Seen, level: int) -> InferredType | None:
        if seen.item is None or not seen.item.kinds:
            return None
        # BigQuery has no columns for lists of lists, or for lists with nulls.
        if seen.item.kinds & {"LIST", "NULL"} or level >= MAX_LEVELS:
            return InferredType("JSON")
        item = self._new(seen.item, level + 1)
        if item is None or item.kind == "JSON":
            return InferredType("JSON")
        return InferredType("LIST", item=item)


def column_name(key: str, taken: set[str], level: int, style: str = AS_WRITTEN) -> str:
    """A column name for a key, distinct from its siblings' names, also in the style of the table's names. Adds it to
    ``taken``."""
    name = _BAD_CHARACTER.sub("_", key)[:_LONGEST_NAME] or "_"
    if name[0].isdigit() or _RESERVED.match(name) or (level == 1 and name.lower() in _TAKEN):
        name = f"field_{name}"
    base, number = name, 2
    while compared(name, style) in taken:
        name, number = f"{base}_{number}", number + 1
    taken.add(compared(name, style))
    return name


def avro_schema(inferred: InferredSchema, *, event_time: bool) -> dict[str, Any]:
    """The Avro schema of a topic's documents, with the side column last. Every column may be null, and lists may be
    empty."""
    fields = [_avro_field(each, f"c{index}") for index, each in enumerate(inferred.root.fields)]
    document = {"type": "string", "sqlType": "JSON"}
    fields.append({"name": REST, "type": ["null", document]})
    if event_time:
        time = {"type": "long", "logicalType": "timestamp-micros"}
        fields.append({"name": EVENT_TIME, "type": ["null", time]})
    return {"type": "record", "name": INFERRED, "fields": fields}


def _avro_field(each: InferredField, path: str) -> dict[str, Any]:
    type_ = _avro_type(each.inferred, path)
    return {"name": each.column, "type": type_ if each.inferred.kind == "LIST" else ["null", type_]}


def _avro_type(inferred: InferredType, path: str) -> Any:
    if inferred.kind == "RECORD":
        # Type names must be unique in a schema. Paths of indexes are, and they stay the same when columns are added.
        fields = [_avro_field(each, f"{path}_{index}") for index, each in enumerate(inferred.fields)]
        return {"type": "record", "name": f"Json_{path}", "fields": fields}
    if inferred.kind == "LIST":
        assert inferred.item is not None
        return {"type": "array", "items": _avro_type(inferred.item, f"{path}_i")}
    return {"type": "string", "sqlType": "JSON"} if inferred.kind == "JSON" else _AVRO[inferred.kind]


_AVRO: Final[Mapping[str, str]] = {
    "BOOL": "boolean",
    "INT64": "long",
    "FLOAT64": "double",
    "STRING": "string",
}
