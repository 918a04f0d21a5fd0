"""Columns declared by a JSON Schema (drafts 4 to 2020-12), known before any value is read. Where the schema sets no
single type (none, alternatives of several types, patterns), values decide, as without a schema.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kbq_assets.core.topics.json.inference import MAX_LEVELS, MOST_COLUMNS, Seen
from kbq_assets.core.topics.json.references import REFERENCES, References

_KINDS: Final[Mapping[str, str]] = {
    "boolean": "BOOL",
    "integer": "INT64",
    "number": "FLOAT64",
    "string": "STRING",
    "object": "RECORD",
    "array": "LIST",
    "null": "NULL",
}

#: Most parts that a walk visits, several per column. Deeper fields become JSON columns.
_MOST_PARTS: Final = 4 * MOST_COLUMNS


def declared(schema: Any) -> Seen:
    """The values that a schema declares, as if they had been seen. A recursive field is one JSON column, and so is a
    field that is reached only after the most parts."""
    return _declared(schema, tests=False)


def _declared(schema: Any, *, tests: bool) -> Seen:
    root = Seen()
    for place, part, ends in _walk(schema, root, tests=tests):
        place.seen.kinds.update({"JSON"} if ends else _types(part))
    return root


def tagged(schema: Any) -> list[str]:
    """Dotted paths of fields with the tag ``"pii": "HIGH"``."""
    tags = _Tags(schema)
    return list(
        dict.fromkeys(
            place.path
            for place, part, ends in _walk(schema, Seen(), tests=True)
            if place.path and (_is_high(part) or tags.any_in([part] if ends else _pathless(part)))
        )
    )


@dataclass(frozen=True, slots=True)
class _FieldSchema:
    """A schema of a field. ``above`` are the parts on the way to it, by identity, with the fields that they
    describe."""

    seen: Seen
    schema: Any
    path: str = ""
    above: Mapping[int, Seen] = field(default_factory=dict)

    def inside(self, part: Mapping[str, Any]) -> Iterable[_FieldSchema]:
        above = {**self.above, id(part): self.seen}
        for key, inner in _mapping(part.get("properties")).items():
            seen = self.seen.fields.setdefault(str(key), Seen())
            yield _FieldSchema(seen, inner, f"{self.path}.{key}".lstrip("."), above)
        if isinstance(part.get("items"), Mapping):
            self.seen.item = self.seen.item or Seen()
            yield _FieldSchema(self.seen.item, part["items"], self.path, above)


def _walk(schema: Any, seen: Seen, *, tests: bool) -> Iterator[tuple[_FieldSchema, Mapping[str, Any], bool]]:
    """Each part of each field, level by level, and whether the walk ends there. Adds the fields to ``seen``."""
    todo, fields, steps, references = deque([_FieldSchema(seen, schema)]), 0, 0, References(schema)
    while todo:
        place = todo.popleft()
        for part in parts([place.schema], references, tests=tests):
            steps, more = steps + 1, len(_mapping(part.get("properties"))) + ("items" in part)
            again = place.above.get(id(part))
            is_too_much = bool(place.above) and (fields + more > MOST_COLUMNS or steps > _MOST_PARTS)
            ends = again is not None or is_too_much or len(place.above) == MAX_LEVELS
            yield place, part, ends
            if not ends:
                fields += more
                todo += place.inside(part)
            elif again is not None:
                place.seen.again += [again] if again not in place.seen.again else []
            elif is_too_much:
                break  # a tag in later parts counts as inside this one


def _pathless(schema: Mapping[str, Any]) -> list[Any]:
    """Subschemas without a field path, such as patternProperties. A tag in them applies to the whole field."""
    return [
        _sequence(schema.get("items")),
        *(inner for key, inner in schema.items() if key not in _NOT_PATHLESS),
    ]


_NOT_PATHLESS: Final = frozenset(
    (
        "properties", "items", *REFERENCES, "allOf", "anyOf", "oneOf", "if", "then", "else", "dependentSchemas",
        "dependencies", "$defs", "definitions", "default", "examples", "enum", "const",
    )
)  # fmt: skip


def tags_any_name(schema: Any) -> bool:
    """Whether the schema tags fields that it does not name, so that no decision can name them."""
    tags = _Tags(schema)
    known = parts([schema], References(schema), tests=True)
    return any(tags.any_in(part.get(key) for key in _ANY_NAME) for part in known)


_ANY_NAME: Final = ("additionalProperties", "patternProperties", "unevaluatedProperties")


class _Tags:
    """The objects and lists of a document that have a tag at any depth, including through references."""

    def __init__(self, root: Any) -> None:
        around, found, left = defaultdict[int, list[int]](list), list[int](), [root]
        known, references = set[int](), References(root)
        while left:
            node = left.pop()
            if not isinstance(node, Mapping | list) or id(node) in known:
                continue
            known.add(id(node))
            inside = [*(node.values() if isinstance(node, Mapping) else node), *_referred(node, references)]
            if isinstance(node, Mapping) and _is_high(node):
                found.append(id(node))
            for each in inside:
                around[id(each)].append(id(node))
            left += inside
        self._tagged = set[int]()
        while found:
            each = found.pop()
            if each not in self._tagged:
                self._tagged.add(each)
                found += around[each]

    def any_in(self, values: Iterable[Any]) -> bool:
        """Whether one of the document's values has a tag inside."""
        return any(isinstance(each, Mapping | list) and id(each) in self._tagged for each in values)


def has_tag(text: str) -> bool:
    """Whether a JSON Schema or an Avro schema tags anything as personal. Protobuf has no tags."""
    try:
        left = [json.loads(text)]
    except (ValueError, RecursionError):
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
    """The dotted paths that the schema rules out, because an object declares properties but not this one."""
    seen = _declared(schema, tests=True)
    return [path for path in paths if not _leads(seen, path)]


def _leads(seen: Seen, path: str) -> bool:
    """Whether a path leads to a field. A property's name may contain dots itself."""
    places = [each for each in seen.alike() if each.fields]
    fields = [(name, inner) for each in places for name, inner in each.fields.items()]
    return (
        not path
        or not places
        or any(
            _leads(inner, path[len(name) + 1 :])
            for name, inner in fields
            if f"{path}.".startswith(f"{name}.")
        )
    )


def parts(
    schemas: Iterable[Any], references: References, *, tests: bool = False
) -> Iterator[Mapping[str, Any]]:
    """Schemas and their parts in the document of ``references``, each once: references, allOf, alternatives, and
    conditional parts. With ``tests``, also the conditions, which name fields without types."""
    left, known = [*schemas][::-1], set[int]()
    while left:
        part = left.pop()
        if isinstance(part, Mapping) and id(part) not in known:
            known.add(id(part))
            yield part
            left += [*_made_of(part, references, tests)][::-1]


def _made_of(schema: Mapping[str, Any], references: References, tests: bool) -> Iterable[Any]:
    yield from _referred(schema, references)
    yield from _sequence(schema.get("type"))  # draft 3: alternatives among the names of types
    for key in ("allOf", "anyOf", "oneOf"):
        yield from _sequence(schema.get(key))
    for key in ("if", "then", "else") if tests else ("then", "else"):
        yield schema.get(key)
    for key in ("dependentSchemas", "dependencies"):
        yield from _mapping(schema.get(key)).values()


def _referred(schema: Any, references: References) -> Iterable[Any]:
    found = [schema.get(key) for key in REFERENCES] if isinstance(schema, Mapping) else []
    return [references.target(each) for each in found if isinstance(each, str)]


def _types(schema: Mapping[str, Any]) -> set[str]:
    type_ = schema.get("type")
    names = [type_] if isinstance(type_, str) else _sequence(type_)
    if not names and isinstance(schema.get("properties"), Mapping):
        names = ["object"]
    return {_KINDS[name] for name in names if isinstance(name, str) and name in _KINDS}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _sequence(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
