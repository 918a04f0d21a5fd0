"""Summaries of a schema: canonical form, fingerprints, named types, and recursion."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kbq_assets.core.avro import tree as avro
from kbq_assets.core.avro.visitor import SchemaVisitor, visit

#: In hex digits: 64 bits are enough to distinguish the staged schemas of one table.
FINGERPRINT_LENGTH: Final = 16


def canonical(root: avro.AvroType) -> Any:
    """JSON values that are equal for schemas that load alike: Avro's parsing canonical form plus logical types, which
    determine the type of the loaded column.
    """
    return visit(root, _Canonical())


def without_namespaces(root: avro.AvroType) -> Any:
    """As `canonical`, but with simple names, and with each use of a type written out: equal for types that have the
    same columns and encoding, wherever they are defined. The type must not contain itself."""
    return visit(root, _WithoutNamespaces())


def schema_fingerprint(schema: str | Mapping[str, Any]) -> str:
    """A hash that is equal for schemas that load alike. Ignores docs, defaults and formatting, but not logical
    types."""
    form = json.dumps(canonical(avro.parse(avro.load_schema(schema))), separators=(",", ":"))
    return hashlib.sha256(form.encode()).hexdigest()[:FINGERPRINT_LENGTH]


def rabin_fingerprint(root: avro.AvroType) -> bytes:
    """The CRC-64-AVRO fingerprint of the parsing canonical form, as used in Avro's single-object encoding."""
    form = json.dumps(visit(root, _Parsing()), separators=(",", ":"), ensure_ascii=False)
    fingerprint = _RABIN_EMPTY
    for byte in form.encode():
        fingerprint = (fingerprint >> 8) ^ _RABIN_TABLE[(fingerprint ^ byte) & 0xFF]
    return fingerprint.to_bytes(8, "little")


def _rabin_table() -> tuple[int, ...]:
    table = list(range(256))
    for _ in range(8):
        table = [(value >> 1) ^ (_RABIN_EMPTY if value & 1 else 0) for value in table]
    return tuple(table)


_RABIN_EMPTY: Final = 0xC15D213AA4D7A795
_RABIN_TABLE: Final = _rabin_table()


def named_types(root: avro.AvroType) -> set[str]:
    return set(_counts(root))


def shared_records(root: avro.AvroType) -> frozenset[str]:
    """The names of types that are used more than once, including inside themselves."""
    return frozenset(name for name, uses in _counts(root).items() if uses > 1)


def recursive_record(root: avro.AvroType) -> str:
    """The name of the first record that contains itself, "" if none does."""
    return visit(root, _Recursive())


def _counts(root: avro.AvroType) -> Counter[str]:
    uses = _Uses()
    visit(root, uses)
    return uses.counts


class _Recursive(SchemaVisitor[str]):
    def other(self, node: avro.AvroType, inside: Sequence[str]) -> str:
        return next(filter(None, inside), "")

    def inside_itself(self, node: avro.RecordType) -> str:
        return node.name


class _Uses(SchemaVisitor[None]):
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def other(self, node: avro.AvroType, inside: Sequence[None]) -> None:
        if isinstance(node, avro.Fixed | avro.Enum | avro.RecordType):
            self.counts[node.name] += 1

    def again(self, node: avro.NamedType, result: None) -> None:
        self.counts[node.name] += 1

    def inside_itself(self, node: avro.RecordType) -> None:
        self.counts[node.name] += 1


class _Canonical(SchemaVisitor[Any]):
    def _logical(self, node: avro.AvroType) -> Mapping[str, Any]:
        return dict(node.logical)

    def primitive(self, node: avro.Primitive) -> Any:
        logical = self._logical(node)
        return {"type": node.kind, **logical} if logical else node.kind

    def fixed(self, node: avro.Fixed) -> Any:
        return {"name": node.name, "type": "fixed", "size": node.size, **self._logical(node)}

    def enum(self, node: avro.Enum) -> Any:
        return {"name": node.name, "type": "enum", "symbols": list(node.symbols), **self._logical(node)}

    def array(self, node: avro.Array, items: Any) -> Any:
        return {"type": "array", "items": items, **self._logical(node)}

    def map(self, node: avro.Map, values: Any) -> Any:
        return {"type": "map", "values": values, **self._logical(node)}

    def union(self, node: avro.Union, branches: Sequence[Any]) -> Any:
        return list(branches)

    def record(self, node: avro.RecordType, fields: Sequence[Any]) -> Any:
        return {"name": node.name, "type": "record", "fields": list(fields), **self._logical(node)}

    def field(self, field: avro.Field, result: Any) -> Any:
        return {"name": field.name, "type": result}

    def again(self, node: avro.NamedType, result: Any) -> Any:
        return node.name

    def inside_itself(self, node: avro.RecordType) -> Any:
        return node.name


class _WithoutNamespaces(_Canonical):
    def fixed(self, node: avro.Fixed) -> Any:
        return {**super().fixed(node), "name": _simple(node)}

    def enum(self, node: avro.Enum) -> Any:
        return {**super().enum(node), "name": _simple(node)}

    def record(self, node: avro.RecordType, fields: Sequence[Any]) -> Any:
        return {**super().record(node, fields), "name": _simple(node)}

    def again(self, node: avro.NamedType, result: Any) -> Any:
        return result


def _simple(node: avro.NamedType) -> str:
    return node.name.rpartition(".")[2]


class _Parsing(_Canonical):
    def _logical(self, node: avro.AvroType) -> Mapping[str, Any]:
        return {}
