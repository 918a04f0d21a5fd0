"""The keys of an entry: one table for validation, for the JSON Schema that editors use, and for the documentation.

The modules core/topics/*options.py declare the options of a topic, with their places here.
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
class CatalogField:
    """A key. ``kind``: string, integer, number, boolean, switch (a boolean, or one of ``choices``), strings (a list),
    map (of scalars), section, or sections (a map from names to sections). A string with ``fields`` may also be a
    section with these."""

    kind: str
    doc: str
    choices: tuple[str, ...] = ()
    fields: Mapping[str, CatalogField] = field(default_factory=dict)
    #: The topic's option that the key sets, "" if it sets none.
    option: str = ""


def _option(name: str) -> CatalogField:
    declared = OPTIONS[name]
    return CatalogField(declared.type.kind, declared.plain_help, declared.type.choices, option=name)


def _section(doc: str, **fields: CatalogField) -> CatalogField:
    return CatalogField("section", doc, fields=types.MappingProxyType(fields))


TYPOLOGIES: Final = ("event", "entity", "command", "job-queue", "log", "reference")
SCOPES: Final = ("public", "private")
ENCODINGS: Final = ("avro", "json", "protobuf", "json-schema", "debezium")
PII_LEVELS: Final = ("NONE", "LOW", "MEDIUM", "HIGH")
#: Kafka's cleanup.policy by the value in an entry.
CLEANUP_POLICIES: Final[Mapping[str, str]] = {
    "none": "delete",
    "delete": "delete",
    "compact": "compact",
    "compact,delete": "compact,delete",
}


def _options(doc: str, section: str, **more: CatalogField) -> CatalogField:
    """A section with all options placed in it, plus ``more`` keys."""
    placed = {name: each.place.rpartition(".") for name, each in OPTIONS.items()}
    keys = {key: _option(name) for name, (where, _, key) in placed.items() if where == section}
    return _section(doc, **keys, **more)


def _short(doc: str, section: str, **more: CatalogField) -> CatalogField:
    """A section that may also be a text: the value of its main key."""
    return dataclasses.replace(_options(doc, section, **more), kind="string")


ENTRY: Final[Mapping[str, CatalogField]] = {
    "description": CatalogField("string", "The topic's content, in a sentence."),
    "typology": CatalogField(
        "string", f"The kind of its records: {', '.join(TYPOLOGIES)}, or one of `catalog.yaml`'s typologies."
    ),
    "scope": CatalogField("string", "Who may read the topic.", SCOPES),
    "encoding": CatalogField("string", "How values are encoded.", ENCODINGS),
    "compaction": CatalogField(
        "switch", "Whether Kafka keeps only the last record of each key.", (*CLEANUP_POLICIES,)
    ),
    "throughput": CatalogField("string", "How much producers send: one of `catalog.yaml`'s throughputs."),
    "ownership": _short(
        "Who is responsible for the data: a team, or",
        "ownership",
        email=CatalogField("string", "an address for people"),
        slack=CatalogField("string", "a channel"),
    ),
    "pii": _short(
        "Personal data: a level, or",
        "pii",
        level=CatalogField("string", "the highest level of any field", PII_LEVELS),
        tags=CatalogField("map", "levels of single fields, by dotted path, if the schema has no tags"),
    ),
    "producers": CatalogField("strings", "Programs that write the topic."),
    "consumers": CatalogField(
        "strings", "Programs that read it; `archiver` stands for KBQ, which archives it."
    ),
    "partition_time": dataclasses.replace(
        _option("event_date"),
        fields=types.MappingProxyType(
            {
                "field": CatalogField("string", "the field"),
                "candidates": CatalogField("strings", "fields; the first in the schema counts"),
                "format": CatalogField(
                    "string", "format of plain numbers", tuple(name for name in FORMATS if name)
                ),
            }
        ),
    ),
    "kafka": _section(
        "The topic on the broker.",
        name=CatalogField("string", "its name, if it does not follow the convention"),
        partitions=CatalogField("integer", "number of partitions"),
        replication=CatalogField("integer", "replicas"),
        retention=CatalogField("string", "how long records are kept: 12h, 7d, or forever"),
        config=CatalogField("map", "other settings of the topic, by Kafka's names"),
    ),
    "destination": _options("The tables that get the rows.", "destination"),
    "records": _options(
        "How records are read, and what happens to bad ones.",
        "records",
        json=CatalogField(
            "string",
            "JSON topics: whole documents in the column payload, or their fields as columns",
            ("payload", "columns"),
        ),
    ),
    "extraction": _options("How the topic is read.", "extraction"),
    "flush": _section(
        "When waiting records become a file: at the first of these limits (docs/tuning.md#small-data-may-wait).",
        records=CatalogField(
            "integer", "number of a partition's records (500000 by default; 0: no such limit)"
        ),
        bytes=CatalogField("integer", "bytes of their values (0 by default: no such limit)"),
        seconds=CatalogField("integer", "age of the oldest record, by its Kafka time (1200 by default)"),
        hours=CatalogField(
            "boolean", "whether to stop waiting at the end of the hour by the data clock (true by default)"
        ),
    ),
    "checks": _options("Limits of checks, and the checks that block loads.", "checks"),
    "loading": _options("How rows are loaded into tables.", "loading"),
    "lake": _options("When a lake's small files are compacted (docs/iceberg.md#compaction).", "lake"),
    "schema_rules": _section(
        "Rules for the schemas of entries, usually in a `defaults.yaml` or a typology.",
        mandatory=CatalogField(
            "map", "fields that value schemas must have, each `any`, `text`, `number` or `time`"
        ),
        names=CatalogField("string", "regular expression that the names of all fields must match"),
    ),
    "columns": CatalogField("map", "Descriptions of columns, by dotted path; they override the schema's."),
    "labels": CatalogField("map", "Labels for people and tools; in BigQuery, labels of the table."),
}

NAMES: Final = _section(
    "Templates of names, with {company} {domain} {topic} {env} {scope} {encoding}.",
    topic=CatalogField("string", "name of Kafka topics"),
    dataset=CatalogField("string", "name of datasets"),
    table=CatalogField("string", "name of tables"),
)
RULES: Final = _section(
    "Additional checks of `kbq catalog validate`.",
    part=CatalogField("string", "regular expression that company, domain, topic and env must match"),
    mandatory=CatalogField("strings", "keys that every entry must have, such as ownership.team"),
    time_fields=CatalogField(
        "string", "regular expression of names of schema fields whose types must be times"
    ),
)
ROOT: Final[Mapping[str, CatalogField]] = {
    "names": NAMES,
    "rules": RULES,
    "envs": CatalogField("strings", "The allowed environments."),
    "ignore": CatalogField(
        "strings",
        "Topics or patterns of topics that need no entry; topics that begin with '_' never need one.",
    ),
    "typologies": CatalogField("sections", "Defaults of entries, by typology."),
    "throughputs": CatalogField(
        "sections", "Defaults of entries, by throughput, such as the number of partitions."
    ),
    "access": _section(
        "Who may write and read topics, tables, lakes and backups. Without this section, KBQ grants nothing.",
        principal=CatalogField("string", "the principal of a producer or consumer, such as User:{name}"),
        principals=CatalogField(
            "map", "principals that do not follow this template, by producer or consumer"
        ),
        groups=CatalogField(
            "string", "consumer groups, such as {name} or {name}-*; none are granted by default"
        ),
        readers=CatalogField(
            "map",
            "Google users, groups and service accounts that may read, by place: dataset/DATASET, "
            "table/DATASET.TABLE, lake/DATASET, backup, backup/TOPIC",
        ),
    ),
    "lifecycle": CatalogField(
        "map",
        "Cheaper storage for old objects in a bucket, for `backup`, `lake` or `lake/DATASET`, such as NEARLINE 30, "
        "COLDLINE 90 (days).",
    ),
    "lake_in_bigquery": _section(
        "External tables through which BigQuery reads the tables of a lake in gs://.",
        connection=CatalogField(
            "string", "BigQuery's connection to Cloud Storage: project.location.name; mandatory here"
        ),
        dataset=CatalogField("string", "dataset of the external tables ({dataset}_lake by default)"),
        project=CatalogField("string", "project of these datasets (the connection's by default)"),
    ),
    "policy_tags": CatalogField(
        "map",
        "BigQuery's policy tag for each level of personal data: projects/…/locations/…/taxonomies/…/policyTags/….",
    ),
}


def options_of(fields: Mapping[str, CatalogField] = ENTRY, prefix: str = "") -> dict[str, str]:
    """The dotted path of each option in an entry."""
    places: dict[str, str] = {}
    for key, each in fields.items():
        if each.option:
            places[each.option] = prefix + key
        places |= options_of(each.fields, f"{prefix}{key}.")
    return places
