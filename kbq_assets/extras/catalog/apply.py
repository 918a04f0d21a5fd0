"""Applies the catalog to broker, registry, buckets and BigQuery: makes a plan, then runs its steps in order."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from kbq_assets.core.avro.tree import load_schema, parse
from kbq_assets.core.catalog import CatalogEntry, CatalogProblem
from kbq_assets.core.catalog.access import plan_access
from kbq_assets.core.catalog.changes import Change, Difference, plan_changes
from kbq_assets.core.catalog.lake_tables import PointAtMetadata
from kbq_assets.core.catalog.lifecycle import SetTransitions, StoragePlaces, plan_lifecycle, transitions
from kbq_assets.core.catalog.readers import GrantReading
from kbq_assets.core.catalog.starter import DraftFile, KnownSchemas, draft_entries
from kbq_assets.core.config.locations import LakeAddress, parse_staging
from kbq_assets.core.config.settings import Settings
from kbq_assets.core.debezium.envelopes import is_envelope
from kbq_assets.core.errors import EncodingError, Unavailable
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.extras.catalog.grants import ReaderGrants, grants_of
from kbq_assets.extras.catalog.lake_tables import LakeTables, lake_tables_of
from kbq_assets.pipelines.catalog.reader import (
    CatalogReader,
    environment,
    judged,
    refuse_mistakes,
    refuse_problems,
    schema_files,
)
from kbq_assets.pipelines.catalog.schema_kinds import ProtobufFields, SchemaFile, compiled_problems
from kbq_assets.pipelines.operate.commands import Proposal
from kbq_assets.ports.lifecycle import BucketLifecycles
from kbq_assets.ports.registry import SubjectRegistry
from kbq_assets.ports.topics import TopicAdmin

#: If the first subjects get no answer, the registry is considered down after this many.
PATIENCE = 3
Asked = TypeVar("Asked")
Found = TypeVar("Found")
_ENCODINGS = {"AVRO": "avro", "JSON": "json-schema", "PROTOBUF": "protobuf"}


@dataclass(frozen=True)
class Registration:
    """A schema to register under its subject."""

    schema: SchemaFile

    def __str__(self) -> str:
        return f"register {self.schema.path} as subject {self.schema.subject}"


@dataclass(frozen=True)
class CatalogPlan:
    """The steps of `kbq catalog apply` in order, the differences to fix by hand, and the subjects that the registry
    could not compare."""

    changes: tuple[Change, ...]
    registrations: tuple[Registration, ...]
    differences: tuple[Difference, ...]
    unknown: tuple[Difference, ...] = ()
    storage: tuple[SetTransitions, ...] = ()
    lake: tuple[PointAtMetadata, ...] = ()
    readers: tuple[GrantReading, ...] = ()

    @property
    def lines(self) -> list[str]:
        """The steps as text."""
        steps = (*self.changes, *self.registrations, *self.storage, *self.lake, *self.readers)
        return [*map(str, steps)]


@dataclass(frozen=True)
class Storage:
    """Buckets, and what KBQ stores in them."""

    places: StoragePlaces
    open_lifecycles: Callable[[], BucketLifecycles]


def storage_of(settings: Settings) -> Storage:
    """The places of backups, lakes and staged files, by the settings."""
    backup, staging = settings.backup, settings.staging
    backups = [parse_staging(backup.location) if backup.location else staging]
    backups += [parse_staging(backup.personal_location)] if backup.personal_location else []
    lakes = (place for each in settings.warehouses if isinstance(place := each.place, LakeAddress))

    def lifecycles() -> BucketLifecycles:
        from kbq_assets.adapters.gcs.lifecycle import GcsLifecycles
        from kbq_assets.adapters.google.auth import GoogleAccess
        from kbq_assets.adapters.google.clients import storage_client

        google = settings.google
        return GcsLifecycles(storage_client(GoogleAccess(google.load_credentials, google.gcs_endpoint)))

    return Storage(StoragePlaces(tuple(backups), tuple(lakes), staging), lifecycles)


@dataclass(frozen=True)
class CatalogCommands:
    """Compares the catalog with broker, registry, buckets and BigQuery. Each opens when it is first used. ``env`` is
    the configured environment."""

    reader: CatalogReader
    env: str
    open_admin: Callable[[], TopicAdmin]
    open_subjects: Callable[[], SubjectRegistry]
    protobuf_fields: ProtobufFields
    storage: Storage | None = None
    lake_tables: LakeTables | None = None
    grants: ReaderGrants | None = None

    def entries(self, env: str = "") -> tuple[CatalogEntry, ...]:
        """The entries of an environment; "" means the configured or only one. If the catalog has mistakes, only the
        readable entries. Raises ConfigurationError."""
        catalog = self.reader.catalog()
        return catalog.of_env(environment(catalog, env or self.env))

    def sound_entries(self, env: str = "") -> tuple[CatalogEntry, ...]:
        """The entries of an environment. Raises ConfigurationError if the catalog has mistakes."""
        catalog = self.reader.catalog()
        refuse_mistakes(catalog)
        return catalog.of_env(environment(catalog, env or self.env))

    def protobuf_problems(self) -> tuple[list[CatalogProblem], str]:
        """Mistakes in Protobuf schemas of all environments, and a message if the schemas were not compiled."""
        files, catalog = self.reader.files(), self.reader.catalog()
        times = catalog.convention.time_fields
        schemas = {
            schema.path: schema
            for entry in catalog.entries
            for schema in schema_files(entry, files, times)
            if schema.schema_type == "PROTOBUF"
        }
        return compiled_problems(schemas.values(), self.protobuf_fields)

    def incompatible_schemas(self, env: str = "") -> list[CatalogProblem]:
        """Problems of schemas that the registry would reject. Raises Unavailable."""
        files, subjects = self.reader.files(), self.open_subjects()
        schemas = [schema for entry in self.entries(env) for schema in schema_files(entry, files)]
        found, unknown = _of_each(schemas, lambda schema: judged(schema, subjects))
        of_unknown = (
            CatalogProblem(schema.path, 1, "", f"subject {schema.subject} was not compared: {error.message}")
            for schema, error in unknown
        )
        return [*found, *of_unknown]

    def plan(self, env: str = "") -> CatalogPlan:
        """The steps that make everything match the catalog. Changes nothing. Raises ConfigurationError if the catalog
        has mistakes or the registry would reject a schema; Unavailable."""
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
        missing, refused, unknown = _compared(wanted, subjects)
        if refused:
            refuse_problems("the registry would reject schemas", refused, "kbq catalog validate --registry")
        storage, others = self._plan_storage(entries)
        lake, in_the_way = self.plan_lake(entries)
        readers, ungranted = self._plan_readers(entries)
        differences += [*others, *in_the_way, *ungranted]
        return CatalogPlan(
            changes=tuple(changes),
            registrations=tuple(map(Registration, missing)),
            differences=tuple(differences),
            unknown=unknown,
            storage=tuple(storage),
            lake=tuple(lake),
            readers=tuple(readers),
        )

    def plan_lake(self, entries: Iterable[CatalogEntry]) -> tuple[list[PointAtMetadata], list[Difference]]:
        """BigQuery tables to create or move, so they read the lake. Raises ConfigurationError, Unavailable."""
        rules = self.reader.catalog().convention.lake_in_bigquery
        if rules is None or self.lake_tables is None:
            return [], []
        changes, left = self.lake_tables.plan(rules, _datasets(entries))
        return changes, [Difference(each.place, each.message) for each in left]

    def move_readers(
        self, changed: Collection[TableReference], is_late: Callable[[], bool]
    ) -> Mapping[TableReference, str]:
        """Let BigQuery's tables read the newest files of changed lake tables, after a load. Returns the reasons why
        some are behind. Raises ConfigurationError."""
        catalog = self.reader.catalog()
        if catalog.unusable:
            refuse_problems("catalog.yaml has mistakes", catalog.unusable)
        rules = catalog.convention.lake_in_bigquery
        if rules is None or self.lake_tables is None:
            return {}
        return self.lake_tables.in_time(is_late).move(rules, changed)

    def _plan_readers(self, entries: Collection[CatalogEntry]) -> tuple[list[GrantReading], list[Difference]]:
        """Missing grants to readers. Raises ConfigurationError, Unavailable."""
        catalog = self.reader.catalog()
        if not catalog.convention.readers or self.grants is None:
            return [], []
        topics = {each.topic for each in catalog.entries}
        return self.grants.plan(catalog.convention.readers, entries, topics)

    def _plan_storage(self, entries: Iterable[CatalogEntry]) -> tuple[list[SetTransitions], list[Difference]]:
        """Changes of buckets' lifecycles. Raises ConfigurationError, Unavailable."""
        rules = self.reader.catalog().convention.lifecycle
        if not rules or self.storage is None:
            return [], []
        wanted, refused = transitions(rules, self.storage.places, _datasets(entries))
        lifecycles = self.storage.open_lifecycles() if wanted else None
        buckets = sorted({each.bucket for each in wanted})
        live = {bucket: lifecycles.transitions(bucket) for bucket in buckets} if lifecycles else {}
        changes, left = plan_lifecycle(wanted, live)
        return changes, [Difference(each.place, each.message) for each in (*refused, *left)]

    def proposals(self, planned: CatalogPlan) -> list[Proposal]:
        """A plan's steps, ready to run: topics, then their ACLs, schemas, buckets, BigQuery's tables, and readers."""
        admin, subjects = self.open_admin(), self.open_subjects()

        def register(schema: SchemaFile) -> None:
            subjects.register(schema.subject, schema.text, schema.schema_type)

        topics = [Proposal(str(change), (), partial(admin.apply, change)) for change in planned.changes]
        schemas = [Proposal(str(r), (), partial(register, r.schema)) for r in planned.registrations]
        lifecycles = self.storage.open_lifecycles() if planned.storage and self.storage else None
        storage = [
            Proposal(str(change), (), partial(lifecycles.change, change))
            for change in planned.storage
            if lifecycles is not None
        ]
        rules = self.reader.catalog().convention.lake_in_bigquery
        lake = self.lake_tables.proposals(rules, planned.lake) if rules and self.lake_tables else []
        readers = self.grants.proposals(planned.readers) if self.grants else []
        return topics + schemas + storage + lake + readers

    def described_elsewhere(self, company: str, domain: str, env: str) -> dict[str, str]:
        """Topics that entries of other companies and domains describe, with these entries' paths. Raises
        ConfigurationError."""
        entries = (each for each in self.reader.catalog().entries if each.place.env == env)
        return {
            e.topic: e.place.path for e in entries if (e.place.company, e.place.domain) != (company, domain)
        }

    def drafts(
        self,
        company: str,
        domain: str,
        env: str,
        only: frozenset[str] | None = None,
        archived: Collection[str] = (),
        team: str = "",
        without: Collection[str] = (),
    ) -> tuple[list[DraftFile], tuple[Difference, ...], tuple[Difference, ...]]:
        """First entries for the broker's topics, ``without`` some; the topics that were left out because the broker
        does not have them or KBQ cannot use their schemas; and those for which the registry did not answer. Raises
        Unavailable."""
        topics = self.open_admin().topics()
        wanted = {t: live for t, live in topics.items() if (t in only if only else not t.startswith("_"))}
        wanted = {topic: live for topic, live in wanted.items() if topic not in without}
        subjects = self.open_subjects()
        names = subjects.names()

        def ask(topic: str) -> Iterable[tuple[str, KnownSchemas | Difference]]:
            yield topic, _known(topic, names, subjects)

        found, failed = _of_each([topic for topic in sorted(wanted) if f"{topic}-value" in names], ask)
        known = {topic: each for topic, each in found if isinstance(each, KnownSchemas)}
        unusable = tuple(each for _, each in found if isinstance(each, Difference))
        missing = sorted({*(only or ()), *archived}.difference(topics))
        unusable += tuple(Difference(topic, "not on the broker") for topic in missing)
        unknown = tuple(Difference(topic, error.message) for topic, error in failed)
        left_out = {each.topic for each in (*unusable, *unknown)}
        kept = {topic: live for topic, live in wanted.items() if topic not in left_out}
        return draft_entries(kept, known, company, domain, env, archived, team), unusable, unknown


def commands_of(
    reader: CatalogReader,
    settings: Settings,
    open_admin: Callable[[], TopicAdmin],
    open_subjects: Callable[[], SubjectRegistry],
) -> CatalogCommands:
    return CatalogCommands(
        reader,
        settings.catalog.env,
        open_admin,
        open_subjects,
        protobuf_fields,
        storage_of(settings),
        lake_tables_of(settings),
        grants_of(settings),
    )


def _datasets(entries: Iterable[CatalogEntry]) -> set[str]:
    """The datasets that entries name. Records choose the others."""
    return {name for e in entries if (name := e.settings.destination.dataset.text) and "{" not in name}


def _compared(
    wanted: Iterable[SchemaFile], subjects: SubjectRegistry
) -> tuple[list[SchemaFile], list[CatalogProblem], tuple[Difference, ...]]:
    """Schemas to register, problems for which the registry would reject some, and subjects that it could not
    compare."""

    def compare(schema: SchemaFile) -> Iterable[tuple[SchemaFile, list[CatalogProblem]]]:
        if not subjects.is_registered(schema.subject, schema.text, schema.schema_type):
            yield schema, list(judged(schema, subjects))

    found, failed = _of_each(wanted, compare)
    unknown = tuple(Difference(schema.subject, f"not compared: {error.message}") for schema, error in failed)
    return [s for s, _ in found], [problem for _, problems in found for problem in problems], unknown


def _of_each(
    asked: Iterable[Asked], ask: Callable[[Asked], Iterable[Found]]
) -> tuple[list[Found], list[tuple[Asked, Unavailable]]]:
    """Answers about schemas, and the schemas for which the registry gave no answer. Raises Unavailable if it gives no
    answer for the first ones: then it is down."""
    found: list[Found] = []
    failed: list[tuple[Asked, Unavailable]] = []
    answers = 0
    for each in asked:
        try:
            found.extend(ask(each))
            answers += 1
        except Unavailable as error:
            failed.append((each, error))
            if not answers and len(failed) == PATIENCE:
                raise
    return found, failed


def _known(topic: str, names: frozenset[str], subjects: SubjectRegistry) -> KnownSchemas | Difference:
    """The registry's schemas of a topic, or the reason why KBQ cannot use them. Omits schemas that refer to others, and
    a key's schema of another type than the value's. Raises Unavailable."""
    latest = {
        part: subjects.latest(f"{topic}-{part}") for part in ("value", "key") if f"{topic}-{part}" in names
    }
    kind = latest["value"].schema_type
    if kind not in _ENCODINGS:
        return Difference(topic, f"KBQ does not support schemas of the type {kind}")
    whole = {part: s.schema for part, s in latest.items() if s.schema_type == kind and not s.has_references}
    for part, text in whole.items():
        try:
            if kind != "PROTOBUF":
                json.loads(text)
        except (ValueError, RecursionError) as error:
            return Difference(topic, f"the schema of {topic}-{part} is not JSON: {error}")
    if kind == "AVRO" and "value" in whole and _is_change_data(whole["value"]):
        return KnownSchemas("debezium")  # its connector registers the schemas
    return KnownSchemas(_ENCODINGS[kind], whole)


def _is_change_data(text: str) -> bool:
    try:
        return is_envelope(parse(load_schema(text)))
    except EncodingError:
        return False  # the validation of the schema reports the reason


def protobuf_fields(schema: str) -> Iterable[tuple[str, str]]:
    """Fields of a compiled Protobuf schema, with their types."""
    from kbq_assets.adapters.protobuf import fields_of

    return fields_of(schema)
