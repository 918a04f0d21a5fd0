"""Backups of one deployment: status, verification, the operator's commands, clean-up."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from kbq_assets.core.backup import commits as backup
from kbq_assets.core.backup.areas import AREAS, PERSONAL, area_of
from kbq_assets.core.config.roles import Role
from kbq_assets.core.errors import KbqError, NotFound
from kbq_assets.core.protocol.commits import Commit, StagedFile
from kbq_assets.core.protocol.names import commit_path, commit_path_of, shard_of
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.pipelines.backup.area import BackupArea
from kbq_assets.pipelines.backup.clean import clean_backups
from kbq_assets.pipelines.backup.status import BackupsStatus, read_backups
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.pipelines.operate import commands
from kbq_assets.pipelines.operate.clean import CleaningReport
from kbq_assets.pipelines.operate.commands import Proposal, StartAt
from kbq_assets.pipelines.operate.described import check_same_log, describe, position_lines
from kbq_assets.pipelines.protocol import state
from kbq_assets.ports.backup_schemas import keep_schema
from kbq_assets.ports.registry import SchemaRegistry

if TYPE_CHECKING:
    from kbq_assets.pipelines.backup.merge import MergeReport
    from kbq_assets.pipelines.backup.verify import Verified


_OF_TABLES: Final = re.compile(r"\bkbq (accept-gap|reset|resume|status)\b")


@contextmanager
def _naming_own_commands() -> Iterator[None]:
    """Errors of the tables' commands name those of backups: `kbq reset` would read the tables again."""
    try:
        yield
    except KbqError as error:
        error.next_step = _OF_TABLES.sub(
            lambda found: found[0].replace("kbq ", "kbq backup "), error.next_step
        )
        raise


@dataclass(frozen=True)
class Backups:
    """The backups of a deployment."""

    deployment: Deployment
    open_registry: Callable[[], SchemaRegistry]

    def status(self) -> BackupsStatus:
        deployment = self.deployment
        return read_backups(deployment.sources.read(), deployment.offsets, deployment.backup_area)

    def copies(self, tp: TopicPartition, offset: int) -> list[StagedFile]:
        """The files that contain an offset, one per epoch of the backup; empty for a topic without a backup. Raises
        Unavailable, StateError."""
        try:
            area = self.area(tp.topic)
            commit = state.read(area, Commit, commit_path_of(tp)).value
        except NotFound:
            return []
        found = commit.partitions.get(tp.partition)
        windows = found.windows if found else ()
        return [file for w in windows if w.first <= offset < w.until for file in w.files]

    def verify(
        self, topic: str, *, partition: int | None = None, first: int = 0, until: int | None = None
    ) -> Verified:
        """Write missing schemas that the registry has, then read a topic's backup and verify it."""
        # This loads kernels, and commands that read no record do not need them.
        from kbq_assets.pipelines.backup.verify import verify_topic

        area = self.area(topic)
        found = verify_topic(area, topic, partition=partition, first=first, until=until)
        if not found.missing_schemas:
            return found
        found.missing_schemas = tuple(
            (topic, schema_id)
            for _, schema_id in found.missing_schemas
            if not keep_schema(area, self.open_registry(), topic, schema_id)
        )
        return found

    def merge(self, topic: str, *, plan: bool = False) -> MergeReport:
        """Merge small files of a topic's backup; with ``plan``, only count them."""
        # This loads kernels.
        from kbq_assets.pipelines.backup.merge import merge_topic, plan_topic

        area = self.area(topic)
        return plan_topic(area, topic) if plan else merge_topic(area, topic, lambda: uuid.uuid4().hex[:20])

    def topics(self) -> list[str]:
        return sorted({topic for area in self.areas() for topic in state.topic_registry(area).topics})

    def resume(self, topic: str, partition: int | None) -> Proposal:
        with _naming_own_commands():
            return commands.propose_resume(self.area(topic), topic, partition)

    def accept_gap(self, tp: TopicPartition) -> Proposal:
        """Continue after a retention loss or an unreadable batch."""
        with _naming_own_commands():
            return commands.propose_accept_gap(self.area(tp.topic), self.deployment.offsets, tp)

    def reset(self, topic: str, partition: int | None, at: str) -> Proposal:
        """Begin a new epoch of the backup, and keep its files (B5)."""
        area, reader = self.area(topic), self.deployment.offsets
        described = describe(reader, topic, partition)
        numbers = range(described.partitions) if partition is None else (partition,)
        starts = StartAt(at).positions(reader, [TopicPartition(topic, p) for p in numbers])
        epochs = commands.epochs_of(reader, topic, starts)
        shards = commands.shards_of(area, topic)
        cluster_id = reader.cluster_id()

        def change(shard: int, now: Commit) -> Commit:
            own = {p: start for p, start in starts.items() if shard_of(p) == shard}
            if partition is None:
                own |= {p: 0 for p in now.partitions if p >= described.partitions}
            check_same_log(now, own, described, cluster_id, "kbq backup reset")
            return backup.reset(now, own, epochs, cluster_id, described.topic_id)

        chosen = {s: c for s, c in shards.items() if partition is None or s == shard_of(partition)}
        for shard, commit in chosen.items():
            change(shard, commit)  # raises Refused before the user is asked

        def apply() -> None:
            for shard in chosen:
                state.change(area, Commit, commit_path(topic, shard), partial(change, shard))

        lines = list(position_lines(reader, described, chosen.values(), starts, "uncopied"))
        known = sorted(p for commit in shards.values() for p in commit.partitions)
        gone = [TopicPartition(topic, p) for p in known if partition is None and p >= described.partitions]
        lines += [f"{tp} is gone from the broker" for tp in gone]
        return Proposal(f"reset the backup of {topic}", ("keeps all its files", *lines), apply)

    def clean(self) -> list[CleaningReport]:
        """Apply retention and delete orphans, in every area that was ever used."""
        days = self.deployment.settings.backup.days
        areas = self.areas(Role.LOAD)
        return [clean_backups(area, days) for area in areas if state.topic_registry(area).topics]

    def area(self, topic: str) -> BackupArea:
        """The area of a topic's backup: the one in its options, or the one where it is found. Raises NotFound."""
        settings = self.deployment.sources.select([topic]).get(topic)
        if settings is not None and (area := area_of(settings)):
            return self.deployment.backup_area(area)
        for found in self.areas():
            if topic in state.topic_registry(found).topics:
                return found
        raise NotFound(f"{topic} has no backup", next_step="set the topic's option backup=true")

    def areas(self, role: Role = Role.EXTRACT) -> Iterator[BackupArea]:
        personal = self.deployment.settings.backup.personal_location
        for area in AREAS:
            if area != PERSONAL or personal:
                yield self.deployment.backup_area(area, role)
