"""The catalogue as KBQ uses it: entries, sources of extraction, schemas against what tables and the registry take."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from kbq_assets.core.avro.tree import AvroType, Field, RecordType, Union, parse
from kbq_assets.core.avro.visitor import SchemaVisitor, visit
from kbq_assets.core.catalog import Catalog, CatalogEntry, CatalogFiles, CatalogProblem, build_catalog
from kbq_assets.core.catalog.datasets import dataset_of_entry
from kbq_assets.core.catalog.starter import EXTENSIONS
from kbq_assets.core.errors import ConfigurationError, EncodingError
from kbq_assets.core.loading.table_notes import OWN_COLUMNS
from kbq_assets.core.topics.business_time import choose_field
from kbq_assets.core.topics.personal import Pseudonyms
from kbq_assets.core.topics.source_list import SourceEntry
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.pipelines.catalog.declared_json import own_decisions, with_declared
from kbq_assets.pipelines.catalog.schema_kinds import json_problems
from kbq_assets.ports.registry import SubjectRegistry

if TYPE_CHECKING:
    from kbq_assets.wire.records.program import Program

#: Whether a decision can be carried out does not depend on the key.
_ANY_KEY = Pseudonyms("any", {"any": bytes(32)})
#: Mistakes that a message shows; `kbq catalog validate` shows all.
_SHOWN = 5
_SCHEMA_TYPES = {"avro": "AVRO", "json-schema": "JSON", "protobuf": "PROTOBUF"}


@dataclass(frozen=True)
class SchemaFile:
    """A schema of an entry: ``value.avsc`` or ``key.avsc`` in the folder ``schemas`` of its topic or environment."""

    path: str
    part: str
    text: str
    schema_type: str
    subject: str


class CatalogReader:
    """A catalogue as it is now; read anew, and judged anew when something has changed."""

    def __init__(self, read_files: Callable[[], CatalogFiles], defaults: TopicSettings) -> None:
        self._read_files = read_files
        self._defaults = defaults
        self._last: tuple[CatalogFiles, Catalog] | None = None

    def files(self) -> CatalogFiles:
        """What the folder holds. Raises ConfigurationError."""
        return self._read_files()

    def catalog(self) -> Catalog:
        """Entries and problems. Raises ConfigurationError when there is no folder."""
        files = self._read_files()
        if self._last is None or self._last[0] != files:
            self._last = (files, read_catalog(files, self._defaults))
        return self._last[1]


def read_catalog(files: CatalogFiles, defaults: TopicSettings | None = None) -> Catalog:
    """Entries and problems, those of Avro schemas included."""
    built = build_catalog(files.documents, defaults)
    problems = {*files.problems, *built.problems}
    entries = []
    for plain in built.entries:
        entry, wrong = with_declared(plain, files)
        entries.append(entry)
        problems.update(wrong)
        for schema in schema_files(entry, files):
            problems.update(_check_schema(entry, schema, files, built.convention.time_fields))
    return Catalog(tuple(entries), tuple(sorted(problems)), built.convention)


def sources(catalog: Catalog, env: str, origin: str) -> tuple[SourceEntry, ...]:
    """What extraction takes: the archived topics of one environment. Raises ConfigurationError for a catalogue with
    mistakes, and where the environment is not clear."""
    refuse_mistakes(catalog, origin)
    return tuple(entry.source for entry in catalog.of_env(environment(catalog, env)) if entry.archived)


def refuse_mistakes(catalog: Catalog, origin: str = "") -> None:
    """Raise ConfigurationError for a catalogue with mistakes: nothing is done by what may not be meant."""
    if catalog.problems:
        refuse_problems(f"the catalogue {origin}".rstrip() + " has mistakes", catalog.problems)


def refuse_problems(
    said: str, problems: Sequence[CatalogProblem], command: str = "kbq catalog validate"
) -> NoReturn:
    """Raise ConfigurationError with the first of them; ``command`` shows all."""
    shown = "\n".join(f"  {problem}" for problem in problems[:_SHOWN])
    more = f"\n  …and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
    raise ConfigurationError(f"{said}:\n{shown}{more}", next_step=f"mend them: {command}")


def uncatalogued(catalog: Catalog, env: str, origin: str, topics: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Topics without an entry in any environment, but for those that need none; each with the command that writes one,
    in which words in capitals are for people to choose. Nothing is missing from a catalogue with mistakes."""
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
    """The environment that is meant: the one named, or the only one. Raises ConfigurationError."""
    if env in catalog.envs or (not env and not catalog.envs):
        return env
    if not env and len(catalog.envs) == 1:
        return catalog.envs[0]
    said = f"no environment {env!r}" if env else "several environments"
    raise ConfigurationError(
        f"the catalogue has {said}", next_step=f"set KBQ_ENV to one of {', '.join(catalog.envs)}"
    )


def schema_files(entry: CatalogEntry, files: CatalogFiles) -> list[SchemaFile]:
    """An entry's schemas; those of its environment before those of its topic."""
    extension = EXTENSIONS.get(entry.encoding)
    found = []
    for part in ("value", "key"):
        for folder in (f"{entry.place.folder}/{entry.place.env}", entry.place.folder):
            path = f"{folder}/schemas/{part}{extension}"
            if extension and path in files.schemas:
                kind, subject = _SCHEMA_TYPES[entry.encoding], f"{entry.topic}-{part}"
                found.append(SchemaFile(path, part, files.schemas[path], kind, subject))
                break
    return found


def check_compatibility(
    entries: Iterable[CatalogEntry], files: CatalogFiles, registry: SubjectRegistry
) -> Iterator[CatalogProblem]:
    """Schemas that the registry would refuse, by the compatibility it demands. Raises Unavailable."""
    for entry in entries:
        for schema in schema_files(entry, files):
            yield from judged(schema, registry)


def judged(schema: SchemaFile, registry: SubjectRegistry) -> Iterator[CatalogProblem]:
    """Why the registry would refuse a schema. Raises Unavailable."""
    for message in registry.incompatibilities(schema.subject, schema.text, schema.schema_type):
        yield CatalogProblem(schema.path, 1, "", f"not compatible with subject {schema.subject}: {message}")


def _check_schema(
    entry: CatalogEntry, schema: SchemaFile, files: CatalogFiles, time_fields: str
) -> Iterator[CatalogProblem]:
    if schema.schema_type == "JSON":
        yield from json_problems(schema.path, schema.text, schema.part, time_fields)
    if schema.schema_type != "AVRO":
        return  # Protobuf takes a compiler: not at every run
    try:
        document = json.loads(schema.text)
    except ValueError as error:
        yield CatalogProblem(schema.path, getattr(error, "lineno", 1), "", f"not JSON: {error}")
        return
    if schema.part == "value":
        from kbq_assets.wire.records.schema import MetadataColumns, staged_schema  # with numpy, as below

        columns = MetadataColumns(business_time=entry.settings.records.event_date)
        try:
            staged = staged_schema(document, columns, _deciding_fields(entry))
            if entry.archived:
                _check_personal(entry, document, files)
        except EncodingError as error:
            yield CatalogProblem(schema.path, 1, "", error.message, error.next_step)
            return
        root = parse(document)
        yield from _check_time(entry, schema, root)
        yield from _check_columns(entry, schema)
        yield from _check_destination(entry, schema, root, staged.program)
    if time_fields:
        with suppress(EncodingError):  # a key's schema is not used: it may be wrong
            yield from _untimed(schema, parse(document), re.compile(time_fields))


def _check_columns(entry: CatalogEntry, schema: SchemaFile) -> Iterator[CatalogProblem]:
    """Descriptions of columns that the table will not have."""
    columns = dataset_of_entry(entry, schema.text).columns
    there = [column.name for column in columns if column.type]
    for column in columns:
        if not column.type and column.name in entry.document.get("columns", {}):
            if column.name in OWN_COLUMNS:
                continue
            near = difflib.get_close_matches(column.name, there, 1)
            hint = f"did you mean {near[0]!r}?" if near else ""
            said = f"is no column of {schema.path}"
            yield CatalogProblem(entry.place.path, 1, f"columns.{column.name}", said, hint)


def told_time(entry: CatalogEntry, files: CatalogFiles) -> str:
    """Where an entry's business time comes from, by its Avro schema here; "" where it has none."""
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
    except (ValueError, EncodingError):
        return "not known: the schema has mistakes"
    return "the Kafka time: no field tells one" if chosen is None else f"{chosen.path}: {chosen.why}"


def _check_time(entry: CatalogEntry, schema: SchemaFile, root: AvroType) -> Iterator[CatalogProblem]:
    """A writer may lack the field, and its records then have the Kafka time; here it is forgotten, or misspelt."""
    business = entry.settings.records.event_date
    if business is None or business.is_automatic or choose_field(root, business) is not None:
        return
    near = difflib.get_close_matches(business.candidates[0], [where for where, _ in _fields(root)], 1)
    hint = f"did you mean {near[0]!r}?" if near else ""
    wanted = " or ".join(map(repr, business.candidates))
    yield CatalogProblem(
        schema.path, 1, "", f"has no field {wanted}, the partition_time of {entry.topic}", hint
    )


def _deciding_fields(entry: CatalogEntry) -> list[str]:
    """The fields that decide about a record's table."""
    inputs = (name.partition(".") for name in entry.settings.destination.template.inputs)
    return [path for source, _, path in inputs if source == "field"]


def _check_destination(
    entry: CatalogEntry, schema: SchemaFile, root: AvroType, program: Program
) -> Iterator[CatalogProblem]:
    """As with times: a writer may lack the field, here it is forgotten."""
    for slot, path in enumerate(_deciding_fields(entry), program.captures - program.routes):
        if slot not in program.filled:
            near = difflib.get_close_matches(path, [where for where, _ in _fields(root)], 1)
            hint = f"did you mean {near[0]!r}?" if near else ""
            what = f"has no field {path!r}, of which {entry.topic} makes its tables' names"
            yield CatalogProblem(schema.path, 1, "", what, hint)


def _check_personal(entry: CatalogEntry, document: Any, files: CatalogFiles) -> None:
    """Raise EncodingError for a tagged field without a decision, or a decision that cannot be carried out."""
    # With numpy: not for every run of a driver.
    from kbq_assets.wire.privacy.avro import rewriter
    from kbq_assets.wire.privacy.tags import check_decided, check_declared

    decisions = entry.settings.privacy.decisions
    check_decided(document, decisions)
    check_declared(document, own_decisions(entry, files))
    rewriter(document, decisions, _ANY_KEY)


def _untimed(schema: SchemaFile, root: AvroType, pattern: re.Pattern[str]) -> Iterator[CatalogProblem]:
    """Fields that are times by their name and not by their type."""
    for where, type_ in _fields(root):
        if pattern.fullmatch(where.rpartition(".")[2]) and not _is_time(type_):
            line = _line_of(schema.text, where.rpartition(".")[2])
            hint = "logicalType timestamp-millis, timestamp-micros or date"
            yield CatalogProblem(schema.path, line, where, "is a time by its name, not by its type", hint)


class _Fields(SchemaVisitor[None]):
    """Fields of records, at any depth, with their dotted paths; those of a type only where it is first used."""

    def __init__(self) -> None:
        self.found: list[tuple[str, AvroType]] = []
        self._path: list[str] = []

    def other(self, node: AvroType, inside: Sequence[None]) -> None:
        pass

    def inside_itself(self, node: RecordType) -> None:
        pass

    def before_step(self, step: Field | str) -> None:
        if isinstance(step, Field):
            self._path.append(step.name)
            self.found.append((".".join(self._path), step.type))

    def after_step(self, step: Field | str) -> None:
        if isinstance(step, Field):
            self._path.pop()


def _fields(root: AvroType) -> list[tuple[str, AvroType]]:
    fields = _Fields()
    visit(root, fields)
    return fields.found


def _is_time(node: AvroType) -> bool:
    if isinstance(node, Union):
        return any(map(_is_time, node.branches))
    times = ("timestamp-", "local-timestamp-", "date")
    return any(str(value).startswith(times) for value in node.values_of("logicalType"))


def _line_of(text: str, name: str) -> int:
    found = text.find(json.dumps(name))
    return text.count("\n", 0, found) + 1 if found >= 0 else 1
