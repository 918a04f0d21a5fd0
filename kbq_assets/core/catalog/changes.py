"""Differences between catalog and cluster, as values to review before they are applied."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from kbq_assets.core.catalog.access import Allow
from kbq_assets.core.catalog.entries import CatalogEntry
from kbq_assets.core.plurals import counted

#: Values for topics whose entry does not set them; -1 means the broker's default.
DEFAULT_PARTITIONS: Final = -1
DEFAULT_REPLICATION: Final = -1


@dataclass(frozen=True)
class LiveTopic:
    """A topic on the broker. ``config`` has its own settings, ``defaults`` the broker's for all others."""

    partitions: int
    replication: int
    config: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict, compare=False)

    def setting(self, key: str) -> str:
        """The value in force, "" if the broker does not know the setting."""
        return self.config.get(key, self.defaults.get(key, ""))


@dataclass(frozen=True)
class CreateTopic:
    """Create a topic that only the catalog has."""

    topic: str
    partitions: int
    replication: int
    config: Mapping[str, str]

    def __str__(self) -> str:
        parts = [
            counted(self.partitions, "partition")
            if self.partitions > 0
            else "the broker's number of partitions"
        ]
        parts += [f"replication {self.replication}"] if self.replication > 0 else []
        parts += [f"{key}={value}" for key, value in sorted(self.config.items())]
        return f"create {self.topic}: {', '.join(parts)}"


@dataclass(frozen=True)
class AddPartitions:
    """Add partitions up to the catalog's number. New records of existing keys may then go to other partitions."""

    topic: str
    before: int
    after: int

    def __str__(self) -> str:
        return (
            f"add partitions to {self.topic}: {self.before} -> {self.after} (keys move to other partitions)"
        )


@dataclass(frozen=True)
class AlterConfig:
    """Change settings of a topic. ``before`` is "" for the broker's default."""

    topic: str
    before: Mapping[str, str]
    after: Mapping[str, str]

    def __str__(self) -> str:
        parts = [
            f"{key}: {self.before.get(key) or 'default'} -> {value}"
            for key, value in sorted(self.after.items())
        ]
        return f"alter {self.topic}: {', '.join(parts)}"


@dataclass(frozen=True)
class Difference:
    """A difference that KBQ does not change: fewer partitions, another replication factor, topics without an entry."""

    topic: str
    message: str

    def __str__(self) -> str:
        return f"{self.topic}: {self.message}"


Change: TypeAlias = CreateTopic | AddPartitions | AlterConfig | Allow


@dataclass(frozen=True)
class ChangePlan:
    """The changes to apply, in order, and the differences that people must resolve."""

    changes: tuple[Change, ...]
    differences: tuple[Difference, ...]


def plan_changes(
    entries: Iterable[CatalogEntry],
    live: Mapping[str, LiveTopic],
    ignored: Callable[[str], bool] = lambda topic: False,
) -> ChangePlan:
    """The changes that bring the broker's topics to the catalog's state. Settings that the catalog does not mention
    stay as they are. ``ignored`` topics need no entry."""
    changes: list[Change] = []
    differences: list[Difference] = []
    catalogd = {entry.topic: entry for entry in entries}
    for topic, entry in sorted(catalogd.items()):
        found = live.get(topic)
        if found is None:
            changes.append(_creation(entry))
        else:
            _compare(entry, found, changes, differences)
    for topic in sorted(live.keys() - catalogd.keys()):
        if not ignored(topic):
            differences.append(Difference(topic, "not in the catalog"))
    return ChangePlan(tuple(changes), tuple(differences))


def _creation(entry: CatalogEntry) -> CreateTopic:
    kafka = entry.kafka
    return CreateTopic(
        entry.topic,
        kafka.partitions or DEFAULT_PARTITIONS,
        kafka.replication or DEFAULT_REPLICATION,
        kafka.config,
    )


def _compare(
    entry: CatalogEntry, found: LiveTopic, changes: list[Change], differences: list[Difference]
) -> None:
    wanted = entry.kafka
    if wanted.partitions is not None and wanted.partitions > found.partitions:
        changes.append(AddPartitions(entry.topic, found.partitions, wanted.partitions))
    elif wanted.partitions is not None and wanted.partitions < found.partitions:
        message = f"{found.partitions} partitions, {wanted.partitions} in the catalog: Kafka cannot remove partitions"
        differences.append(Difference(entry.topic, message))
    if wanted.replication is not None and wanted.replication != found.replication:
        message = (
            f"replication {found.replication}, {wanted.replication} in the catalog: reassign replicas by hand"
        )
        differences.append(Difference(entry.topic, message))
    after = {key: value for key, value in wanted.config.items() if found.setting(key) != value}
    if after:
        changes.append(AlterConfig(entry.topic, {key: found.config.get(key, "") for key in after}, after))
