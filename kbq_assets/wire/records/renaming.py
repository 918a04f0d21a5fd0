"""Renames fields of a staged schema. Names occur only in a file's header, so records do not change.

A field may need another name in one use of its type than in other uses. So each use gets a separate definition. Avro
requires distinct full names, but warehouses see only the last part, so the definitions differ in their namespaces.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from kbq_assets.core.avro import tree as avro
from kbq_assets.core.avro.canonical import schema_fingerprint
from kbq_assets.core.avro.visitor import ColumnVisitor, visit
from kbq_assets.wire.records.staged_schema import StagedSchema

#: Field names from the record down. Lists add nothing, maps add `value`, unions of several types the branch's field.
Path: TypeAlias = tuple[str, ...]


def renamed(schema: StagedSchema, names: Mapping[Path, str]) -> StagedSchema:
    """The schema for the same records with other field names."""
    if not names:
        return schema
    text = renamed_json(schema.json, names)
    columns = tuple(names.get((column,), column) for column in schema.columns)
    return replace(schema, json=text, fingerprint=schema_fingerprint(text), columns=columns)


def renamed_json(schema: str, names: Mapping[Path, str]) -> str:
    """The same for a schema's text."""
    return json.dumps(_written(schema, lambda path: names.get(path, path[-1])), separators=(",", ":"))


def field_paths(schema: str) -> frozenset[Path]:
    """The paths of all fields of records, which are those that can be renamed."""
    found: set[Path] = set()

    def note(path: Path) -> str:
        found.add(path)
        return path[-1]

    _written(schema, note)
    return frozenset(found)


def _written(schema: str, name: Callable[[Path], str]) -> Any:
    return visit(avro.parse(avro.load_schema(schema)), _Writer(name))


class _Writer(ColumnVisitor[Any]):
    """Writes a schema again, with a callback for the name of every field."""

    def __init__(self, name: Callable[[Path], str]) -> None:
        super().__init__()
        self._name = name
        self._namespaces: list[str] = []
        self._written: set[str] = set()

    def primitive(self, node: avro.Primitive) -> Any:
        has_more = node.attributes or node.logical
        return {**node.attributes, "type": node.kind, **dict(node.logical)} if has_more else node.kind

    def array(self, node: avro.Array, items: Any) -> Any:
        return {**node.attributes, "items": items}

    def map(self, node: avro.Map, values: Any) -> Any:
        return {**node.attributes, "values": values}

    def union(self, node: avro.Union, branches: Sequence[Any]) -> Any:
        return list(branches)

    def fixed(self, node: avro.Fixed) -> Any:
        return self._named(node, self._free_namespace(node)) | dict(node.logical)

    def enum(self, node: avro.Enum) -> Any:
        return self._named(node, self._free_namespace(node))

    def before_record(self, node: avro.RecordType) -> None:
        self._namespaces.append(self._free_namespace(node))

    def record(self, node: avro.RecordType, fields: Sequence[Any]) -> Any:
        return self._named(node, self._namespaces.pop()) | {"fields": list(fields)}

    def field(self, field: avro.Field, result: Any) -> Any:
        return {**field.attributes, "name": self._name((*self.path, field.name)), "type": result}

    def _named(self, node: avro.NamedType, namespace: str) -> dict[str, Any]:
        return {**node.attributes, "name": node.name.rpartition(".")[2], "namespace": namespace}

    def _free_namespace(self, node: avro.NamedType) -> str:
        wanted, _, name = node.name.rpartition(".")
        namespace, number = wanted, 1
        while (full := avro.full_name(name, namespace)) in self._written:
            number += 1
            namespace = f"{wanted}.use{number}" if wanted else f"use{number}"
        self._written.add(full)
        return namespace
