"""The fields of Avro, JSON and Protobuf schemas, and the catalog's rules for them. Needs no registry."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kbq_assets.core.avro.fields import fields_in
from kbq_assets.core.avro.tree import AvroType, Primitive, Union
from kbq_assets.core.catalog import CatalogProblem
from kbq_assets.core.catalog.schema_rules import SchemaField, SchemaRules
from kbq_assets.core.errors import ConfigurationError, EncodingError
from kbq_assets.core.topics.json.declared import declared

#: Returns the fields of a Protobuf schema as dotted paths, with their types. Raises EncodingError for other text,
#: ConfigurationError if protoc is not installed.
ProtobufFields = Callable[[str], Iterable[tuple[str, str]]]
#: The form of a time in each kind of schema.
_AVRO_TIME: Final = "logicalType timestamp-millis, timestamp-micros or date"
_JSON_TIME: Final = '"format": "date-time" or "date"'
_PROTOBUF_TIME: Final = "google.protobuf.Timestamp"
_AVRO_KINDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("string", "enum"), "text"),
    **dict.fromkeys(("int", "long", "float", "double"), "number"),
}
_JSON_KINDS: Final[Mapping[str, str]] = {"string": "text", "integer": "number", "number": "number"}


@dataclass(frozen=True)
class SchemaFile:
    """A schema of an entry, such as ``value.avsc`` or ``key.avsc`` in the folder ``schemas`` of its topic or
    environment."""

    path: str
    part: str
    text: str
    schema_type: str
    subject: str
    rules: SchemaRules

    def problems(self, fields: Sequence[SchemaField], time: str, root: str = "") -> Iterator[CatalogProblem]:
        """The rules that the fields break. Paths of mandatory fields begin at ``root``."""
        for where, message, hint in self.rules.broken(fields, time, root):
            yield CatalogProblem(self.path, self._line_of(where.rpartition(".")[2]), where, message, hint)

    def _line_of(self, name: str) -> int:
        found = max(self.text.find(json.dumps(name)), self.text.find(f" {name} "))
        return self.text.count("\n", 0, found) + 1 if found >= 0 else 1


def avro_problems(schema: SchemaFile, root: AvroType) -> Iterator[CatalogProblem]:
    fields = [SchemaField(path, _avro_kinds(type_)) for path, type_ in fields_in(root)]
    return schema.problems(fields, _AVRO_TIME)


def json_problems(schema: SchemaFile) -> Iterator[CatalogProblem]:
    """Mistakes in a JSON Schema: it is not JSON, its values are not objects, or it breaks rules."""
    try:
        document = json.loads(schema.text)
    except (ValueError, RecursionError) as error:
        yield CatalogProblem(schema.path, getattr(error, "lineno", 1), "", f"not JSON: {error}")
        return
    if schema.part == "value" and "RECORD" not in declared(document).kinds:
        yield CatalogProblem(
            schema.path, 1, "", "does not describe objects, but rows need them", '"type": "object"'
        )
        return
    fields = [SchemaField(path, _json_kinds(each)) for path, each in _properties(document)]
    yield from schema.problems(fields, _JSON_TIME)


def compiled_problems(
    schemas: Iterable[SchemaFile], fields_of: ProtobufFields
) -> tuple[list[CatalogProblem], str]:
    """Mistakes in Protobuf schemas, and a message if they were not checked because protoc is not installed."""
    try:
        return [problem for schema in schemas for problem in protobuf_problems(schema, fields_of)], ""
    except ConfigurationError as error:
        return [], f"Protobuf schemas were not compiled: {error.message}; {error.next_step}"


def protobuf_problems(schema: SchemaFile, fields_of: ProtobufFields) -> Iterator[CatalogProblem]:
    """Mistakes in a Protobuf schema. Raises ConfigurationError if protoc is not installed."""
    try:
        found = list(fields_of(schema.text))
    except EncodingError as error:
        hint = "see protoc's message; import only Google's own types"
        yield CatalogProblem(schema.path, 1, "", error.message, hint)
        return
    fields = [SchemaField(path, frozenset({_protobuf_kind(kind)})) for path, kind in found]
    # Paths begin with the message. Records have the first message.
    root = found[0][0].partition(".")[0] + "." if found else ""
    yield from schema.problems(fields, _PROTOBUF_TIME, root)


def _avro_kinds(node: AvroType) -> frozenset[str]:
    """The kinds of a field. A time is not a number, although Avro writes it as one."""
    if isinstance(node, Union):
        return frozenset().union(*map(_avro_kinds, node.branches))
    logical = [str(value) for value in node.values_of("logicalType")]
    if any(value.startswith(("timestamp-", "local-timestamp-", "date")) for value in logical):
        return frozenset({"time"})
    if "decimal" in logical:
        return frozenset({"number"})
    kind = _AVRO_KINDS.get(node.kind if isinstance(node, Primitive) else type(node).__name__.lower())
    return frozenset({kind} if kind else ())


def _properties(schema: Any, where: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Properties at any depth, with dotted paths. Paths in definitions begin at the definition."""
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


def _json_kinds(schema: Mapping[str, Any]) -> frozenset[str]:
    """The kinds of a property. Without a type, it has all kinds, because references and alternatives are not
    followed."""
    if schema.get("format") in ("date-time", "date"):
        return frozenset({"text", "time"})
    if not schema.keys() & {"type", "enum", "const"}:
        return frozenset({"text", "number", "time"})
    types = schema.get("type", "string")
    return frozenset(
        _JSON_KINDS.get(str(each), "any") for each in (types if isinstance(types, list) else [types])
    )


def _protobuf_kind(kind: str) -> str:
    return "time" if kind == _PROTOBUF_TIME else kind
