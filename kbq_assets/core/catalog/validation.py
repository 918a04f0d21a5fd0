"""Checks documents against their fields (unknown keys, wrong types, wrong choices), and renders the JSON Schema."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from kbq_assets.core.catalog.fields import ENTRY, CatalogField
from kbq_assets.core.catalog.nodes import CatalogProblem, DocumentNode
from kbq_assets.core.spelling import meant

#: A name, not a URL, because editors use the file.
SCHEMA_ID: Final = "urn:kbq:catalog-entry"


def check_fields(
    node: DocumentNode, fields: Mapping[str, CatalogField], where: str = ""
) -> Iterator[CatalogProblem]:
    if not isinstance(node.value, Mapping):
        yield node.problem(where, f"expected keys, found {_described(node)}", ", ".join(fields))
        return
    for key, child in node.value.items():
        path = f"{where}.{key}" if where else key
        known = fields.get(key)
        if known is None:
            yield child.problem(path, f"unknown key {key!r}", _nearest(key, fields))
        elif child.value is not None:  # null removes an inherited value
            yield from _check_value(child, known, path)


def _check_value(node: DocumentNode, known: CatalogField, where: str) -> Iterator[CatalogProblem]:
    if known.kind == "section" or (known.fields and isinstance(node.value, Mapping)):
        yield from check_fields(node, known.fields, where)
    elif known.kind == "switch" and isinstance(node.value, bool):
        return
    elif not _ACCEPTS[known.kind](node):
        yield node.problem(where, f"expected {_EXPECTED[known.kind]}, found {_described(node)}")
    elif known.choices and node.value not in known.choices:
        allowed = [*(("true", "false") if known.kind == "switch" else ()), *known.choices]
        hint = meant(str(node.value), known.choices) or f"one of {', '.join(allowed)}"
        yield node.problem(where, f"{node.value!r} is not a value of {where.rpartition('.')[2]}", hint)


def json_schema(fields: Mapping[str, CatalogField] = ENTRY) -> dict[str, Any]:
    """The JSON Schema (2020-12) of entries and defaults."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "An entry of KBQ's topic catalog, or defaults",
        **_object(fields),
    }


def _object(fields: Mapping[str, CatalogField]) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {key: _property(each) for key, each in fields.items()},
    }


def _property(each: CatalogField) -> dict[str, Any]:
    made: dict[str, Any] = {"description": each.doc}
    if each.kind == "section":
        return made | _object(each.fields)
    if each.kind == "strings":
        return made | {"type": ["array", "null"], "items": {"type": "string"}}
    if each.kind == "map":
        return made | {"type": ["object", "null"], "additionalProperties": {"type": _SCALARS}}
    if each.choices:
        return made | {"enum": [*each.choices, *((True, False) if each.kind == "switch" else ()), None]}
    # An option such as priority may be a word or a number.
    kinds = ["string", "integer"] if each.option and each.kind == "string" else [each.kind]
    if each.fields:
        return made | {"anyOf": [{"type": [*kinds, "null"]}, _object(each.fields)]}
    return made | {"type": [*kinds, "null"]}


_SCALARS: Final = ["string", "number", "boolean", "null"]


def _is_integer(node: DocumentNode) -> bool:
    return isinstance(node.value, int) and not isinstance(node.value, bool)


def _is_scalar(node: DocumentNode) -> bool:
    return node.value is None or isinstance(node.value, str | int | float | bool)


_ACCEPTS: Final[Mapping[str, Callable[[DocumentNode], bool]]] = {
    "string": lambda node: isinstance(node.value, str) or _is_integer(node),
    "integer": _is_integer,
    "number": lambda node: _is_integer(node) or isinstance(node.value, float),
    "boolean": lambda node: isinstance(node.value, bool),
    "strings": lambda node: (
        isinstance(node.value, tuple) and all(isinstance(n.value, str) for n in node.value)
    ),
    "map": lambda node: isinstance(node.value, Mapping) and all(map(_is_scalar, node.value.values())),
    "switch": lambda node: isinstance(node.value, str),
    "sections": lambda node: isinstance(node.value, Mapping),
}
_EXPECTED: Final[Mapping[str, str]] = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "strings": "a list of texts",
    "map": "keys with single values",
    "switch": "true, false or a text",
    "sections": "names with sections",
}


def _described(node: DocumentNode) -> str:
    if isinstance(node.value, Mapping):
        return "keys"
    if isinstance(node.value, tuple):
        return "a list"
    return repr(node.value)


def _nearest(key: str, fields: Mapping[str, CatalogField]) -> str:
    if near := meant(key, fields):
        return near
    # The key may belong to another section: name it.
    inside = [name for name, each in fields.items() if key in each.fields]
    return f"it belongs to {inside[0]!r}" if inside else f"keys: {', '.join(fields)}"
