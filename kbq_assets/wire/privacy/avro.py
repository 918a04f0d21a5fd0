"""Rewrites Avro records without their personal data: copies most bytes, and replaces fields with a decision.

There is one rewriter per writer schema: functions over bytes, one per type on the path to a field with a decision. It
expects valid records, so validate first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kbq_assets.core.avro import tree as avro
from kbq_assets.core.avro.canonical import recursive_record
from kbq_assets.core.avro.visitor import visit
from kbq_assets.core.errors import UnstageableSchema
from kbq_assets.core.topics.personal import HEADERS, KEY, Decision, Pseudonyms
from kbq_assets.wire.chunk import encode_bytes, encode_long
from kbq_assets.wire.privacy.forms import Forms
from kbq_assets.wire.privacy.rewriting import (
    Rewrite,
    blocks,
    branches,
    constant,
    copy,
    drop,
    replaced,
    sequence,
)
from kbq_assets.wire.privacy.values import Replace, generalise, impossible, text_of, truncate
from kbq_assets.wire.records.skip import skip_of


@dataclass(frozen=True)
class Rewriter:
    """Rewrites records of one writer schema. ``schema`` is the schema of the rewritten records, as JSON values."""

    schema: Any
    _rewrite: Rewrite

    def __call__(self, body: bytes) -> bytes:
        """A record without its personal data."""
        out: list[bytes] = []
        self._rewrite(body, 0, out)
        return b"".join(out)


def rewriter(schema: Any, decisions: Iterable[Decision], pseudonyms: Pseudonyms | None) -> Rewriter:
    """The rewriter of a writer schema. Decisions about missing fields have no effect. Raises UnstageableSchema if a
    decision's action does not fit its field's type."""
    root = avro.parse(schema)
    if not isinstance(root, avro.RecordType) or recursive_record(root):
        raise UnstageableSchema(
            "decisions about personal data need a record that is not recursive",
            next_step="change the schema",
        )
    targets: dict[str, Any] = {}
    for decision in decisions:
        if decision.path not in (KEY, HEADERS) and decision.action != "keep":
            _place(targets, decision)
    return Rewriter(*_Maker(pseudonyms).record(root, targets, ""))


def _place(targets: dict[str, Any], decision: Decision) -> None:
    *above, last = decision.path.split(".")
    for name in above:
        targets = targets.setdefault(name, {})
    targets[last] = decision


def empty_of(node: avro.AvroType) -> bytes:
    """The encoding of an empty value: null, or no items."""
    nulls = (
        [index for index, branch in enumerate(node.branches) if avro.is_null(branch)]
        if isinstance(node, avro.Union)
        else []
    )
    return encode_long(nulls[0]) if nulls else b"\x00"


class _Maker:
    """Builds the schema and the functions for one writer schema."""

    def __init__(self, pseudonyms: Pseudonyms | None) -> None:
        self._pseudonyms = pseudonyms
        self._forms = Forms()

    def record(self, node: avro.RecordType, targets: Mapping[str, Any], place: str) -> tuple[Any, Rewrite]:
        """A record with decisions about some of its fields."""
        name = self._forms.free_name(node.name)
        fields, steps = [], []
        for key, field in node.fields.items():
            form, step = self._child(field.type, targets.get(key), f"{place}.{key}".lstrip("."))
            steps.append(step)
            fields += [] if form is None else [self._forms.field(field, form)]
        if not fields:
            raise UnstageableSchema(
                f"pii drops every field of {place or node.name}",
                next_step="drop it as a whole, or set its fields to null",
            )
        return {"type": "record", "name": name, "fields": fields}, sequence(steps)

    def _child(self, node: avro.AvroType, target: Any, place: str) -> tuple[Any, Rewrite]:
        if target is None:
            return self._form(node), copy(skip_of(node))
        if isinstance(target, Decision):
            if target.action == "drop":
                return None, drop(skip_of(node))
            return self._decided(node, target, place)
        return self._through(node, target, place)

    def _through(self, node: avro.AvroType, targets: Mapping[str, Any], place: str) -> tuple[Any, Rewrite]:
        """A type on the path to a field with a decision."""
        if isinstance(node, avro.RecordType):
            return self.record(node, targets, place)
        if isinstance(node, avro.Array):
            form, rewrite = self._through(node.items, targets, place)
            return {"type": "array", "items": form}, blocks(rewrite)
        if isinstance(node, avro.Union):
            made = [
                (self._form(b), copy(skip_of(b))) if avro.is_null(b) else self._through(b, targets, place)
                for b in node.branches
            ]
            return [form for form, _ in made], branches([rewrite for _, rewrite in made])
        raise impossible(place, "has no fields")

    def _decided(self, node: avro.AvroType, decision: Decision, place: str) -> tuple[Any, Rewrite]:
        if decision.action == "null":
            return self._emptied(node)
        if isinstance(node, avro.Array):
            form, rewrite = self._decided(node.items, decision, place)
            return {"type": "array", "items": form}, blocks(rewrite)
        if isinstance(node, avro.Union):
            return self._decided_union(node, decision, place)
        form, replace = self._leaf(node, decision, place)
        return form, replaced(skip_of(node), replace)

    def _decided_union(self, node: avro.Union, decision: Decision, place: str) -> tuple[Any, Rewrite]:
        others = [branch for branch in node.branches if not avro.is_null(branch)]
        if len(others) != 1:
            raise impossible(place, "is a union of several types")
        form, rewrite = self._decided(others[0], decision, place)
        forms = ["null" if avro.is_null(branch) else form for branch in node.branches]
        steps = [copy(skip_of(branch)) if avro.is_null(branch) else rewrite for branch in node.branches]
        return forms, branches(steps)

    def _emptied(self, node: avro.AvroType) -> tuple[Any, Rewrite]:
        form, rewrite = self._form(node), constant(skip_of(node), empty_of(node))
        if isinstance(node, avro.Array | avro.Map):
            return form, rewrite
        if not isinstance(node, avro.Union):
            return ["null", form], rewrite
        return form if any(map(avro.is_null, node.branches)) else ["null", *form], rewrite

    def _leaf(self, node: avro.AvroType, decision: Decision, place: str) -> tuple[Any, Replace]:
        if decision.action == "pseudonym":
            return "string", self._pseudonym(node, decision, place)
        if decision.action == "truncate":
            return self._form(node), truncate(node, int(decision.argument), place)
        return self._form(node), generalise(node, decision.argument, place)

    def _pseudonym(self, node: avro.AvroType, decision: Decision, place: str) -> Replace:
        text = text_of(node, place)
        pseudonyms, context = self._pseudonyms, decision.context
        if pseudonyms is None:
            raise UnstageableSchema(
                f"field {place!r} becomes a pseudonym, but there is no key", next_step="set KBQ_PII_KEYS"
            )
        return lambda data: encode_bytes(pseudonyms.of(context, text(data)).encode())

    def _form(self, node: avro.AvroType) -> Any:
        """The schema of an unchanged type."""
        return visit(node, self._forms)
