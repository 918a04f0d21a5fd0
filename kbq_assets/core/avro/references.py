"""Completes schemas that refer to other schemas in the registry, because a file's header needs all definitions. This
works on JSON before parsing, because only a complete schema can be parsed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kbq_assets.core.avro import tree as avro
from kbq_assets.core.avro.visitor import SchemaVisitor, visit


def inline_references(
    schema: str | Mapping[str, Any] | Sequence[Any], referenced: Sequence[str | Mapping[str, Any]]
) -> Any:
    """``schema`` with the definitions of ``referenced`` types inlined at their first use. ``referenced`` schemas may
    refer to each other, in any order. An undefined name stays, and parsing refuses it later. Raises UnstageableSchema
    if a schema is not JSON or is nested too deep.
    """
    definitions: dict[str, Any] = {}
    try:
        for each in referenced:
            for name, definition in _defined_in(avro.load_schema(each), ""):
                definitions.setdefault(name, definition)
        return _Inliner(definitions).type(avro.load_schema(schema), "")
    except RecursionError:
        raise avro.refusal("", "the schema is nested too deep") from None


def union_records(union: Sequence[Any]) -> list[Any]:
    """The branches of a union of records, each as a separate schema, None for null. Raises UnstageableSchema for other
    schemas."""
    root = avro.parse(union)
    assert isinstance(root, avro.Union)
    definitions = _Definitions()
    visit(root, definitions)
    return [_branch(each, definitions.found) for each in root.branches]


def _branch(branch: avro.AvroType, definitions: Mapping[str, Any]) -> Any:
    if avro.is_null(branch):
        return None
    if not isinstance(branch, avro.RecordType):
        raise avro.refusal("", f"a union of {avro.branch_name(branch)} and other types is not a record")
    return _Inliner(definitions).type(branch.name, "")


class _Definitions(SchemaVisitor[None]):
    def __init__(self) -> None:
        self.found: dict[str, Any] = {}

    def other(self, node: avro.AvroType, inside: Sequence[None]) -> None:
        if isinstance(node, avro.Fixed | avro.Enum | avro.RecordType):
            self.found[node.name] = node.attributes

    def inside_itself(self, node: avro.RecordType) -> None:
        """Do nothing: `other` collects it at its definition."""


class _Inliner:
    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions
        #: the definition with which each type was inlined
        self._defined: dict[str, Mapping[str, Any]] = {}

    def type(self, schema: Any, namespace: str) -> Any:
        if isinstance(schema, str):
            return self._named(schema, namespace)
        if isinstance(schema, Mapping):
            return self._complex(schema, namespace)
        if isinstance(schema, Sequence):
            return [self.type(branch, namespace) for branch in schema]
        return schema

    def _named(self, name: str, namespace: str) -> Any:
        full = avro.full_name(avro.legal_name(name), namespace)
        if full not in self._defined and full not in self._definitions:
            full = avro.legal_name(name)  # as in core/avro/tree.py
        if name in avro.PRIMITIVES or full in self._defined or full not in self._definitions:
            return name
        # The definition moves, so set its namespace: it must not inherit the one of its new place.
        space, _, simple = full.rpartition(".")
        origin = self._definitions[full]
        return self._complex({**origin, "name": simple, "namespace": space}, "", origin)

    def _complex(
        self, schema: Mapping[str, Any], namespace: str, origin: Mapping[str, Any] | None = None
    ) -> Any:
        if isinstance(schema.get("name"), str):
            full = _full_name_of(schema, namespace)
            if self._defined.get(full) is schema:
                return full  # a use before this one has the definition
            self._defined[full] = origin or schema
            namespace = full.rpartition(".")[0]
        made = dict(schema)
        for part in ("type", "items", "values"):
            if part in made:
                made[part] = self.type(made[part], namespace)
        if isinstance(made.get("fields"), list):
            made["fields"] = [self._field(each, namespace) for each in made["fields"]]
        return made

    def _field(self, each: Any, namespace: str) -> Any:
        if not isinstance(each, Mapping) or "type" not in each:
            return each
        return {**each, "type": self.type(each["type"], namespace)}


def _defined_in(schema: Any, namespace: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """All definitions in a schema, at any depth, with their full names."""
    if isinstance(schema, list):
        inside = schema
    elif isinstance(schema, Mapping):
        if isinstance(schema.get("name"), str):
            full = _full_name_of(schema, namespace)
            yield full, schema
            namespace = full.rpartition(".")[0]
        fields = schema.get("fields")
        inside = [schema.get(part) for part in ("type", "items", "values")]
        if isinstance(fields, list):
            inside += [each.get("type") for each in fields if isinstance(each, Mapping)]
    else:
        return
    for each in inside:
        yield from _defined_in(each, namespace)


def _full_name_of(schema: Mapping[str, Any], namespace: str) -> str:
    space = str(schema.get("namespace", namespace) or "")
    return avro.legal_name(avro.full_name(str(schema.get("name")), space))
