"""Topics and subjects in memory, for the catalog's commands."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from kbq_assets.core.catalog.access import Acl, Allow, LiveAccess
from kbq_assets.core.catalog.changes import AddPartitions, Change, CreateTopic, LiveTopic
from kbq_assets.core.errors import Refused, Unavailable
from kbq_assets.ports.registry import LatestSchema


class FakeTopicAdmin:
    """The `TopicAdmin` port. A new topic has one partition unless it names a number."""

    def __init__(self) -> None:
        self.live: dict[str, LiveTopic] = {}
        self.acls: set[Acl] = set()
        #: Why there are no ACLs, as a broker without an authorizer would say.
        self.problem = ""
        #: Settings of topics that do not set them.
        self.defaults = {"cleanup.policy": "delete"}

    def topics(self) -> Mapping[str, LiveTopic]:
        return {name: replace(topic, defaults=self.defaults) for name, topic in self.live.items()}

    def access(self) -> LiveAccess:
        return LiveAccess(problem=self.problem) if self.problem else LiveAccess(frozenset(self.acls))

    def apply(self, change: Change) -> None:
        found = self.live.get(change.topic)
        if isinstance(change, Allow):
            if self.problem:
                raise Refused(f"{change}: {self.problem}", next_step="give the broker an authorizer")
            self.acls |= set(change.acls)
        elif isinstance(change, CreateTopic):
            partitions = change.partitions if change.partitions > 0 else 1
            created = LiveTopic(partitions, max(1, change.replication), dict(change.config))
            self.live.setdefault(change.topic, created)
        elif found is None:
            raise Refused(f"{change}: no such topic", next_step="create it")
        elif isinstance(change, AddPartitions):
            if change.after <= found.partitions:
                raise Refused(f"{change}: partitions are only added", next_step="fix the entry")
            self.live[change.topic] = LiveTopic(change.after, found.replication, found.config)
        else:
            if any(not key.islower() for key in change.after):
                raise Refused(f"{change}: unknown setting", next_step="fix the entry")
            config = {**found.config, **change.after}
            self.live[change.topic] = LiveTopic(found.partitions, found.replication, config)


class FakeSubjects:
    """The `SubjectRegistry` port. A version is compatible when no field of the last one has another type."""

    def __init__(self) -> None:
        self.versions: dict[str, list[tuple[str, str]]] = {}
        self._ids: dict[str, int] = {}
        #: Subjects about which the registry answers with an error.
        self.broken: set[str] = set()

    def names(self) -> frozenset[str]:
        return frozenset(self.versions)

    def latest(self, subject: str) -> LatestSchema:
        self._answers(subject)
        schema, kind = self.versions[subject][-1]
        return LatestSchema(kind, schema)

    def incompatibilities(self, subject: str, schema: str, schema_type: str) -> Sequence[str]:
        self._answers(subject)
        if subject not in self.versions:
            return ()
        known, kind = self.versions[subject][-1]
        if kind != schema_type:
            return (f"TYPE_CHANGED: {kind}",)
        before, after = _fields(known, kind), _fields(schema, kind)
        return [
            f"TYPE_MISMATCH: {name}" for name in sorted(before.keys() & after) if before[name] != after[name]
        ]

    def is_registered(self, subject: str, schema: str, schema_type: str) -> bool:
        self._answers(subject)
        known = [text for text, kind in self.versions.get(subject, ()) if kind == schema_type]
        return any(_fields(text, schema_type) == _fields(schema, schema_type) for text in known)

    def _answers(self, subject: str) -> None:
        if subject in self.broken:
            raise Unavailable(f"subject {subject}: HTTP 500", next_step="check the registry's log")

    def register(self, subject: str, schema: str, schema_type: str) -> int:
        if self.incompatibilities(subject, schema, schema_type):
            raise Refused(f"{subject}: not compatible", next_step="fix the schema")
        if not self.is_registered(subject, schema, schema_type):
            self.versions.setdefault(subject, []).append((schema, schema_type))
        return self._ids.setdefault(schema, len(self._ids) + 1)


def _fields(schema: str, schema_type: str) -> dict[str, object]:
    if schema_type == "PROTOBUF":
        return {number: kind for kind, number in re.findall(r"(\w+) \w+ = (\d+)", schema)}
    if schema_type == "JSON":
        return {name: each["type"] for name, each in json.loads(schema)["properties"].items()}
    return {field["name"]: field["type"] for field in json.loads(schema)["fields"]}
