"""Rules for the fields of schemas: which must exist, how they are named, and which must be times."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kbq_assets.core.catalog.nodes import CatalogProblem, DocumentNode
from kbq_assets.core.spelling import meant

#: What a mandatory field may have to be.
KINDS: Final = ("any", "text", "number", "time")


@dataclass(frozen=True)
class SchemaField:
    """A field of an Avro, JSON or Protobuf schema. ``path`` leads through records; ``kinds`` are what its values
    may be, of `KINDS`."""

    path: str
    kinds: frozenset[str]

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]


@dataclass(frozen=True)
class SchemaRules:
    """The rules of one entry. Empty ones require nothing."""

    mandatory: Mapping[str, str] = field(default_factory=dict)
    names: str = ""
    #: regular expression of names whose fields must be times
    times: str = ""

    def of_keys(self) -> SchemaRules:
        """The rules that hold for Kafka keys as well: a key has no mandatory field."""
        return SchemaRules({}, self.names, self.times)

    def broken(
        self, fields: Sequence[SchemaField], time: str, root: str = ""
    ) -> Iterator[tuple[str, str, str]]:
        """Where a schema breaks a rule, why, and what is right. ``time`` says how its kind of schema spells a time;
        the paths of mandatory fields begin at ``root``."""
        there = {each.path: each for each in fields}
        for path, kind in ((root + name, kind) for name, kind in self.mandatory.items()):
            found = there.get(path)
            if found is None:
                hint = meant(path, there) or "schema_rules.mandatory requires it"
                yield path, "is mandatory and missing", hint
            elif kind not in {"any", *found.kinds}:
                yield path, f"is mandatory as {kind}, but has another type", time if kind == "time" else ""
        for each in fields:
            if self.names and not re.fullmatch(self.names, each.name):
                yield each.path, f"{each.name!r} breaks the rule for names of fields", self.names
            if self.times and re.fullmatch(self.times, each.name) and "time" not in each.kinds:
                yield each.path, "has the name of a time, but not the type", time


def parse_rules(document: Mapping[str, Any], times: str) -> SchemaRules:
    """The rules of a merged entry; ``times`` are those of `catalog.yaml`."""
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
