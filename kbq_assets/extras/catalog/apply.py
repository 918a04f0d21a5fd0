"""From the catalogue to broker and registry: the plan, shown first, then one step after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from kbq_assets.core.catalog import CatalogEntry, CatalogProblem
from kbq_assets.core.catalog.access import plan_access
from kbq_assets.core.catalog.changes import Change, Difference, plan_changes
from kbq_assets.core.catalog.starter import Draft, KnownSchemas, draft_entries
from kbq_assets.pipelines.catalog.reader import (
    CatalogReader,
    SchemaFile,
    check_compatibility,
    environment,
    judged,
    refuse_mistakes,
    refuse_problems,
    schema_files,
)
from kbq_assets.pipelines.catalog.schema_kinds import ProtobufFields, compiled_problems
from kbq_assets.pipelines.operate.commands import Proposal
from kbq_assets.ports.registry import LatestSchema, SubjectRegistry
from kbq_assets.ports.topics import TopicAdmin

_ENCODINGS = {"AVRO": "avro", "JSON": "json-schema", "PROTOBUF": "protobuf"}


@dataclass(frozen=True)
class Registration:
    """A schema that the registry does not have under its subject."""

    schema: SchemaFile

    def __str__(self) -> str:
        return f"register {self.schema.path} as subject {self.schema.subject}"


@dataclass(frozen=True)
class CatalogPlan:
    """What `kbq catalog apply` would do, in order, and what is left to people."""

    changes: tuple[Change, ...]
    registrations: tuple[Registration, ...]
    differences: tuple[Difference, ...]


@dataclass(frozen=True)
class CatalogCommands:
    """The catalogue beside broker and registry, which are opened when they are asked. ``env`` is the configured one."""

    reader: CatalogReader
    env: str
    open_admin: Callable[[], TopicAdmin]
    open_subjects: Callable[[], SubjectRegistry]
    protobuf_fields: ProtobufFields

    def entries(self, env: str = "") -> tuple[CatalogEntry, ...]:
        """The entries of an environment, "" for the configured or only one; of a catalogue with mistakes, those that
        could be read. Raises ConfigurationError."""
        catalog = self.reader.catalog()
        return catalog.of_env(environment(catalog, env or self.env))

    def sound_entries(self, env: str = "") -> tuple[CatalogEntry, ...]:
        """The same, to act on. Raises ConfigurationError for a catalogue with mistakes."""
        catalog = self.reader.catalog()
        refuse_mistakes(catalog)
        return catalog.of_env(environment(catalog, env or self.env))

    def protobuf_problems(self) -> tuple[list[CatalogProblem], str]:
        """What is wrong with Protobuf schemas of all environments, and why they were not looked at, if so."""
        files, catalog = self.reader.files(), self.reader.catalog()
        found = (schema for entry in catalog.entries for schema in schema_files(entry, files))
        texts = {schema.path: schema.text for schema in found if schema.schema_type == "PROTOBUF"}
        return compiled_problems(texts.items(), self.protobuf_fields, catalog.convention.time_fields)

    def incompatible_schemas(self, env: str = "") -> list[CatalogProblem]:
        """Schemas that the registry would refuse. Raises Unavailable."""
        return list(check_compatibility(self.entries(env), self.reader.files(), self.open_subjects()))

    def plan(self, env: str = "") -> CatalogPlan:
        """What would make broker and registry what the catalogue says; nothing is changed. Raises ConfigurationError
        for a catalogue with mistakes, and for schemas that the registry would refuse half-way; Unavailable."""
        entries, files = self.sound_entries(env), self.reader.files()
        if wrong := self.protobuf_problems()[0]:
            refuse_problems("the catalog has mistakes", wrong)
        admin, subjects = self.open_admin(), self.open_subjects()
        convention = self.reader.catalog().convention
        planned = plan_changes(entries, admin.topics(), convention.ignores)
        changes, differences = list(planned.changes), list(planned.differences)
        if convention.access is not None:
            allows, refusals = plan_access(entries, convention.access, admin.access())
            changes += allows
            differences += [Difference(refusal.topic, refusal.message) for refusal in refusals]
        wanted = [schema for entry in entries for schema in schema_files(entry, files)]
        missing = [s for s in wanted if not subjects.is_registered(s.subject, s.text, s.schema_type)]
        if refused := [p for s in missing for p in judged(s, subjects)]:
            refuse_problems("the registry would refuse schemas", refused, "kbq catalog validate --registry")
        return CatalogPlan(tuple(changes), tuple(map(Registration, missing)), tuple(differences))

    def proposals(self, planned: CatalogPlan) -> list[Proposal]:
        """A plan, ready to be done: topics first, then who may use them, then schemas."""
        admin, subjects = self.open_admin(), self.open_subjects()

        def register(schema: SchemaFile) -> None:
            subjects.register(schema.subject, schema.text, schema.schema_type)

        topics = [Proposal(str(change), (), partial(admin.apply, change)) for change in planned.changes]
        schemas = [Proposal(str(r), (), partial(register, r.schema)) for r in planned.registrations]
        return topics + schemas

    def drafts(self, company: str, domain: str, env: str, only: frozenset[str] | None = None) -> list[Draft]:
        """First entries for the topics of the broker. Raises Unavailable."""
        topics = self.open_admin().topics()
        wanted = {t: live for t, live in topics.items() if (t in only if only else not t.startswith("_"))}
        subjects = self.open_subjects().subjects()
        known = {topic: _known(topic, subjects) for topic in wanted if f"{topic}-value" in subjects}
        return draft_entries(wanted, known, company, domain, env)


def _known(topic: str, subjects: Mapping[str, LatestSchema]) -> KnownSchemas:
    """What a registry knows of a topic. A schema that refers to others is not whole without them, and is left there;
    so is one of a key in another language than the values'."""
    kind = subjects[f"{topic}-value"].schema_type
    parts = ((part, subjects.get(f"{topic}-{part}")) for part in ("value", "key"))
    whole = {part: s.schema for part, s in parts if s and s.schema_type == kind and not s.has_references}
    return KnownSchemas(_ENCODINGS.get(kind, "avro"), whole)
