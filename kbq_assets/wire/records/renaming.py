"""A staged schema with other names of fields: names stand in a file's header alone, so no record changes.

A type that is used in several places may need a name in one of them only. So each use gets a definition of its own;
Avro wants these to differ in their full names, warehouses see the last part only: they differ in their namespaces.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from kbq_assets.core.avro.tree import PRIMITIVES, full_name
from kbq_assets.core.loading.tables import branch_name
from kbq_assets.wire.records.schema import StagedSchema, schema_fingerprint

#: Names of fields from a record down. Lists add nothing, maps `value`, unions of several types the branch's field.
Path: TypeAlias = tuple[str, ...]

_NAMED = frozenset({"record", "error", "enum", "fixed"})
_KINDS = _NAMED | PRIMITIVES | {"array", "map"}


def renamed(schema: StagedSchema, names: Mapping[Path, str]) -> StagedSchema:
    """The schema under which the same records have other names."""
    if not names:
        return schema
    text = renamed_json(schema.json, names)
    columns = tuple(names.get((column,), column) for column in schema.columns)
    return replace(schema, json=text, fingerprint=schema_fingerprint(text), columns=columns)


def renamed_json(schema: str, names: Mapping[Path, str]) -> str:
    """The same of a schema's text."""
    return json.dumps(_Walk(lambda path: names.get(path, path[-1])).of(schema), separators=(",", ":"))


def field_paths(schema: str) -> frozenset[Path]:
    """All fields of records: what may have another name."""
    found: set[Path] = set()

    def note(path: Path) -> str:
        found.add(path)
        return path[-1]

    _Walk(note).of(schema)
    return frozenset(found)


def _is_kind(text: Any) -> bool:
    return isinstance(text, str) and text in _KINDS


class _Walk:
    """Writes a schema anew, asking for the name of every field."""

    def __init__(self, name: Callable[[Path], str]) -> None:
        self._name = name
        self._known: dict[str, tuple[Mapping[str, Any], str]] = {}
        self._written: set[str] = set()

    def of(self, schema: str) -> Any:
        """The schema as JSON values."""
        return self._type(json.loads(schema), "", ())

    def _type(self, schema: Any, namespace: str, path: Path) -> Any:
        schema, namespace = self._definition(schema, namespace)
        if isinstance(schema, str):
            return schema
        if isinstance(schema, list):
            return self._union(schema, namespace, path)
        kind = schema["type"]
        if kind == "array":
            return {**schema, "items": self._type(schema["items"], namespace, path)}
        if kind == "map":
            return {**schema, "values": self._type(schema["values"], namespace, (*path, "value"))}
        return self._defined(schema, namespace, path) if kind in _NAMED else schema

    def _definition(self, schema: Any, namespace: str) -> tuple[Any, str]:
        """Follow names, and types in two coats, to what they stand for."""
        while True:
            if isinstance(schema, str) and schema not in PRIMITIVES:
                schema, namespace = self._known[full_name(schema, namespace)]
            elif isinstance(schema, Mapping) and not _is_kind(schema["type"]):
                schema = schema["type"]
            else:
                return schema, namespace

    def _union(self, branches: list[Any], namespace: str, path: Path) -> list[Any]:
        several = sum(branch not in ("null", {"type": "null"}) for branch in branches) > 1
        return [
            self._type(branch, namespace, (*path, f"{branch_name(branch)}_value") if several else path)
            for branch in branches
        ]

    def _defined(self, schema: Mapping[str, Any], namespace: str, path: Path) -> Any:
        full = full_name(schema["name"], schema.get("namespace", namespace) or "")
        self._known.setdefault(full, (schema, namespace))
        inside, _, short = full.rpartition(".")
        written = {**schema, "name": short, "namespace": self._free_namespace(inside, short)}
        if "fields" in schema:
            written["fields"] = [self._field(each, inside, path) for each in schema["fields"]]
        return written

    def _field(self, field: Mapping[str, Any], namespace: str, path: Path) -> Any:
        path = (*path, field["name"])
        return {**field, "name": self._name(path), "type": self._type(field["type"], namespace, path)}

    def _free_namespace(self, wanted: str, name: str) -> str:
        namespace, number = wanted, 1
        while (full := full_name(name, namespace)) in self._written:
            number += 1
            namespace = f"{wanted}.use{number}" if wanted else f"use{number}"
        self._written.add(full)
        return namespace
