"""Estimates the cost of a validation against a JSON Schema before it starts, because validators have no limits.

Nested alternatives can make a few bytes of schema cost years: `{"allOf": [A, A]}` doubles the steps, and a chain of
these, or a recursive one, doubles them at each link.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final
from urllib.parse import unquote, urldefrag, urljoin

from kbq_assets.core.errors import UnstageableSchema
from kbq_assets.core.topics.json.references import REFERENCES, pointed

#: Most objects in a schema and all that it refers to. A validator compiles this many in a second.
_MOST_NODES: Final = 10_000
#: Limits of this analysis itself: links between parts, and total work.
_MOST_LINKS: Final = 200_000
_MOST_WORK: Final = 2_000_000
#: Documents that are nested deeper are bad records.
_DEEPEST: Final = 500
#: A number of steps per value that counts as infinite.
_ENDLESS: Final = 10**9

_LISTS: Final = ("allOf", "anyOf", "oneOf")
_SINGLE: Final = ("not", "if", "then", "else")
_MAPS: Final = ("dependentSchemas", "dependencies")
#: Keywords whose schemas apply to single inner values, and to any inner value.
_NAMED: Final = {"object": ("properties",), "array": ("items", "prefixItems")}
_ANY: Final = {
    "object": ("additionalProperties", "unevaluatedProperties", "propertyNames"),
    "array": ("items", "additionalItems", "unevaluatedItems", "contains"),
}
_PATTERNS: Final = "patternProperties"
_DEFINITIONS: Final = ("$defs", "definitions")
_SCHEMAS: Final = frozenset(
    (*_LISTS, *_SINGLE, *_MAPS, *chain(*_NAMED.values(), *_ANY.values()), _PATTERNS, *_DEFINITIONS)
)


class Effort:
    """An upper bound on the steps to validate documents. Raises UnstageableSchema for a schema that is too large, or
    that refers to anything but itself and ``references``."""

    def __init__(self, schema: Any, references: Mapping[str, Any]) -> None:
        self._parts = _SubschemaSteps(_Places(schema, references))
        #: The most steps per value by depth of the document, up to the depth from which on it is constant.
        self._by_depth = list(self._steps(schema)) if isinstance(schema, Mapping) else [1, 1]

    def steps(self, size: int, depth: int) -> int:
        """The most steps for a document of ``size`` values, nested ``depth`` levels deep."""
        return size * self._by_depth[min(depth, len(self._by_depth) - 1)]

    def _steps(self, root: Any) -> Iterator[int]:
        own = {node: self._parts.own(node) for node in self._parts.reached(root)}
        cost = dict.fromkeys(own, 0)
        links = sum(map(len, chain.from_iterable(self._parts.inside(node) for node in cost)))
        for depth in range(2 + min(_DEEPEST, _MOST_WORK // (links + len(cost) + 1))):
            grown = dict(own)
            for node in cost if depth else ():
                groups = self._parts.inside(node)
                inner = (sum(times * cost[each] for each, times in group.items()) for group in groups)
                grown[node] = min(_ENDLESS, max(grown[node], *inner))
            yield grown[id(root)]
            if grown == cost:
                return
            cost = grown
        yield _ENDLESS


@dataclass
class _Places:
    """Each object of the documents by identity, with the document in which its references are resolved."""

    schema: Any
    references: Mapping[str, Any]
    nodes: dict[int, Any] = field(default_factory=dict)
    _documents: dict[str, Any] = field(default_factory=dict)
    _around: dict[int, tuple[str, Any]] = field(default_factory=dict)
    _anchors: dict[tuple[str, str], Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        named = {f"./{name}": each for name, each in self.references.items()}
        for name, document in {"": self.schema, **named}.items():
            self._documents.setdefault(name, document)
            left: list[tuple[Any, str, Any]] = [(document, name, document)]
            while left:
                node, base, root = left.pop()
                if isinstance(node, Mapping):
                    base, root = self._note(node, base, root)
                inside = (
                    node.values() if isinstance(node, Mapping) else node if isinstance(node, list) else ()
                )
                left += [(each, base, root) for each in inside if isinstance(each, Mapping | list)]
                if len(self.nodes) > _MOST_NODES:
                    raise UnstageableSchema(f"it has more than {_MOST_NODES} parts")

    def _note(self, node: Mapping[str, Any], base: str, root: Any) -> tuple[str, Any]:
        self.nodes[id(node)] = node
        own = node.get("$id", node.get("id"))
        if isinstance(own, str) and own and not own.startswith("#"):
            base, root = _split(own, base)[0], node
            self._documents.setdefault(base, node)
        self._around[id(node)] = base, root
        anchors = (node.get("$anchor"), node.get("$dynamicAnchor"), own if str(own)[:1] == "#" else None)
        for anchor in anchors:
            if isinstance(anchor, str):
                self._anchors.setdefault((base, anchor.lstrip("#")), node)
        return base, root

    def target(self, node: Mapping[str, Any], reference: str) -> Any:
        """The target of a node's reference. Raises UnstageableSchema."""
        base, root = self._around[id(node)]
        address, fragment = _split(reference)
        if address:
            base, root = self._document(base, address)
        fragment = unquote(fragment)
        found = root if not fragment else self._anchors.get((base, fragment))
        if found is None and fragment.startswith("/"):
            found = pointed(root, fragment)
        if not isinstance(found, Mapping | bool):
            raise UnstageableSchema(f"it refers to {reference[:200]}, which does not exist")
        return found

    def _document(self, base: str, address: str) -> tuple[str, Any]:
        for name in (_split(address, base)[0], address, f"./{address}", f"./{address.rpartition('/')[2]}"):
            if name in self._documents:
                return name, self._documents[name]
        raise UnstageableSchema(
            f"it refers to {address[:200]}, which is not among its references; KBQ does not fetch schemas"
        )


def _split(reference: str, base: str = "") -> tuple[str, str]:
    """The address, resolved against ``base``, and the fragment. Raises UnstageableSchema."""
    try:
        address, fragment = urldefrag(urljoin(base, reference))
    except ValueError as error:
        raise UnstageableSchema(f"it has an invalid address, {reference[:200]!r}: {error}") from error
    return address, fragment


class _SubschemaSteps:
    """Counts how often each part of a schema is applied to the schema's own value, and to the values inside."""

    def __init__(self, places: _Places) -> None:
        self._places = places
        self._closures: dict[int, Counter[int]] = {}
        self._groups: dict[int, list[Counter[int]]] = {}
        self._links = 0

    def own(self, node: int) -> int:
        """The steps of a schema for one value, without those for values inside."""
        parts = self._closure(node)
        return min(_ENDLESS, sum(times * _size(self._places.nodes[each]) for each, times in parts.items()))

    def inside(self, node: int) -> list[Counter[int]]:
        """The schemas of values inside and how often each is applied, for each named field and for the others. Objects
        and arrays are separate, because an object has no items and an array no fields."""
        if node not in self._groups:
            self._groups[node] = [*self._inside(node, "object"), *self._inside(node, "array")]
            self._count(sum(map(len, self._groups[node])))
        return self._groups[node]

    def _inside(self, node: int, kind: str) -> list[Counter[int]]:
        named: dict[str, Counter[int]] = {}
        others: Counter[int] = Counter()
        for each, times in self._closure(node).items():
            schema = self._places.nodes[each]
            for name, inner in _named(schema, kind):
                named.setdefault(name, Counter())[id(inner)] += times
            for inner in _of_any(schema, kind):
                others[id(inner)] += times
        return [group + others for group in named.values()] or [others]

    def reached(self, root: Any) -> list[int]:
        """The schema and all schemas of values inside."""
        found, left = {id(root): None}, [id(root)]
        while left:
            for group in self.inside(left.pop()):
                new = [each for each in group if each not in found]
                found.update(dict.fromkeys(new))
                left += new
        return list(found)

    def _closure(self, node: int) -> Counter[int]:
        """A schema and all of its parts, with the number of times that each is applied. Raises UnstageableSchema."""
        todo, begun = [node], set[int]()
        while todo:
            each = todo[-1]
            if each in self._closures:
                todo.pop()
                continue
            inner = [id(part) for part in self._made_of(each)]
            missing = [part for part in inner if part not in self._closures]
            if not missing:
                todo.pop()
                self._closures[each] = self._sum(each, inner)
            elif each in begun:
                raise UnstageableSchema("a part of it consists of itself, so it accepts and rejects nothing")
            else:
                begun.add(each)
                todo += missing
        return self._closures[node]

    def _sum(self, node: int, inner: list[int]) -> Counter[int]:
        made: Counter[int] = Counter({node: 1})
        # Validators evaluate all other parts twice to find what is unevaluated.
        times = 2 if any(key.startswith("unevaluated") for key in self._places.nodes[node]) else 1
        for each in inner:
            for part, count in self._closures[each].items():
                made[part] = min(_ENDLESS, made[part] + times * count)
        self._count(len(made))
        return made

    def _made_of(self, node: int) -> Iterator[Mapping[str, Any]]:
        found: list[Any] = []
        schema = self._places.nodes[node]
        for key, value in schema.items():
            if key in _LISTS and isinstance(value, list):
                found += value
            elif key in _SINGLE:
                found.append(value)
            elif key in _MAPS and isinstance(value, Mapping):
                found += value.values()
            elif key in REFERENCES and isinstance(value, str):
                found.append(self._places.target(schema, value))
        return (each for each in found if isinstance(each, Mapping))

    def _count(self, links: int) -> None:
        self._links += links
        if self._links > _MOST_LINKS:
            raise UnstageableSchema("its parts contain one another too often")


def _named(schema: Mapping[str, Any], kind: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for key in _NAMED[kind]:
        inner = schema.get(key)
        if kind == "array":
            inner = (
                {str(number): each for number, each in enumerate(inner)} if isinstance(inner, list) else {}
            )
        found = inner.items() if isinstance(inner, Mapping) else ()
        yield from ((name, each) for name, each in found if isinstance(each, Mapping))


def _of_any(schema: Mapping[str, Any], kind: str) -> Iterator[Mapping[str, Any]]:
    patterns = schema.get(_PATTERNS) if kind == "object" else None
    found = [schema.get(key) for key in _ANY[kind]]
    found += patterns.values() if isinstance(patterns, Mapping) else ()
    return (each for each in found if isinstance(each, Mapping))


def _size(schema: Mapping[str, Any]) -> int:
    """The number of values in a schema's keywords: allowed values, required names, patterns."""
    count, left = 1, [each for key, each in schema.items() if key not in _SCHEMAS]
    left += (
        [list(schema["patternProperties"])] if isinstance(schema.get("patternProperties"), Mapping) else []
    )
    while left:
        each = left.pop()
        count += 1
        left += each.values() if isinstance(each, Mapping) else each if isinstance(each, list) else ()
    return count
