"""Columns of JSON documents: found in what is there, only ever added to, and losing nothing.

A *shape* says which fields are columns and of which type. A value that does not fit its column, a field that has none
(yet), is not dropped: it goes to the side column `_kbq_rest`, a JSON object nested like the document. Columns
and side column together are the document.

A column's type is decided by all values seen when it is added: whole numbers, else numbers, texts, booleans, objects
(nested columns), lists of one of these, and JSON for a mixture. Afterwards it stays: a table's columns do not change
their type either.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kbq_assets.core.loading.tables import MAX_COLUMNS
from kbq_assets.core.topics.json.numbers import Number

#: Where a topic's shape is kept (PROTOCOL, Objects).
SHAPES: Final = "shapes/"
#: What fits no column.
REST: Final = "_kbq_rest"
#: The business time of documents, where one of their fields is named for it.
EVENT_TIME: Final = "_kbq_event_time"

#: Levels of columns: BigQuery has 15, one of which is a list's.
MAX_LEVELS: Final = 10
#: An object with more keys at first sight is a map in disguise: one JSON column.
MAX_FIELDS_AT_ONCE: Final = 300
#: Columns of a shape; a table needs some of its own.
MOST_COLUMNS: Final = MAX_COLUMNS // 2
#: Beyond these a float holds no whole number.
MAX_EXACT: Final = 2**53
MIN_INT64, MAX_INT64 = -(2**63), 2**63 - 1

_BAD_CHARACTER = re.compile(r"[^A-Za-z0-9_]")
#: https://cloud.google.com/bigquery/docs/schemas#column_names
_RESERVED = re.compile(
    r"_table_|_file_|_partition|_row_timestamp|__root__|_colidentifier|_kafka_|_kbq_", re.IGNORECASE
)
_LONGEST_NAME: Final = 120
#: Columns of every table, and of those with a business time.
_TAKEN: Final = frozenset({"event_date", "_event_time"})


@dataclass(frozen=True)
class Shape:
    """A type. ``kind``: BOOL, INT64, FLOAT64, STRING, JSON, RECORD (of ``fields``, in the order in which they
    were found), LIST (of ``item``)."""

    kind: str
    fields: tuple[ShapeField, ...] = ()
    item: Shape | None = None

    @property
    def columns(self) -> int:
        """Columns, nested ones included."""
        inner = sum(1 + each.shape.columns for each in self.fields)
        return inner + (self.item.columns if self.item else 0)


@dataclass(frozen=True)
class ShapeField:
    """A field's key in documents, its column's name, and its type."""

    key: str
    column: str
    shape: Shape


@dataclass(frozen=True)
class TopicShape:
    """`shapes/<topic>.json`: the columns of a topic's documents. ``version`` stands in the place of a schema id: each
    version's columns contain those of the one before. The first, 1, has none, and is not stored."""

    version: int = 1
    root: Shape = field(default_factory=lambda: Shape("RECORD"))
    extra: Mapping[str, Any] = field(default_factory=dict)

    def grown(self, documents: Iterable[object]) -> TopicShape:
        """With columns for what documents have beside: the next version, or this one where there is nothing new."""
        seen = Seen()
        for document in documents:
            seen.add(document)
        return self.grown_by(seen)

    def grown_by(self, seen: Seen) -> TopicShape:
        """The same for what was seen, or declared."""
        root = _Growth(MOST_COLUMNS - self.root.columns).record(self.root, seen, 1)
        return self if root == self.root else replace(self, version=self.version + 1, root=root)


class Seen:
    """What values were at one place: how often of which kind, and what was in them."""

    __slots__ = ("fields", "item", "kinds")

    def __init__(self) -> None:
        self.kinds: set[str] = set()
        self.fields: dict[str, Seen] = {}
        self.item: Seen | None = None

    def add(self, value: object, level: int = 1) -> None:
        """Take note of a value."""
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
    """The kind of a value: as `Shape`'s, or NULL, or WIDE for a number of more digits than INT64 and FLOAT64 hold."""
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
    """Adds columns, as long as there is room."""

    def __init__(self, room: int) -> None:
        self._room = room

    def record(self, shape: Shape, seen: Seen, level: int) -> Shape:
        """A record's shape with columns for new fields, at any depth."""
        fields = {each.key: each for each in shape.fields}
        taken = {each.column.lower() for each in fields.values()}
        for key, inner in seen.fields.items():
            known = fields.get(key)
            if known is not None:
                fields[key] = replace(known, shape=self._known(known.shape, inner, level + 1))
                continue
            found = self._new(inner, level + 1)
            if found is not None and self._room > found.columns:
                self._room -= 1 + found.columns
                fields[key] = ShapeField(key, _column_name(key, taken, level), found)
        return replace(shape, fields=tuple(fields.values()))

    def _known(self, shape: Shape, seen: Seen, level: int) -> Shape:
        if shape.kind == "RECORD":
            return self.record(shape, seen, level)
        if shape.kind == "LIST" and shape.item is not None and shape.item.kind == "RECORD" and seen.item:
            return replace(shape, item=self.record(shape.item, seen.item, level + 1))
        return shape

    def _new(self, seen: Seen, level: int) -> Shape | None:
        """The type of a new field; None where nothing was seen that tells one."""
        kinds = seen.kinds - {"NULL"}
        if "FLOAT64" in kinds and kinds <= {"INT64", "FLOAT64", "WIDE"}:
            return Shape("FLOAT64")
        if len(kinds) != 1 or kinds == {"WIDE"}:
            return Shape("JSON") if kinds else None
        [kind] = kinds
        if kind == "RECORD":
            return self._new_record(seen, level)
        return self._new_list(seen, level) if kind == "LIST" else Shape(kind)

    def _new_record(self, seen: Seen, level: int) -> Shape | None:
        if level >= MAX_LEVELS or len(seen.fields) > MAX_FIELDS_AT_ONCE:
            return Shape("JSON")
        made = _Growth(self._room).record(Shape("RECORD"), seen, level)
        return made if made.fields else None

    def _new_list(self, seen: Seen, level: int) -> Shape | None:
        if seen.item is None or not seen.item.kinds:
            return None
        # A list in a list, or a null in one, is no column of BigQuery's.
        if seen.item.kinds & {"LIST", "NULL"} or level >= MAX_LEVELS:
            return Shape("JSON")
        item = self._new(seen.item, level + 1)
        if item is None or item.kind == "JSON":
            return Shape("JSON")
        return Shape("LIST", item=item)


def _column_name(key: str, taken: set[str], level: int) -> str:
    """A column's name for a key that no sibling has, whatever the case; noted in ``taken``."""
    name = _BAD_CHARACTER.sub("_", key)[:_LONGEST_NAME] or "_"
    if name[0].isdigit() or _RESERVED.match(name) or (level == 1 and name.lower() in _TAKEN):
        name = f"field_{name}"
    base, number = name, 2
    while name.lower() in taken:
        name, number = f"{base}_{number}", number + 1
    taken.add(name.lower())
    return name


def avro_schema(shape: TopicShape, *, event_time: bool) -> dict[str, Any]:
    """The Avro schema of a topic's documents, side column last; every column may be null, lists may be empty."""
    fields = [_avro_field(each, f"c{index}") for index, each in enumerate(shape.root.fields)]
    document = {"type": "string", "sqlType": "JSON"}
    fields.append({"name": REST, "type": ["null", document]})
    if event_time:
        time = {"type": "long", "logicalType": "timestamp-micros"}
        fields.append({"name": EVENT_TIME, "type": ["null", time]})
    return {"type": "record", "name": "Json", "fields": fields}


def _avro_field(each: ShapeField, path: str) -> dict[str, Any]:
    type_ = _avro_type(each.shape, path)
    return {"name": each.column, "type": type_ if each.shape.kind == "LIST" else ["null", type_]}


def _avro_type(shape: Shape, path: str) -> Any:
    if shape.kind == "RECORD":
        # Names of types must differ within a schema: a path of numbers does, and stays when columns are added.
        fields = [_avro_field(each, f"{path}_{index}") for index, each in enumerate(shape.fields)]
        return {"type": "record", "name": f"Json_{path}", "fields": fields}
    if shape.kind == "LIST":
        assert shape.item is not None
        return {"type": "array", "items": _avro_type(shape.item, f"{path}_i")}
    return {"type": "string", "sqlType": "JSON"} if shape.kind == "JSON" else _AVRO[shape.kind]


_AVRO: Final[Mapping[str, str]] = {
    "BOOL": "boolean",
    "INT64": "long",
    "FLOAT64": "double",
    "STRING": "string",
}
