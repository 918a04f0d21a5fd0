"""Reads the catalog: its entries, the topics to extract, and schemas, checked against tables and registry."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, NoReturn

from kbq_assets.core.avro.fields import field_paths
from kbq_assets.core.avro.references import union_records
from kbq_assets.core.avro.tree import AvroType, Union, parse
from kbq_assets.core.catalog import Catalog, CatalogEntry, CatalogFiles, CatalogProblem, build_catalog
from kbq_assets.core.catalog.datasets import columns_of_entry
from kbq_assets.core.catalog.entries import place_of
from kbq_assets.core.catalog.faults import faults_of_files, is_root, wrong_sources
from kbq_assets.core.catalog.mistakes import entry_mistake
from kbq_assets.core.catalog.schema_rules import parse_rules
from kbq_assets.core.catalog.starter import EXTENSIONS
from kbq_assets.core.errors import ConfigurationError, EncodingError
from kbq_assets.core.loading.table_notes import OWN_COLUMNS
from kbq_assets.core.spelling import meant
from kbq_assets.core.topics.business_time import choose_field
from kbq_assets.core.topics.personal import Pseudonyms, in_avro
from kbq_assets.core.topics.source_list import SourceEntry
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.pipelines.catalog.declared_json import own_decisions, with_declared
from kbq_assets.pipelines.catalog.schema_kinds import SchemaFile, avro_problems, json_problems
from kbq_assets.ports.registry import SubjectRegistry

if TYPE_CHECKING:
    from kbq_assets.wire.records.program import Program

#: For checks of decisions, because these do not depend on the key.
_ANY_KEY = Pseudonyms("any", {"any": bytes(32)})
#: Most mistakes in a message; `kbq catalog validate` shows all.
_SHOWN = 5
_SCHEMA_TYPES = {"avro": "AVRO", "json-schema": "JSON", "protobuf": "PROTOBUF"}


class CatalogReader:
    """The current catalog. It is read at each use, and checked again after a change."""

    def __init__(self, read_files: Callable[[], CatalogFiles], defaults: TopicSettings) -> None:
        self._read_files = read_files
        self._defaults = defaults
        self._last: tuple[CatalogFiles, Catalog] | None = None

    def files(self) -> CatalogFiles:
        """The files of the folder. Raises ConfigurationError."""
        return self._read_files()

    def catalog(self) -> Catalog:
        """The entries and their mistakes. Raises ConfigurationError if there is no folder."""
        files = self._read_files()
        if self._last is None or self._last[0] != files:
            self._last = (files, read_catalog(files, self._defaults))
        return self._last[1]


def read_catalog(files: CatalogFiles, defaults: TopicSettings | None = None) -> Catalog:
    """The entries and their mistakes, including those of Avro schemas."""
    built = build_catalog(files.documents, defaults)
    faults = defaultdict(set, {path: set(found) for path, found in built.faults.items()})
    entries = []
    for plain in built.entries:
        entry, wrong = with_declared(plain, files)
        entries.append(entry)
        faults[entry.place.path].update(wrong)
        for schema in schema_files(entry, files, built.convention.time_fields):
            faults[entry.place.path].update(_check_schema(entry, schema, files))
    unread = {problem.path for problem in files.problems}
    for path, problem in faults_of_files(files.problems, filter(place_of, files.documents.keys() | unread)):
        faults[path].add(problem)
    return replace(
        built,
        entries=tuple(entries),
        problems=tuple(sorted({*files.problems, *built.problems, *chain.from_iterable(faults.values())})),
        faults={path: tuple(sorted(found)) for path, found in faults.items() if found},
        unusable=(*built.unusable, *(problem for problem in files.problems if is_root(problem.path))),
    )


def sources(catalog: Catalog, env: str, origin: str) -> tuple[SourceEntry, ...]:
    """The archived topics of one environment. Entries with mistakes wait. Raises ConfigurationError for a mistake in
    catalog.yaml, or for an ambiguous environment."""
    if catalog.unusable:
        refuse_problems(f"the catalog {origin} has mistakes in its own file", catalog.unusable)
    env = environment(catalog, env)
    sound = (each for each in catalog.of_env(env) if each.archived and each.place.path not in catalog.faults)
    return (*(entry.source for entry in sound), *wrong_sources(catalog, env))


def refuse_mistakes(catalog: Catalog) -> None:
    """Raise ConfigurationError if the catalog has mistakes."""
    if catalog.problems:
        refuse_problems("the catalog has mistakes", catalog.problems)


def refuse_problems(
    message: str, problems: Sequence[CatalogProblem], command: str = "kbq catalog validate"
) -> NoReturn:
    """Raise ConfigurationError with the first problems. ``command`` shows all."""
    shown = "\n".join(f"  {problem}" for problem in problems[:_SHOWN])
    more = f"\n  …and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
    raise ConfigurationError(f"{message}:\n{shown}{more}", next_step=f"fix them: {command}")


def uncatalogd(catalog: Catalog, env: str, origin: str, topics: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Topics that need an entry but have none in any environment, each with the command that writes one. The user
    replaces the words in capitals. Empty if the catalog has mistakes."""
    known = {entry.topic for entry in catalog.entries}
    for topic in topics if not catalog.problems else ():
        if topic not in known and not catalog.convention.ignores(topic):
            parts = catalog.convention.parts_of(topic)
            company, domain = parts.get("company", "COMPANY"), parts.get("domain", "DOMAIN")
            at = parts.get("env") or env or (catalog.envs[0] if len(catalog.envs) == 1 else "ENV")
            add = (
                f"kbq catalog init {origin} --company {company} --domain {domain} --env {at} --topic {topic}"
            )
            yield topic, add


def environment(catalog: Catalog, env: str) -> str:
    """The named environment, or the only one. Raises ConfigurationError."""
    if env in catalog.envs or (not env and not catalog.envs):
        return env
    if not env and len(catalog.envs) == 1:
        return catalog.envs[0]
    found = f"no environment {env!r}" if env else "several environments"
    raise ConfigurationError(
        f"the catalog has {found}", next_step=f"set KBQ_ENV to one of {', '.join(catalog.envs)}"
    )


def schema_files(entry: CatalogEntry, files: CatalogFiles, time_fields: str = "") -> list[SchemaFile]:
    """An entry's schemas. Files of its environment override those of its topic. ``time_fields`` is the convention's."""
    extension = EXTENSIONS.get(entry.encoding)
    rules = parse_rules(entry.document, time_fields)
    found = []
    for part in ("value", "key"):
        for folder in (f"{entry.place.folder}/{entry.place.env}", entry.place.folder):
            path = f"{folder}/schemas/{part}{extension}"
            if extension and path in files.schemas:
                kind, subject = _SCHEMA_TYPES[entry.encoding], f"{entry.topic}-{part}"
                own = rules if part == "value" else rules.of_keys()
                found.append(SchemaFile(path, part, files.schemas[path], kind, subject, own))
                break
    return found


def judged(schema: SchemaFile, registry: SubjectRegistry) -> Iterator[CatalogProblem]:
    """Problems for which the registry would reject a schema. Raises Unavailable."""
    for message in registry.incompatibilities(schema.subject, schema.text, schema.schema_type):
        yield CatalogProblem(schema.path, 1, "", f"not compatible with subject {schema.subject}: {message}")


def _check_schema(entry: CatalogEntry, schema: SchemaFile, files: CatalogFiles) -> Iterator[CatalogProblem]:
    if schema.schema_type == "JSON":
        yield from json_problems(schema)
    if schema.schema_type != "AVRO":
        return  # Protobuf needs a compiler, so it is not checked at every run
    try:
        document = json.loads(schema.text)
        root = parse(document)
    except (ValueError, RecursionError) as error:
        yield CatalogProblem(schema.path, getattr(error, "lineno", 1), "", f"not JSON: {error}")
        return
    except EncodingError as error:
        if schema.part == "value":  # a key's schema is not used, so it may be wrong
            yield CatalogProblem(schema.path, 1, "", error.message, error.next_step)
        return
    if schema.part == "value":
        yield from _check_value(entry, schema, files, document, root)
    for record in root.branches if isinstance(root, Union) else (root,):
        yield from avro_problems(schema, record)


def _check_value(
    entry: CatalogEntry, schema: SchemaFile, files: CatalogFiles, document: Any, root: AvroType
) -> Iterator[CatalogProblem]:
    from kbq_assets.wire.records.staged_schema import MetadataColumns, staged_schema  # with numpy, as below

    columns = MetadataColumns(business_time=entry.settings.records.event_date)
    is_union = isinstance(document, list) and entry.settings.destination.route == "record_name"
    staged = None
    for record in union_records(document) if is_union else [document]:
        try:
            staged = staged_schema(record, columns, _deciding_fields(entry))
        except EncodingError as error:
            yield CatalogProblem(schema.path, 1, "", error.message, error.next_step)
        if entry.archived:
            yield from _check_personal(entry, schema, files, record, is_union=is_union)
    if is_union:
        return  # no single table has its columns
    yield from _check_time(entry, schema, files, root)
    if staged is not None:
        yield from _check_columns(entry, schema, files)
        yield from _check_key(entry, schema, files)
        yield from _check_destination(entry, schema, files, root, staged.program)


def _check_key(entry: CatalogEntry, schema: SchemaFile, files: CatalogFiles) -> Iterator[CatalogProblem]:
    """Key or version columns that the table does not have. No row could be loaded."""
    statement = entry.settings.statement
    there = [column.name for column in columns_of_entry(entry, schema.text) if column.type]
    for option, paths in (("key", statement.key), ("version", (statement.version,))):
        for name in (path.partition(".")[0] for path in paths if path):
            if not name.startswith("_") and name not in there:
                message = f"{schema.path} does not make a column {name!r}"
                yield entry_mistake(entry, files, f"loading.{option}", message, meant(name, there))


def _check_columns(entry: CatalogEntry, schema: SchemaFile, files: CatalogFiles) -> Iterator[CatalogProblem]:
    """Descriptions of columns that the table does not have."""
    columns = list(columns_of_entry(entry, schema.text))
    there = [column.name for column in columns if column.type]
    for column in columns:
        if not column.type and column.name in entry.document.get("columns", {}):
            if column.name in OWN_COLUMNS:
                continue
            message = f"is not a column of {schema.path}"
            yield entry_mistake(entry, files, "columns", message, meant(column.name, there), column.name)


def time_source(entry: CatalogEntry, files: CatalogFiles) -> str:
    """A description of the source of an entry's business time, by its Avro schema; "" if it has none."""
    business = entry.settings.records.event_date
    if business is None:
        return ""
    values = [
        each for each in schema_files(entry, files) if (each.part, each.schema_type) == ("value", "AVRO")
    ]
    if not values:
        return "chosen by each schema" if business.is_automatic else ", else ".join(business.candidates)
    try:
        chosen = choose_field(parse(json.loads(values[0].text)), business)
    except (ValueError, RecursionError, EncodingError):
        return "unknown: the schema has mistakes"
    return "the Kafka time, because no field has a time" if chosen is None else f"{chosen.path}: {chosen.why}"


def _check_time(
    entry: CatalogEntry, schema: SchemaFile, files: CatalogFiles, root: AvroType
) -> Iterator[CatalogProblem]:
    """Business times that the entry's schema does not have. Writers' schemas need none: the Kafka time is used."""
    business = entry.settings.records.event_date
    if business is None or business.is_automatic or choose_field(root, business) is not None:
        return
    wanted = " or ".join(map(repr, business.candidates))
    hint = meant(business.candidates[0], field_paths(root))
    yield entry_mistake(entry, files, "partition_time", f"{schema.path} has no field {wanted}", hint)


def _deciding_fields(entry: CatalogEntry) -> list[str]:
    """Paths of the fields that determine a record's table."""
    inputs = (name.partition(".") for name in entry.settings.destination.template.inputs)
    return [path for source, _, path in inputs if source == "field"]


def _check_destination(
    entry: CatalogEntry, schema: SchemaFile, files: CatalogFiles, root: AvroType, program: Program
) -> Iterator[CatalogProblem]:
    """Fields of templates that the entry's schema does not have. Writers' schemas need not have them."""
    for slot, path in enumerate(_deciding_fields(entry), program.captures - program.routes):
        if slot not in program.filled:
            what = f"{schema.path} has no field {path!r}, which names the tables of {entry.topic}"
            yield entry_mistake(entry, files, "destination.table", what, meant(path, field_paths(root)))


def _check_personal(
    entry: CatalogEntry, schema: SchemaFile, files: CatalogFiles, document: Any, *, is_union: bool
) -> Iterator[CatalogProblem]:
    """Tagged fields without a decision, decisions about missing fields, impossible decisions."""
    # These import numpy, which most runs of a driver do not need.
    from kbq_assets.wire.privacy.avro import rewriter
    from kbq_assets.wire.privacy.tags import check_decided, undeclared

    decisions = in_avro(entry.settings.privacy.decisions)
    try:
        check_decided(document, decisions)
    except EncodingError as error:
        yield CatalogProblem(schema.path, 1, "", error.message, error.next_step)
    for path in undeclared(document, () if is_union else own_decisions(entry, files)):
        hint = meant(path, field_paths(parse(document)))
        hint = hint or "fix it; a defaults.yaml decides about fields of other schemas"
        yield entry_mistake(entry, files, "pii.fields", f"{schema.path} has no field {path!r}", hint, path)
    try:
        rewriter(document, decisions, _ANY_KEY)
    except EncodingError as error:
        yield entry_mistake(entry, files, "pii.fields", f"{schema.path}: {error.message}", error.next_step)
