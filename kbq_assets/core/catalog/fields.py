"""The keys of an entry: one table for validation, for the JSON Schema of editors, and for the documentation.

The options of a topic are declared in core/topics/options.py, with their places here.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kbq_assets.core.topics.business_time import FORMATS
from kbq_assets.core.topics.topic_settings import OPTIONS


@dataclass(frozen=True)
class Field:
    """A key. ``kind``: string, integer, number, boolean, strings (a list), map (of scalars) or section. A string with
    ``fields`` may be a section of these instead."""

    kind: str
    doc: str
    choices: tuple[str, ...] = ()
    fields: Mapping[str, Field] = field(default_factory=dict)
    #: The topic's option that the key sets, "" for none.
    option: str = ""


def _option(name: str) -> Field:
    """The key of an option."""
    declared = OPTIONS[name]
    return Field(declared.type.kind, declared.plain_help, declared.type.choices, option=name)


def _section(doc: str, **fields: Field) -> Field:
    return Field("section", doc, fields=types.MappingProxyType(fields))


TYPOLOGIES: Final = ("event", "entity", "command", "log", "reference")
SCOPES: Final = ("public", "private")
ENCODINGS: Final = ("avro", "json", "protobuf", "json-schema")
PII_LEVELS: Final = ("NONE", "LOW", "MEDIUM", "HIGH")


def _options(doc: str, section: str, **more: Field) -> Field:
    """A section with all options that are placed in it, and ``more`` keys."""
    placed = {name: each.place.rpartition(".") for name, each in OPTIONS.items()}
    keys = {key: _option(name) for name, (where, _, key) in placed.items() if where == section}
    return _section(doc, **keys, **more)


ENTRY: Final[Mapping[str, Field]] = {
    "description": Field("string", "What the topic holds, in a sentence."),
    "typology": Field("string", "What a record is.", TYPOLOGIES),
    "scope": Field("string", "Who may read the topic.", SCOPES),
    "encoding": Field("string", "How values are encoded.", ENCODINGS),
    "compaction": Field("boolean", "Whether Kafka keeps the last record of each key alone."),
    "throughput": _section(
        "What producers expect to send.",
        records_per_second=Field("number", "on an average day"),
        peak_records_per_second=Field("number", "at its busiest"),
        record_bytes=Field("integer", "of an average value"),
    ),
    "ownership": _options(
        "Who is responsible for the data.",
        "ownership",
        email=Field("string", "an address for people"),
        slack=Field("string", "a channel"),
    ),
    "pii": _options(
        "Personal data.",
        "pii",
        level=Field("string", "the highest level of any field", PII_LEVELS),
        tags=Field("map", "levels of single fields, by dotted path, if the schema has no tags"),
    ),
    "producers": Field("strings", "Programs that write the topic."),
    "consumers": Field("strings", "Programs that read it; `archiver` is KBQ, which archives it."),
    "partition_time": dataclasses.replace(
        _option("event_date"),
        fields=types.MappingProxyType(
            {
                "field": Field("string", "the field"),
                "candidates": Field("strings", "fields: the first that a schema has"),
                "format": Field("string", "of plain numbers", tuple(name for name in FORMATS if name)),
            }
        ),
    ),
    "kafka": _section(
        "The topic on the broker.",
        name=Field("string", "its name, if it does not follow the convention"),
        partitions=Field("integer", "number of partitions"),
        replication=Field("integer", "replicas"),
        retention=Field("string", "how long records are kept: 12h, 7d, or forever"),
        config=Field("map", "other settings of the topic, by Kafka's names"),
    ),
    "destination": _options("Where rows go.", "destination"),
    "records": _options(
        "What happens to single records.",
        "records",
        json=Field(
            "string",
            "JSON topics: whole documents in the column payload, or their fields as columns",
            ("payload", "columns"),
        ),
    ),
    "extraction": _options("How the topic is read.", "extraction"),
    "checks": _options("When a check fails, and which checks block loads.", "checks"),
    "columns": Field("map", "Descriptions of columns, by dotted path; they override the schema's."),
    "labels": Field("map", "Labels for people and tools; in BigQuery, labels of the table."),
}

NAMES: Final = _section(
    "Templates of names, from {company} {domain} {topic} {env} {scope} {encoding}.",
    topic=Field("string", "of Kafka topics"),
    dataset=Field("string", "of datasets"),
    table=Field("string", "of tables"),
)
RULES: Final = _section(
    "Additional checks of `kbq catalog validate`.",
    part=Field("string", "regular expression for company, domain, topic and env"),
    mandatory=Field("strings", "keys that every entry has, such as ownership.team"),
    time_fields=Field(
        "string", "regular expression of schema fields that are times: their types must be times"
    ),
)
ROOT: Final[Mapping[str, Field]] = {
    "names": NAMES,
    "rules": RULES,
    "envs": Field("strings", "The allowed environments."),
    "ignore": Field(
        "strings", "Topics that need no entry, patterns allowed; topics that begin with '_' never need one."
    ),
    "access": _section(
        "Who may write and read topics; without this section KBQ leaves ACLs alone.",
        principal=Field("string", "the principal of a producer or consumer, such as User:{name}"),
        principals=Field("map", "principals that do not follow it, by producer or consumer"),
        groups=Field("string", "consumer groups, such as {name} or {name}-*; none are granted by default"),
    ),
    "policy_tags": Field(
        "map",
        "BigQuery's policy tag of each level of personal data: projects/…/locations/…/taxonomies/…/policyTags/….",
    ),
}


def options_of(fields: Mapping[str, Field] = ENTRY, prefix: str = "") -> dict[str, str]:
    """The dotted path of each option in an entry."""
    places: dict[str, str] = {}
    for key, each in fields.items():
        if each.option:
            places[each.option] = prefix + key
        places |= options_of(each.fields, f"{prefix}{key}.")
    return places
