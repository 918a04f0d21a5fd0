"""Checks of the catalog's JSON and Protobuf schemas, without a registry."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from kbq_assets.core.catalog import CatalogProblem
from kbq_assets.core.errors import ConfigurationError, EncodingError
from kbq_assets.core.topics.json.declared import declared

#: The fields of a Protobuf schema as dotted paths with their types. Raises EncodingError for other text,
#: ConfigurationError if protoc is not installed.
ProtobufFields = Callable[[str], Iterable[tuple[str, str]]]
_TIME: Final = "google.protobuf.Timestamp"
_JSON_TIMES: Final = frozenset({"date-time", "date"})
_UNTIMED: Final = "has the name of a time, but not the type"


def json_problems(path: str, text: str, part: str, time_fields: str) -> Iterator[CatalogProblem]:
    """Mistakes in a JSON Schema: not JSON, values that are not objects, times without a format."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        yield CatalogProblem(path, getattr(error, "lineno", 1), "", f"not JSON: {error}")
        return
    if part == "value" and "RECORD" not in declared(document).kinds:
        yield CatalogProblem(path, 1, "", "does not describe objects, which rows need", '"type": "object"')
        return
    if time_fields:
        pattern = re.compile(time_fields)
        for where, schema in _properties(document):
            if pattern.fullmatch(where.rpartition(".")[2]) and not _is_json_time(schema):
                line = _line_of(text, json.dumps(where.rpartition(".")[2]))
                yield CatalogProblem(path, line, where, _UNTIMED, '"format": "date-time" or "date"')


def protobuf_problems(
    schemas: Iterable[tuple[str, str]], fields: ProtobufFields, time_fields: str
) -> Iterator[CatalogProblem]:
    """Mistakes in Protobuf schemas, by path and text. Raises ConfigurationError without protoc."""
    for path, text in schemas:
        try:
            found = list(fields(text))
        except EncodingError as error:
            yield CatalogProblem(
                path, 1, "", error.message, "see protoc's message; import only Google's own types"
            )
            continue
        for where, kind in found:
            name = where.rpartition(".")[2]
            if time_fields and re.fullmatch(time_fields, name) and kind != _TIME:
                yield CatalogProblem(path, _line_of(text, f" {name} "), where, _UNTIMED, _TIME)


def compiled_problems(
    schemas: Iterable[tuple[str, str]], fields: ProtobufFields, time_fields: str
) -> tuple[list[CatalogProblem], str]:
    """Mistakes in Protobuf schemas, and why they were not checked if protoc is not installed."""
    try:
        return list(protobuf_problems(schemas, fields, time_fields)), ""
    except ConfigurationError as error:
        return [], f"Protobuf schemas were not compiled: {error.message}; {error.next_step}"


def _properties(schema: Any, where: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Properties at any depth, with dotted paths; those of definitions begin at the definition."""
    if isinstance(schema, list):
        for each in schema:
            yield from _properties(each, where)
    if not isinstance(schema, Mapping):
        return
    for key, inner in schema.items():
        if key == "properties" and isinstance(inner, Mapping):
            for name, each in inner.items():
                path = f"{where}.{name}" if where else str(name)
                if isinstance(each, Mapping):
                    yield path, each
                yield from _properties(each, path)
        elif key in ("definitions", "$defs") and isinstance(inner, Mapping):
            for each in inner.values():
                yield from _properties(each)
        elif key in ("items", "allOf", "anyOf", "oneOf"):
            yield from _properties(inner, where)


def _is_json_time(schema: Mapping[str, Any]) -> bool:
    """Whether a property is a text with the format of a time. References and alternatives are not followed."""
    return schema.get("format") in _JSON_TIMES or not schema.keys() & {"type", "enum", "const"}


def _line_of(text: str, word: str) -> int:
    found = text.find(word)
    return text.count("\n", 0, found) + 1 if found >= 0 else 1
