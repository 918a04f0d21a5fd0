"""Finds rows of a staged file that have a given value in a column."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final, cast

import cramjam
import fastavro
from fastavro.schema import SchemaParseException

from kbq_assets.wire.arrow.errors import BadFile

_OFFSET: Final = "_kafka_offset"
#: Exceptions of fastavro and its codecs for damaged files.
_DAMAGES: Final = (
    *(EOFError, ValueError, IndexError, KeyError, OverflowError, StopIteration, TypeError),
    *(SchemaParseException, cramjam.DecompressionError, zlib.error),
)


@dataclass
class ColumnSearch:
    """Searches files for rows with at least one of the wanted values in its column. A dot in a column selects a field
    of a record."""

    wanted: Sequence[tuple[str, str]] = field(repr=False)
    #: the wanted columns that some file had
    columns: set[str] = field(default_factory=set)

    def offsets(self, stream: BinaryIO) -> Iterator[int]:
        """The offsets of matching rows. Raises BadFile."""
        try:
            reader = fastavro.reader(stream)
            types: dict[str, Any] = {}
            schema = fastavro.parse_schema(reader.writer_schema or {}, named_schemas=types)
            there = [(column, value) for column, value in self.wanted if _has(schema, column, types)]
            self.columns.update(column for column, _ in there)
            for record in reader if there else ():
                row = cast("Mapping[str, Any]", record)
                if any(_text(row, column) == value for column, value in there):
                    yield row[_OFFSET]
        except _DAMAGES as error:
            raise BadFile(f"a record cannot be decoded: {type(error).__name__}") from error


def _has(schema: Any, column: str, types: Mapping[str, Any]) -> bool:
    """Whether a schema has a column, given as a path through records. ``types`` are the named ones, which a schema
    defines once."""
    if isinstance(schema, list):
        return any(_has(each, column, types) for each in schema)
    if isinstance(schema, str):
        schema = types.get(schema)
    if not isinstance(schema, dict) or schema.get("type") != "record":
        return False
    name, _, rest = column.partition(".")
    found = [each["type"] for each in schema["fields"] if each["name"].lower() == name.lower()]
    return bool(found) and (not rest or _has(found[0], rest, types))


def _text(record: Mapping[str, Any], column: str) -> str | None:
    """A column's value as text, None if there is none."""
    value: Any = record
    for step in column.split("."):
        if not isinstance(value, Mapping):
            return None
        value = next((each for name, each in value.items() if name.lower() == step.lower()), None)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None or isinstance(value, (Mapping, list)) else str(value)
