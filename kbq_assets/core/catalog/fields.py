"""What an entry may say. One table for validation, for the JSON Schema of editors, and for the documentation.

The options of extraction are `TopicSettings`' own: an option's name, type, default and choices are written once, in
core/topics/options.py; here each gets its section.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kbq_assets.core.topics.business_time import FORMATS
from kbq_assets.core.topics.options import CHOICES, TopicSettings


@dataclass(frozen=True)
class Field:
    """A key. ``kind``: string, integer, number, boolean, strings (a list), map (of scalars) or section. A string with
    ``fields`` may be a section of these instead."""

    kind: str
    doc: str
    choices: tuple[str, ...] = ()
    fields: Mapping[str, Field] = field(default_factory=dict)
    #: The option of `TopicSettings` that the key sets, "" for none.
    option: str = ""


def _option(name: str, doc: str) -> Field:
    kinds = {str: "string", int: "integer", float: "number", bool: "boolean"}
    kind = "strings" if name in LISTS else kinds[_TYPES[name]]
    return Field(kind, doc, CHOICES.get(name, ()), option=name)


def _section(doc: str, **fields: Field) -> Field:
    return Field("section", doc, fields=types.MappingProxyType(fields))


_TYPES: Final = typing.get_type_hints(TopicSettings)
#: Options that are comma-separated in the source list, and lists here.
LISTS: Final = frozenset({"cluster_by", "blocking", "tables"}) & _TYPES.keys()

TYPOLOGIES: Final = ("event", "entity", "command", "log", "reference")
SCOPES: Final = ("public", "private")
ENCODINGS: Final = ("avro", "json", "protobuf", "json-schema")
PII_LEVELS: Final = ("NONE", "LOW", "MEDIUM", "HIGH")

#: Sections that hold options of extraction, and what each option means there.
_OPTIONS: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "destination": (
        "Where rows go.",
        {
            "dataset": "dataset of the tables, or a template; its bad records go to kbq_errors in it",
            "table": "table, or a template such as orders_{header.country}; by default the name convention's",
            "route": "topic: by table; record_name: by the Avro record's name; python:<name>: by a package's function",
            "tables": "patterns of the tables that records may choose; none: any",
            "max_tables": "most tables of a window; records of more become error rows",
            "error_dataset": "the dataset of kbq_errors, where dataset is a template",
            "cluster_by": "columns that tables are clustered by, at most 4",
            "on_incompatible": "a schema that contradicts the table parks it, or goes to a new table or columns beside",
            "require_partition_filter": "queries must name dates",
            "partition_expiry_days": "partitions older than that are dropped by the warehouse; 0 keeps them",
        },
    ),
    "records": (
        "What becomes of single records.",
        {
            "keys": "add the column _kafka_key",
            "headers": "add the column _kafka_headers",
            "errors": "bad records: rows of the error table, skipped, or a stop",
            "error_share": "share of bad records in a window above which the partition stops",
            "error_share_records": "windows with fewer records are not judged by their share",
            "tombstones": "null values: rows of the error table, skipped, or rows of the table",
            "max_record_bytes": "larger records are bad records",
        },
    ),
    "extraction": (
        "How the topic is read.",
        {
            "start": "where a topic starts that is seen for the first time",
            "on_retention_loss": "stop, or record: accept positions that were deleted unread, counted as lost",
            "codec": "compression of staged files",
            "priority": "high, normal, low, or 1 to 100: the weight when turns and limits are shared",
            "restart": "auto: a stop that may pass is tried again; manual: it waits for an operator",
            "min_records": "a partition with fewer records waits",
            "min_bytes": "the same in bytes of values",
            "max_wait_seconds": "but no longer than this",
            "max_records": "most records that one run reads",
            "max_bytes": "most bytes of values that one run reads",
            "max_seconds": "task seconds of one run after which no task starts",
            "window_seconds": "a window ends after so many seconds; 0: KBQ_WINDOW_SECONDS",
            "window_records": "after so many records; 0: KBQ_WINDOW_RECORDS",
            "window_bytes": "after so many staged bytes; 0: KBQ_WINDOW_BYTES",
        },
    ),
}
_MORE: Final = {
    "records": {
        "json": Field(
            "string",
            "JSON topics: whole documents in the column payload, or their fields as columns",
            ("payload", "columns"),
        )
    },
    "destination": {
        "unknown": Field(
            "string",
            "records whose table is none of tables: rows of the error table, or create it",
            CHOICES["unknown_table"],
            option="unknown_table",
        )
    },
}
#: Options with keys of their own elsewhere in an entry.
_ELSEWHERE: Final = frozenset(
    {
        "unknown_table",
        "event_date",
        "format",
        "owner",
        "cost_center",
        "pii",
        "pii_errors",
        "pii_others",
        "declared",
    }
)
#: What checks and later sections take: every option that has no place above.
_CHECKS: Final = sorted(
    f.name
    for f in dataclasses.fields(TopicSettings)
    if f.name not in _ELSEWHERE and not any(f.name in options for _, options in _OPTIONS.values())
)

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
    "ownership": _section(
        "Who answers for the data.",
        team=Field("string", "the team; owner and label of tables", option="owner"),
        email=Field("string", "an address for people"),
        slack=Field("string", "a channel"),
        cost_center=Field("string", "who pays", option="cost_center"),
    ),
    "pii": _section(
        "Personal data.",
        level=Field("string", "the highest level of any field", PII_LEVELS),
        fields=Field(
            "map",
            "what becomes of each field, by dotted path: drop, null, pseudonym, truncate:3, generalise:year, keep",
            option="pii",
        ),
        tags=Field("map", "levels of single fields, by dotted path, where the schema has no tags"),
        error_rows=Field(
            "string",
            "bad records: withhold their value, key and headers; seal them with KBQ_PII_SEAL_KEY; or drop the row",
            CHOICES["pii_errors"],
            option="pii_errors",
        ),
        others=Field(
            "string",
            "fields of JSON that nobody decided about and no schema declares: stop the partition, drop or keep them",
            CHOICES["pii_others"],
            option="pii_others",
        ),
    ),
    "producers": Field("strings", "Programs that write the topic."),
    "consumers": Field("strings", "Programs that read it; `archiver` means: archive it with KBQ."),
    "partition_time": Field(
        "string",
        "Where the business time comes from: a field, a.b through records; auto; or keys.",
        option="event_date",
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
        name=Field("string", "its name, where it does not follow the convention"),
        partitions=Field("integer", "number of partitions"),
        replication=Field("integer", "replicas"),
        retention=Field("string", "how long records are kept: 12h, 7d, or forever"),
        config=Field("map", "other settings of the topic, by Kafka's names"),
    ),
    **{
        name: _section(
            doc,
            **{key: _option(key, text) for key, text in options.items() if key in _TYPES},
            **_MORE.get(name, {}),
        )
        for name, (doc, options) in _OPTIONS.items()
    },
    "checks": _section(
        "When a check fails, and which of them hold the load.",
        **{name: _option(name, f"as in the source list: {name}") for name in _CHECKS},
    ),
    "columns": Field("map", "What columns hold, by dotted path: over the schema's own words."),
    "labels": Field("map", "Labels for people and tools; in BigQuery, labels of the table."),
}

NAMES: Final = _section(
    "Templates of names, from {company} {domain} {topic} {env} {scope} {encoding}.",
    topic=Field("string", "of Kafka topics"),
    dataset=Field("string", "of datasets"),
    table=Field("string", "of tables"),
)
RULES: Final = _section(
    "What `kbq catalog validate` demands beyond what KBQ needs.",
    part=Field("string", "regular expression for company, domain, topic and env"),
    mandatory=Field("strings", "keys that every entry has, such as ownership.team"),
    time_fields=Field(
        "string", "regular expression of schema fields that are times: they must be typed as such"
    ),
)
ROOT: Final[Mapping[str, Field]] = {
    "names": NAMES,
    "rules": RULES,
    "envs": Field("strings", "The environments there may be."),
    "ignore": Field(
        "strings", "Topics that need no entry, patterns allowed; those that begin with '_' never do."
    ),
    "access": _section(
        "Who may write and read topics: without it ACLs are nobody's business here.",
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
    """Where each option of `TopicSettings` stands in an entry, as dotted paths."""
    places: dict[str, str] = {}
    for key, each in fields.items():
        if each.option:
            places[each.option] = prefix + key
        places |= options_of(each.fields, f"{prefix}{key}.")
    return places
