"""Columns that a JSON Schema declares, before a value is seen: drafts 4 to 2020-12, as far as they declare types.

Values decide what it leaves open (no type, alternatives of several types, patterns), as without a schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from kbq_assets.core.topics.json.inference import MAX_LEVELS, Seen

_KINDS: Final[Mapping[str, str]] = {
    "boolean": "BOOL",
    "integer": "INT64",
    "number": "FLOAT64",
    "string": "STRING",
    "object": "RECORD",
    "array": "LIST",
    "null": "NULL",
}


def declared(schema: Any) -> Seen:
    """The values that a schema declares, as if they had been seen."""
    seen = Seen()
    _declare(seen, schema, schema, 1)
    return seen


def _declare(seen: Seen, schema: Any, root: Any, level: int, *, tests: bool = False) -> None:
    if level > MAX_LEVELS:
        return
    for each in parts(schema, root, tests=tests):
        kinds = _types(each)
        seen.kinds.update(kinds)
        if "RECORD" in kinds:
            for key, inner in _mapping(each.get("properties")).items():
                _declare(seen.fields.setdefault(str(key), Seen()), inner, root, level + 1, tests=tests)
        if "LIST" in kinds and isinstance(each.get("items"), Mapping):
            seen.item = seen.item or Seen()
            _declare(seen.item, each["items"], root, level + 1, tests=tests)


def tagged(schema: Any) -> list[str]:
    """Dotted paths of fields with the tag ``"pii": "HIGH"``."""
    return list(dict.fromkeys(_tagged(schema, schema, "", 1)))


def _tagged(schema: Any, root: Any, place: str, level: int) -> Iterable[str]:
    if not isinstance(schema, Mapping):
        return
    if level > MAX_LEVELS:
        yield from [place] if _has_tag(schema, root, set()) else []
        return
    for each in parts(schema, root, tests=True):
        if place and (_is_high(each) or _has_tag(_pathless(each), root, set())):
            yield place
        for key, inner in _mapping(each.get("properties")).items():
            yield from _tagged(inner, root, f"{place}.{key}".lstrip("."), level + 1)
        yield from _tagged(each.get("items"), root, place, level + 1)


def _pathless(schema: Mapping[str, Any]) -> list[Any]:
    """Subschemas without a field path (e.g. patternProperties); a tag there applies to the whole field."""
    return [
        _sequence(schema.get("items")),
        *(inner for key, inner in schema.items() if key not in _NOT_PATHLESS),
    ]


_NOT_PATHLESS: Final = frozenset(
    (
        "properties", "items", "$ref", "allOf", "anyOf", "oneOf", "if", "then", "else", "dependentSchemas",
        "dependencies", "$defs", "definitions", "default", "examples", "enum", "const",
    )
)  # fmt: skip


def tags_any_name(schema: Any) -> bool:
    """Whether the schema tags fields that it does not name: no decision can name them either."""
    return any(
        _has_tag([part.get(key) for key in _ANY_NAME], schema, set())
        for part in parts(schema, schema, tests=True)
    )


_ANY_NAME: Final = ("additionalProperties", "patternProperties", "unevaluatedProperties")


def _has_tag(value: Any, root: Any, followed: set[str]) -> bool:
    """Whether a schema has a tag at any depth. ``followed`` are references without one."""
    if isinstance(value, list):
        return any(_has_tag(each, root, followed) for each in value)
    if not isinstance(value, Mapping):
        return False
    reference = value.get("$ref")
    if isinstance(reference, str) and reference not in followed:
        followed.add(reference)
        if _has_tag(_at(root, reference), root, followed):
            return True
    return _is_high(value) or any(_has_tag(each, root, followed) for each in value.values())


def has_tag(text: str) -> bool:
    """Whether a JSON Schema or an Avro schema tags anything as personal. Protobuf has no tags."""
    try:
        left = [json.loads(text)]
    except ValueError:
        return False
    while left:
        value = left.pop()
        if isinstance(value, Mapping):
            if _is_high(value):
                return True
            left += value.values()
        elif isinstance(value, list):
            left += value
    return False


def _is_high(schema: Mapping[str, Any]) -> bool:
    return str(schema.get("pii", "")).upper() == "HIGH"


def undeclared(schema: Any, paths: Iterable[str]) -> list[str]:
    """The dotted paths that lead nowhere: an object declares properties, but not this one."""
    seen = Seen()
    _declare(seen, schema, schema, 1, tests=True)
    return [path for path in paths if not _leads(seen, path.split("."))]


def _leads(seen: Seen, names: list[str]) -> bool:
    while seen.item is not None and not seen.fields:
        seen = seen.item
    if not names or not seen.fields:
        return True
    return names[0] in seen.fields and _leads(seen.fields[names[0]], names[1:])


def parts(schema: Any, root: Any, *, tests: bool = False) -> Iterable[Mapping[str, Any]]:
    """A schema and its parts in the document ``root``: references, all of, alternatives, and conditional parts. With
    ``tests``, conditions too: they name fields without their types."""
    return _parts(schema, root, tests, 0) if isinstance(schema, Mapping) else ()


def _parts(schema: Mapping[str, Any], root: Any, tests: bool, hops: int) -> Iterable[Mapping[str, Any]]:
    yield schema
    if hops < MAX_LEVELS:
        for each in _made_of(schema, root, tests):
            if isinstance(each, Mapping):
                yield from _parts(each, root, tests, hops + 1)


def _made_of(schema: Mapping[str, Any], root: Any, tests: bool) -> Iterable[Any]:
    if isinstance(schema.get("$ref"), str):
        yield _at(root, schema["$ref"])
    for key in ("allOf", "anyOf", "oneOf"):
        yield from _sequence(schema.get(key))
    for key in ("if", "then", "else") if tests else ("then", "else"):
        yield schema.get(key)
    for key in ("dependentSchemas", "dependencies"):
        yield from _mapping(schema.get(key)).values()


def _types(schema: Mapping[str, Any]) -> set[str]:
    type_ = schema.get("type")
    names = [type_] if isinstance(type_, str) else _sequence(type_)
    if not names and isinstance(schema.get("properties"), Mapping):
        names = ["object"]
    return {_KINDS[name] for name in names if name in _KINDS}


def _at(root: Any, reference: str) -> Any:
    """The schema at ``#/definitions/Address``; None for other documents."""
    if not reference.startswith("#"):
        return None
    found = root
    for part in reference[1:].strip("/").split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        found = found.get(key) if isinstance(found, Mapping) and part else found
    return found


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _sequence(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
