"""Entries of the catalog: turns documents, by inheritance and naming conventions, into options of topics."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from itertools import chain
from typing import Any, Final

from kbq_assets.core.catalog.clashes import clashes
from kbq_assets.core.catalog.convention import Convention, parse_convention
from kbq_assets.core.catalog.fields import CLEANUP_POLICIES, ENTRY, PII_LEVELS, options_of
from kbq_assets.core.catalog.nodes import CatalogProblem, DocumentNode, Mistake, given, inherit, without
from kbq_assets.core.catalog.profiles import Profiles, spelled_out, translate_flush
from kbq_assets.core.catalog.schema_rules import check_rules
from kbq_assets.core.catalog.validation import check_fields
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.protocol.names import check_topic
from kbq_assets.core.topics.business_time import option_text
from kbq_assets.core.topics.declaration import text_of
from kbq_assets.core.topics.destinations import check_datasets
from kbq_assets.core.topics.personal import undecided
from kbq_assets.core.topics.source_list import SourceEntry
from kbq_assets.core.topics.topic_settings import OPTIONS, TopicSettings

#: KBQ's name as a consumer. KBQ archives the topics that list it.
ARCHIVER: Final = "archiver"
ROOT_FILE: Final = "catalog"
_EXTENSIONS: Final = ("yaml", "yml", "json")
#: Formats by encoding, if the names differ.
_FORMATS: Final[Mapping[str, str]] = {"json-schema": "json_schema"}


@dataclass(frozen=True, order=True)
class EntryPlace:
    """The place of an entry, from its path ``<company>/<domain>/<topic>/<env>/topic.yaml``."""

    company: str
    domain: str
    topic: str
    env: str
    path: str

    @property
    def folder(self) -> str:
        return f"{self.company}/{self.domain}/{self.topic}"


@dataclass(frozen=True)
class KafkaTopic:
    """A topic as it should be on the broker. None and {} keep the broker's values. ``config`` uses Kafka's names."""

    partitions: int | None = None
    replication: int | None = None
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CatalogEntry:
    """A topic of one environment. ``document`` is its file merged with its defaults."""

    place: EntryPlace
    topic: str
    kafka: KafkaTopic
    settings: TopicSettings
    document: Mapping[str, Any]

    @property
    def archived(self) -> bool:
        """Whether KBQ extracts it."""
        return ARCHIVER in self.document.get("consumers", ())

    @property
    def encoding(self) -> str:
        return str(self.document.get("encoding", "avro"))

    @property
    def source(self) -> SourceEntry:
        return SourceEntry(self.topic, self.settings)


@dataclass(frozen=True)
class Catalog:
    """All readable entries, and all mistakes. ``faults`` has the mistakes of each entry by the path of its file,
    ``names`` the topics of entries, even of unreadable ones. ``unusable`` are mistakes in catalog.yaml, which make all
    entries unusable."""

    entries: tuple[CatalogEntry, ...]
    problems: tuple[CatalogProblem, ...]
    convention: Convention
    faults: Mapping[str, tuple[CatalogProblem, ...]] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    unusable: tuple[CatalogProblem, ...] = ()

    @property
    def envs(self) -> tuple[str, ...]:
        places = (place_of(path) for path in self.faults)
        return tuple(sorted({e.place.env for e in self.entries} | {place.env for place in places if place}))

    def of_env(self, env: str) -> tuple[CatalogEntry, ...]:
        return tuple(entry for entry in self.entries if entry.place.env == env)


def build_catalog(documents: Mapping[str, DocumentNode], defaults: TopicSettings | None = None) -> Catalog:
    """Build a catalog from its documents, given by path below its folder. Mistakes are in `Catalog.problems`."""
    convention, unusable = _convention(documents)
    problems, entries, names = [*unusable], list[CatalogEntry](), dict[str, str]()
    faults = defaultdict[str, list[CatalogProblem]](list)
    for path, document in sorted(documents.items()):
        if _stem(path) != "topic":
            problems += _check_defaults(path, document)
            continue
        place = place_of(path)
        if place is None:
            problems.append(
                CatalogProblem(path, 1, "", "an entry belongs at <company>/<domain>/<topic>/<env>/topic.yaml")
            )
            continue
        checked = _checked(place, document, documents, convention, faults[path])
        if checked is None:
            continue
        try:
            names[path] = _topic_of(place, checked, convention)
            entries.append(_built(place, checked, convention, defaults or TopicSettings(), faults[path]))
        except Mistake as mistake:
            faults[path].append(mistake.problem)
    # If two entries collide, either may be wrong, so both stop. But an entry with mistakes of its own does not stop
    # others.
    wrong = {path for path, own in faults.items() if own}
    sound = [entry for entry in entries if entry.place.path not in wrong]
    for clash, *both in (*clashes(sound, documents), *clashes(entries, documents)):
        for entry in [entry for entry in both if entry.place.path in wrong] or both:
            faults[entry.place.path].append(clash)
    # Every entry that inherits a mistake reports it, so remove duplicates.
    of_entries = {path: tuple(sorted(set(own))) for path, own in faults.items() if own}
    problems += chain.from_iterable(of_entries.values())
    listed = tuple(sorted(set(problems)))
    return Catalog(tuple(entries), listed, convention, of_entries, names, tuple(unusable))


def _convention(documents: Mapping[str, DocumentNode]) -> tuple[Convention, list[CatalogProblem]]:
    roots = (documents.get(f"{ROOT_FILE}.{extension}") for extension in _EXTENSIONS)
    root = next((root for root in roots if root is not None), None)
    return (Convention(), []) if root is None else parse_convention(root)


def _check_defaults(path: str, document: DocumentNode) -> Iterator[CatalogProblem]:
    stem = _stem(path)
    if stem == ROOT_FILE and "/" not in path:
        return
    if stem == "defaults" or stem.startswith("defaults."):
        yield from check_fields(spelled_out(document), ENTRY)
    else:
        hint = "topic.yaml, defaults.yaml, defaults.<env>.yaml"
        yield CatalogProblem(path, 1, "", "not a file of the catalog", hint)


def place_of(path: str) -> EntryPlace | None:
    """The place of an entry's file; None if the file is not an entry."""
    parts = path.split("/")
    if len(parts) != 5 or _stem(path) != "topic":
        return None
    return EntryPlace(parts[0], parts[1], parts[2], parts[3], path)


def _checked(
    place: EntryPlace,
    own: DocumentNode,
    documents: Mapping[str, DocumentNode],
    convention: Convention,
    problems: list[CatalogProblem],
) -> DocumentNode | None:
    """An entry merged over its defaults, without wrong keys; None if nothing is left."""
    document = inherited(place, documents, convention.profiles)
    wrong = [*check_fields(spelled_out(own), ENTRY), *check_fields(document, ENTRY)]
    problems += wrong
    # Continue without the wrong keys, so that one pass reports all mistakes.
    for problem in wrong:
        document = without(document, problem.where)
    if not isinstance(document.value, Mapping):
        return None
    problems += [*convention.check_entry(place, document), *check_rules(document)]
    return document


def inherited(
    place: EntryPlace, documents: Mapping[str, DocumentNode], profiles: Profiles | None = None
) -> DocumentNode:
    """An entry merged over its defaults. The nearer folder wins and, within a folder, the environment's file. The
    profiles of its typology and throughput have the lowest priority."""
    found = [spelled_out(document) for document in (*_defaults(place, documents), documents[place.path])]
    merged: DocumentNode = reduce(inherit, found)
    under = profiles.under(merged) if profiles else []
    merged = reduce(inherit, [*under, *found])
    return merged


def _defaults(place: EntryPlace, documents: Mapping[str, DocumentNode]) -> Iterator[DocumentNode]:
    levels = ["", place.company, f"{place.company}/{place.domain}", place.folder]
    for level in levels:
        for stem in ("defaults", f"defaults.{place.env}"):
            for extension in _EXTENSIONS:
                found = documents.get(f"{level}/{stem}.{extension}".lstrip("/"))
                if found is not None:
                    yield found


def _built(
    place: EntryPlace,
    document: DocumentNode,
    convention: Convention,
    defaults: TopicSettings,
    problems: list[CatalogProblem],
) -> CatalogEntry:
    topic = _topic_of(place, document, convention)
    document = translate_flush(given(document))
    plain = document.plain()
    kafka = _kafka(document, plain, problems)
    settings = _settings(place, topic, document, convention, defaults, problems)
    entry = CatalogEntry(place, topic, kafka, settings, plain)
    problems += _undecided(entry, document)
    return entry


def _topic_of(place: EntryPlace, document: DocumentNode, convention: Convention) -> str:
    plain = given(document).plain()
    topic = str(plain.get("kafka", {}).get("name") or convention.topic_name(place, plain))
    try:
        return check_topic(topic)
    except ConfigurationError as error:
        raise _fail(document, "kafka.name", error) from error


def _fail(document: DocumentNode, where: str, error: ConfigurationError) -> Mistake:
    node = document.find(where) or document.find(where.partition(".")[0]) or document
    return Mistake(node.problem(where, error.message, error.next_step))


def _settings(
    place: EntryPlace,
    topic: str,
    document: DocumentNode,
    convention: Convention,
    defaults: TopicSettings,
    problems: list[CatalogProblem],
) -> TopicSettings:
    plain = document.plain()
    options: dict[str, object] = {
        "dataset": convention.dataset_name(place, plain) or defaults.destination.dataset,
        "table": convention.table_name(place, plain),
        "format": _format(plain),
    }
    places = options_of()
    for option, where in places.items():
        node = document.find(where)
        if node is not None:
            try:
                value = _option_value(option, node.plain())
                OPTIONS[option].type.parse(option, text_of(value))
                options[option] = value
            except ConfigurationError as error:
                problems.append(_fail(document, where, error).problem)
    try:
        made = defaults.with_options(**options).for_topic(topic)
        _check_target(made, topic)
        return made
    except ConfigurationError as error:
        # If the message is about one option, it begins with the option's name.
        option = re.split(r"[=:\s]", error.message, maxsplit=1)[0]
        raise _fail(document, places.get(option, "destination"), error) from error


def _check_target(settings: TopicSettings, topic: str) -> None:
    destination = settings.destination
    check_datasets(destination.dataset, destination.error_dataset)
    if not destination.by_record:
        destination.table_for(topic)  # checks the names
    for name in destination.template.inputs:
        if name.startswith("topic"):
            raise ConfigurationError(
                f"table: the topic {topic} has no {name}", next_step="its parts: {topic.1}, …"
            )


def _format(plain: Mapping[str, Any]) -> str:
    encoding = str(plain.get("encoding", "avro"))
    found = _FORMATS.get(encoding, encoding)
    return "json_columns" if found == "json" and plain.get("records", {}).get("json") == "columns" else found


def _option_value(option: str, value: Any) -> object:
    return option_text(value) if option == "event_date" and isinstance(value, dict) else value


def _kafka(document: DocumentNode, plain: Mapping[str, Any], problems: list[CatalogProblem]) -> KafkaTopic:
    section = plain.get("kafka", {})
    config = {str(key): _config_text(value) for key, value in section.get("config", {}).items()}
    if "retention" in section:
        try:
            config["retention.ms"] = str(_retention_ms(document, str(section["retention"])))
        except Mistake as mistake:
            problems.append(mistake.problem)
    if "compaction" in plain:
        value = plain["compaction"]
        policy = CLEANUP_POLICIES[value] if isinstance(value, str) else "compact" if value else "delete"
        config.setdefault("cleanup.policy", policy)
    return KafkaTopic(section.get("partitions"), section.get("replication"), config)


def _config_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


_UNITS: Final[Mapping[str, int]] = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def _retention_ms(document: DocumentNode, text: str) -> int:
    if text == "forever":
        return -1
    matched = re.fullmatch(r"(\d+)([smhd])", text)
    if matched is None:
        error = ConfigurationError(f"{text!r} is not a duration", next_step="12h, 7d, or forever")
        raise _fail(document, "kafka.retention", error)
    return int(matched[1]) * _UNITS[matched[2]]


def _undecided(entry: CatalogEntry, document: DocumentNode) -> Iterator[CatalogProblem]:
    """Problems with wrong levels, and with HIGH personal data of an archived topic that has no decision."""
    pii = entry.document.get("pii", {})
    tags: Mapping[str, object] = pii.get("tags", {})
    for path, level in tags.items():
        if level not in PII_LEVELS:
            yield _fail(document, "pii.tags", _bad_level(path, level)).problem
    if not entry.archived:
        return
    if pii.get("level") == "HIGH" and not entry.settings.privacy.decisions:
        error = ConfigurationError("HIGH personal data without a decision", next_step=_DECIDE)
        yield _fail(document, "pii.level", error).problem
        return
    high = [path for path, level in tags.items() if level == "HIGH"]
    if missing := undecided(high, entry.settings.privacy.decisions):
        error = ConfigurationError(
            f"no decision about fields with the tag HIGH: {', '.join(missing)}", next_step=_DECIDE
        )
        yield _fail(document, "pii.tags", error).problem


_DECIDE: Final = "pii: {fields: {email: pseudonym, …}}, or remove archiver from consumers"


def _bad_level(path: str, level: object) -> ConfigurationError:
    return ConfigurationError(
        f"{path}: {level!r} is not a level", next_step=f"one of {', '.join(PII_LEVELS)}"
    )


def _stem(path: str) -> str:
    return path.rpartition("/")[2].rpartition(".")[0]
