"""Draft entries for an existing cluster, for `kbq catalog init`."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from kbq_assets.core.catalog.changes import LiveTopic

#: Extensions of schema files, by encoding.
EXTENSIONS: Final[Mapping[str, str]] = {"avro": ".avsc", "json-schema": ".json", "protobuf": ".proto"}


@dataclass(frozen=True)
class DraftFile:
    """A file to write: its path below the catalog's folder, and its text."""

    path: str
    text: str

    @property
    def is_entry(self) -> bool:
        """Whether it is an entry, not a schema."""
        return self.path.endswith("/topic.yaml")


@dataclass(frozen=True)
class KnownSchemas:
    """A topic's encoding, and its schemas ``value`` and ``key`` in the registry."""

    encoding: str
    schemas: Mapping[str, str] = field(default_factory=dict)


def draft_entries(
    topics: Mapping[str, LiveTopic],
    known: Mapping[str, KnownSchemas],
    company: str,
    domain: str,
    env: str,
    archived: Collection[str] = (),
    team: str = "",
) -> list[DraftFile]:
    """One entry for each topic, with the ``known`` schemas. Set ``team`` if it is not the owner in the defaults.

    Only topics that a person chose are ``archived`` (other entries can get the consumer `archiver` later), because only
    a person knows which data is personal.
    """
    drafts = []
    for topic, part in _parts(topics).items():
        folder, found = f"{company}/{domain}/{part}/{env}", known.get(topic, KnownSchemas("json"))
        drafts.append(
            DraftFile(f"{folder}/topic.yaml", _text(topic, topics[topic], found, topic in archived, team))
        )
        for name, schema in sorted(found.schemas.items(), reverse=True):
            path = f"{folder}/schemas/{name}{EXTENSIONS[found.encoding]}"
            drafts.append(DraftFile(path, _readable(schema, found.encoding)))
    return drafts


def draft_root(env: str, team: str = "") -> list[DraftFile]:
    """`catalog.yaml` with names and rules, and `defaults.yaml` with first checks."""
    owner = f"ownership: {{team: {json.dumps(team)}}}\n" if team else "# ownership: {team: sales}\n"
    return [
        DraftFile(
            "catalog.yaml",
            "# Names and rules; docs/catalog.md explains every key.\n"
            'names:\n  dataset: "{domain}"\n  table: "{topic}"\n'
            "rules:\n  mandatory: [description]\n"
            f"envs: [{env}]\n",
        ),
        DraftFile(
            "defaults.yaml",
            "# Every entry inherits these values; an entry's own win.\n"
            f"{owner}"
            "checks:\n"
            "  max_lag_seconds: 7200     # a record may be unread for two hours\n"
            "  max_age_seconds: 14400    # and missing from its table for four\n"
            "  max_error_share: 0.05     # of the last records\n",
        ),
    ]


def _readable(schema: str, encoding: str) -> str:
    """A schema with line breaks, because registries store JSON in one line."""
    if encoding == "protobuf":
        return schema.rstrip() + "\n"
    return json.dumps(json.loads(schema), indent=2, ensure_ascii=False) + "\n"


def _parts(topics: Mapping[str, LiveTopic]) -> dict[str, str]:
    """A folder name for each topic that the default rule for names allows."""
    taken: dict[str, str] = {}
    for topic in sorted(topics):
        base = re.sub(r"[^a-z0-9-]+", "-", topic.lower()).strip("-")
        base = base if base[:1].isalpha() else f"topic-{base}".rstrip("-")
        part, number = base, 2
        while part in taken.values():
            part, number = f"{base}-{number}", number + 1
        taken[topic] = part
    return taken


def _text(topic: str, live: LiveTopic, known: KnownSchemas, is_archived: bool, team: str) -> str:
    is_plain = known.encoding == "json"
    config = "".join(f"\n    {key}: {json.dumps(value)}" for key, value in sorted(live.config.items()))
    return (
        f"description: {json.dumps(f'Topic {topic}: describe it.')}\n"
        f"encoding: {known.encoding}\n"
        + (f"ownership: {{team: {json.dumps(team)}}}\n" if team else "")
        + ("records: {json: columns}  # payload: the whole document in one column\n" if is_plain else "")
        + ("records: {key_format: avro, tombstones: skip}\n" if known.encoding == "debezium" else "")
        + "producers: []\n"
        + (
            "consumers: [archiver]\n"
            if is_archived
            else "# Add archiver to extract the topic.\nconsumers: []\n"
        )
        + "kafka:\n"
        f"  name: {json.dumps(topic)}\n"
        f"  partitions: {live.partitions}\n"
        f"  replication: {live.replication}\n" + (f"  config:{config}\n" if config else "")
    )
