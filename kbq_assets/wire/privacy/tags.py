"""Compares the fields of Avro schemas that are tagged as personal data with the decisions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final

from kbq_assets.core.avro import tree as avro
from kbq_assets.core.avro.visitor import SchemaVisitor, visit
from kbq_assets.core.errors import UnstageableSchema
from kbq_assets.core.topics.personal import Decision, avro_path, fields_of, in_avro, undecided

#: Most fields to check. A schema that reuses its records may have 2**100 fields, but a table at most 10,000 columns.
_MOST_FIELDS: Final = 100_000


def check_decided(schema: Any, decisions: Iterable[Decision]) -> None:
    """Raise UnstageableSchema for a field with the tag HIGH that has no decision, and for an invalid schema."""
    decided = in_avro(decisions)
    refuse_undecided(_Tagged(avro.parse(schema), {each.path for each in decided}).paths, decided)


def refuse_undecided(tagged: Iterable[str], decisions: Iterable[Decision]) -> None:
    """The same for the paths of tagged fields."""
    missing = undecided(tagged, decisions)
    if missing:
        raise UnstageableSchema(
            f"no decision about fields that are tagged as personal data: {', '.join(missing)}",
            next_step="set a decision for each in the option pii: drop, null, pseudonym, truncate, generalise or keep",
        )


def undeclared(schema: Any, decisions: Iterable[Decision]) -> list[str]:
    """The fields with a decision that the schema lacks. Raises UnstageableSchema for an invalid schema."""
    root = avro.parse(schema)
    return [path for path in fields_of(decisions) if not _leads(root, avro_path(path).split("."))]


def _leads(node: avro.AvroType, names: Sequence[str]) -> bool:
    if not names:
        return True
    if isinstance(node, avro.RecordType):
        return names[0] in node.fields and _leads(node.fields[names[0]].type, names[1:])
    if isinstance(node, avro.Array):
        return _leads(node.items, names)
    return isinstance(node, avro.Union) and any(_leads(branch, names) for branch in node.branches)


def is_personal(node: avro.AvroType) -> bool:
    """Whether the type of a field, or its items, values or branches, is tagged. Fields inside it do not count."""
    return any(map(_is_high, node.values_of("pii"))) or any(map(is_personal, _parts(node)))


def _parts(node: avro.AvroType) -> tuple[avro.AvroType, ...]:
    """The items, values or branches of a type, which do not have a path of their own."""
    match node:
        case avro.Array():
            return (node.items,)
        case avro.Map():
            return (node.values,)
        case avro.Union():
            return node.branches
    return ()


def _records(node: avro.AvroType) -> Iterator[avro.RecordType]:
    """The record types among a type and its items, values and branches."""
    if isinstance(node, avro.RecordType):
        yield node
    for part in _parts(node):
        yield from _records(part)


def _is_high(level: Any) -> bool:
    return str(level).upper() == "HIGH"


class _HasTags(SchemaVisitor[bool]):
    """Whether a type, or a type or field inside it, is tagged. ``records`` are the names of such records."""

    def __init__(self) -> None:
        self.records: set[str] = set()

    def other(self, node: avro.AvroType, inside: Sequence[bool]) -> bool:
        return any(inside) or any(map(_is_high, node.values_of("pii")))

    def again(self, node: avro.NamedType, result: bool) -> bool:
        return self.other(node, (result,))

    def record(self, node: avro.RecordType, fields: Sequence[bool]) -> bool:
        has_tags = self.other(node, fields)
        if has_tags:
            self.records.add(node.name)
        return has_tags

    def field(self, field: avro.Field, result: bool) -> bool:
        return result or _is_high(field.attributes.get("pii"))

    def inside_itself(self, node: avro.RecordType) -> bool:
        return True  # not known yet; an unneeded walk is better than a missed tag


class _Tagged:
    """Paths of fields that are tagged, or have a tagged type, except below a field with a decision."""

    def __init__(self, root: avro.AvroType, decided: Collection[str]) -> None:
        tags = _HasTags()
        visit(root, tags)
        self._with_tags = tags.records
        self._decided = decided
        self._walked = 0
        self.paths = list(dict.fromkeys(self._below(root, "", frozenset())))

    def _below(self, node: avro.AvroType, place: str, above: frozenset[str]) -> Iterator[str]:
        if place and is_personal(node):
            yield place
        for record in _records(node):
            if record.name in self._with_tags and record.name not in above:
                for field in record.fields.values():
                    yield from self._of_field(
                        field, f"{place}.{field.name}".lstrip("."), above | {record.name}
                    )

    def _of_field(self, field: avro.Field, path: str, above: frozenset[str]) -> Iterator[str]:
        if path in self._decided:
            return
        self._walked += 1
        if self._walked > _MOST_FIELDS:
            raise UnstageableSchema(
                f"more than {_MOST_FIELDS} fields may be tagged as personal data",
                next_step="change the schema",
            )
        if _is_high(field.attributes.get("pii")):
            yield path
        yield from self._below(field.type, path, above)
