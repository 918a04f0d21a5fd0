"""Complete schemas from those that refer to others in the registry: a file's header needs every definition.

This works on JSON, before parsing: only a complete schema has a tree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kbq_assets.core.avro import tree as avro
from kbq_assets.core.avro.visitor import SchemaVisitor, visit


def inline_references(
    schema: str | Mapping[str, Any] | Sequence[Any], referenced: Sequence[str | Mapping[str, Any]]
) -> Any:
    """``schema`` with the definitions of ``referenced`` types written out at their first use.

    ``referenced`` may refer to one another, in any order. A name that nobody defines stays; parsing then
    refuses it. Raises UnstageableSchema if a schema is not JSON.
    """
    definitions: dict[str, Any] = {}
    for each in referenced:
        loaded = avro.load_schema(each)
        if isinstance(loaded, Mapping):
            definitions[_full_name_of(loaded, "")] = loaded
    return _Inliner(definitions).type(avro.load_schema(schema), "")


def union_records(union: Sequence[Any]) -> list[Any]:
    """The branches of a schema that is a union of records, each as a schema of its own; None for null. Raises
    UnstageableSchema for any other schema."""
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
        """It is found where it is defined."""


class _Inliner:
    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions
        self._defined: set[str] = set()

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
        # The definition moves: it must not inherit the namespace of its new place.
        space, _, simple = full.rpartition(".")
        return self._complex({**self._definitions[full], "name": simple, "namespace": space}, "")

    def _complex(self, schema: Mapping[str, Any], namespace: str) -> Any:
        if isinstance(schema.get("name"), str):
            full = _full_name_of(schema, namespace)
            self._defined.add(full)
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


def _full_name_of(schema: Mapping[str, Any], namespace: str) -> str:
    space = str(schema.get("namespace", namespace) or "")
    return avro.legal_name(avro.full_name(str(schema.get("name")), space))
