"""Rules for the fields of schemas: mandatory fields, names, and fields that must be times."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kbq_assets.core.catalog.nodes import CatalogProblem, DocumentNode
from kbq_assets.core.spelling import meant

#: Kinds that a rule may require of a mandatory field.
KINDS: Final = ("any", "text", "number", "time")


@dataclass(frozen=True)
class SchemaField:
    """A field of an Avro, JSON or Protobuf schema. ``path`` is a dotted path through records; ``kinds`` are the `KINDS`
    that its values may have."""

    path: str
    kinds: frozenset[str]

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]


@dataclass(frozen=True)
class SchemaRules:
    """The rules of one entry. An empty rule requires nothing."""

    mandatory: Mapping[str, str] = field(default_factory=dict)
    names: str = ""
    #: regular expression of names of fields that must be times
    times: str = ""

    def of_keys(self) -> SchemaRules:
        """The rules for Kafka keys: the same without mandatory fields."""
        return SchemaRules({}, self.names, self.times)

    def broken(
        self, fields: Sequence[SchemaField], time: str, root: str = ""
    ) -> Iterator[tuple[str, str, str]]:
        """The path, message and hint of each broken rule. ``time`` describes a time in this kind of schema; paths of
        mandatory fields are relative to ``root``."""
        there = {each.path: each for each in fields}
        for path, kind in ((root + name, kind) for name, kind in self.mandatory.items()):
            found = there.get(path)
            if found is None:
                hint = meant(path, there) or "schema_rules.mandatory requires it"
                yield path, "is mandatory and missing", hint
            elif kind not in {"any", *found.kinds}:
                yield path, f"must be of kind {kind}, but has another type", time if kind == "time" else ""
        for each in fields:
            if self.names and not re.fullmatch(self.names, each.name):
                yield each.path, f"{each.name!r} breaks the rule for names of fields", self.names
            if self.times and re.fullmatch(self.times, each.name) and "time" not in each.kinds:
                yield each.path, "is named like a time, but does not have a time's type", time


def parse_rules(document: Mapping[str, Any], times: str) -> SchemaRules:
    """The rules of a merged entry. ``times`` comes from `catalog.yaml`."""
    section = document.get("schema_rules") or {}
    mandatory = {str(path): str(kind) for path, kind in (section.get("mandatory") or {}).items()}
    return SchemaRules(mandatory, str(section.get("names") or ""), times)


def check_rules(document: DocumentNode) -> Iterator[CatalogProblem]:
    for path, node in document.fields_at("schema_rules.mandatory").items():
        if node.value not in KINDS:
            where, hint = f"schema_rules.mandatory.{path}", f"one of {', '.join(KINDS)}"
            yield node.problem(where, f"{node.value!r} is not a kind of field", hint)
    names = document.find("schema_rules.names")
    if names is not None:
        try:
            re.compile(str(names.value))
        except re.error as error:
            message = f"{names.value!r} is not a regular expression: {error}"
            yield names.problem("schema_rules.names", message)
