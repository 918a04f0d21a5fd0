"""Documents whose values have their file and line, and mistakes in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

Scalar: TypeAlias = str | int | float | bool | None


@dataclass(frozen=True)
class DocumentNode:
    """A value of a document. In a map, ``line`` is the line of its key; lines count from 1."""

    value: Scalar | Mapping[str, DocumentNode] | tuple[DocumentNode, ...]
    path: str
    line: int

    @property
    def fields(self) -> Mapping[str, DocumentNode]:
        """The values of a map; empty for anything else."""
        return self.value if isinstance(self.value, Mapping) else {}

    def plain(self) -> Any:
        """The plain value, without files and lines."""
        if isinstance(self.value, Mapping):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, tuple):
            return [node.plain() for node in self.value]
        return self.value

    def find(self, dotted: str) -> DocumentNode | None:
        """The value at ``a.b``, None if there is none."""
        node: DocumentNode | None = self
        for key in dotted.split("."):
            node = node.fields.get(key) if node is not None else None
        return node

    def fields_at(self, dotted: str) -> Mapping[str, DocumentNode]:
        """The values of the map at ``a.b``; empty if there is no map."""
        node = self.find(dotted)
        return node.fields if node is not None else {}

    def problem(self, where: str, message: str, hint: str = "") -> CatalogProblem:
        """A mistake at this value's file and line."""
        return CatalogProblem(self.path, self.line, where, message, hint)


@dataclass(frozen=True, order=True)
class CatalogProblem:
    """A mistake, its place, and a hint for the fix. ``where`` is a dotted path in the document."""

    path: str
    line: int
    where: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        where = f"{self.where}: " if self.where else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{self.path}:{self.line}: {where}{self.message}{hint}"


class Mistake(Exception):
    """Raised for a document that cannot be used."""

    def __init__(self, problem: CatalogProblem) -> None:
        super().__init__(str(problem))
        self.problem = problem


@dataclass(frozen=True)
class CatalogFiles:
    """The files of a catalog's folder: documents and schema texts by path below it, and the problems of unreadable
    files."""

    documents: Mapping[str, DocumentNode]
    schemas: Mapping[str, str]
    problems: tuple[CatalogProblem, ...] = ()


def inherit(base: DocumentNode | None, own: DocumentNode) -> DocumentNode:
    """``own`` merged over ``base``: maps are merged key by key, other values are replaced, and null removes an
    inherited value."""
    if base is None or not isinstance(base.value, Mapping) or not isinstance(own.value, Mapping):
        return own
    joined = {**base.value, **{key: inherit(base.value.get(key), node) for key, node in own.value.items()}}
    kept = {key: node for key, node in joined.items() if node.value is not None}
    return DocumentNode(kept, own.path, own.line)


def given(node: DocumentNode) -> DocumentNode:
    """A document without null values. Without inheritance they have no effect."""
    if not isinstance(node.value, Mapping):
        return node
    kept = {key: given(child) for key, child in node.value.items() if child.value is not None}
    return DocumentNode(kept, node.path, node.line)


def without(node: DocumentNode, dotted: str) -> DocumentNode:
    """A document without the value at ``a.b``; for "", nothing is left."""
    key, _, rest = dotted.partition(".")
    if not key:
        return DocumentNode(None, node.path, node.line)
    kept = {name: child for name, child in node.fields.items() if name != key}
    if rest and key in node.fields:
        kept[key] = without(node.fields[key], rest)
    return DocumentNode(kept, node.path, node.line)


def walk(node: DocumentNode, where: str = "") -> Iterator[tuple[str, DocumentNode]]:
    """Yield every value with its dotted path."""
    yield where, node
    for key, child in node.fields.items():
        yield from walk(child, f"{where}.{key}" if where else key)
