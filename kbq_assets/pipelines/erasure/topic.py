"""A topic's commits, tables and waiting files for an erasure, and checks whether it can run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from kbq_assets.core.backup.areas import AREAS, PERSONAL
from kbq_assets.core.backup.backup_names import BACKUP
from kbq_assets.core.config.roles import Role
from kbq_assets.core.erasure.model import Erasure, reaching
from kbq_assets.core.errors import InvalidName, Refused
from kbq_assets.core.loading.batches import identity
from kbq_assets.core.loading.origins import LABEL
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.protocol.commits import Commit, PartitionCommit, StagedFile, starting_at
from kbq_assets.core.protocol.names import (
    STAGING,
    StagedFileName,
    TableReference,
    quarantine_path,
    shard_of,
    table_state_path,
)
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.replay.model import Phase as ReplayPhase
from kbq_assets.core.replay.model import is_shadow
from kbq_assets.core.statements.rules import MARK, SQL, UPSERT, StatementRule
from kbq_assets.core.statements.side_tables import deleted_table
from kbq_assets.pipelines.backup.area import BackupArea
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.pipelines.loading.view import LoadView, read_view
from kbq_assets.pipelines.operate.commands import shards_of
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.state_cache import StateCache
from kbq_assets.pipelines.replay.leftovers import has_objects
from kbq_assets.pipelines.replay.start import read_replays


@dataclass(frozen=True)
class ErasedTopic:
    """A topic's commits by shard, and the states of all tables."""

    topic: str
    commits: Mapping[int, Commit]
    states: Mapping[TableReference, TableState]

    @classmethod
    def read(cls, live: Deployment, topic: str) -> ErasedTopic:
        """Read the states before the commits, so no mark is newer than the commits (L1). Raises NotFound; Refused for a
        topic that cannot be erased."""
        store = live.load_store
        states = state.read_table_states(store)
        commits = shards_of(live.store, topic, required=False) or _backed_up(live, topic)
        found = cls(topic, commits, {t: s.value for t, s in states.items()})
        _check_reachable(found)
        return found

    @property
    def ids(self) -> tuple[str, str]:
        commit = next(iter(self.commits.values()))
        return commit.cluster_id, commit.topic_id

    @property
    def partitions(self) -> Mapping[TopicPartition, tuple[Commit, PartitionCommit]]:
        """Each partition with its commit, in order."""
        found = {
            c.topic_partition(p): (c, each) for c in self.commits.values() for p, each in c.partitions.items()
        }
        return dict(sorted(found.items()))

    def with_new_partitions(self, number: int) -> ErasedTopic:
        """The topic with ``number`` partitions: those that were never extracted begin as an extraction adds them."""
        commits = dict(self.commits)
        for partition in range(number):
            shard = shard_of(partition)
            own = commits.get(shard, Commit(self.topic, shard, *self.ids, epoch=1))
            if partition not in own.partitions:
                since = own.epoch if own.epoch > 1 else 0
                own = own.with_partition(partition, starting_at(0, -1, since))
            commits[shard] = own
        return replace(self, commits=commits)

    def tables(self, live: Deployment) -> list[TableReference]:
        """All tables into which this staging area may have loaded records of the topic."""
        known = [t for t, found in self.states.items() if found.rows or found.marks]
        return sorted(
            {*known, *(t for t in live.warehouse.tables() if not is_shadow(t) and self._is_own(live, t))}
        )

    def may_feed(self, table: TableReference) -> bool:
        """Whether a table may have rows of the topic: its state counts some, or it has no counts."""
        found = self.states.get(table)
        keys = {*found.rows, *found.marks} if found else ()
        return not keys or any(key.startswith(f"{self.topic}/") for key in keys)

    def with_memories(self, tables: Iterable[TableReference]) -> dict[TableReference, TableReference]:
        """The tables, and their tables of deleted keys (of upserts), each mapped to its target table."""
        found = {}
        for table in tables:
            found[table] = table
            rule = _rule(self.states.get(table, TableState("")))
            if rule.kind == UPSERT and rule.deletes != MARK:
                found[deleted_table(table)] = table
        return found

    def statement_tables(self) -> list[TableReference]:
        """Tables with one row for several records."""
        return sorted(t for t in self._fed if self.states[t].has_statements)

    def sql_tables(self) -> list[TableReference]:
        """Tables whose rows the user's own SQL makes. KBQ does not know from which records."""
        return sorted(t for t in self._fed if _rule(self.states[t]).kind == SQL)

    @property
    def _fed(self) -> list[TableReference]:
        """The tables that have loaded files of the topic."""
        topic = f"{self.topic}/"
        return [t for t, found in self.states.items() if any(key.startswith(topic) for key in found.marks)]

    def _is_own(self, live: Deployment, table: TableReference) -> bool:
        """Whether a table belongs to this staging area. It may have no state if a replay of error rows created it."""
        if table in self.states:
            return True
        stored = live.warehouse.find_table(table)
        return (
            stored is not None
            and stored.labels.get(LABEL) == state.table_registry(live.load_store).staging_id
        )


def _rule(found: TableState) -> StatementRule:
    """The rule that makes a table's rows, now or with the job in flight."""
    in_flight = found.in_flight.statement if found.in_flight else None
    return in_flight.rule if in_flight else found.definition.statements.rule


def _backed_up(live: Deployment, topic: str) -> Mapping[int, Commit]:
    """The commits of a topic that has only a backup. Raises NotFound."""
    for area in backup_areas(live, topic):
        return shards_of(area, topic)
    return shards_of(live.store, topic)


def check_replays(live: Deployment, topic: str, next_step: str) -> None:
    """Raise Refused while a replay of the topic has copies of its records (X4)."""
    for each in read_replays(live.store):
        if each.topic != topic or (each.is_ended and not has_objects(live.store, each)):
            continue
        is_promoted = each.phase in (ReplayPhase.PROMOTED, ReplayPhase.ACCEPTED)
        end = "kbq replay accept" if is_promoted else "kbq replay drop"
        raise Refused(
            f"replay {each.number} of {topic} has copies of its records",
            next_step=f"{end} {each.number}, then {next_step}",
        )


def reached(live: Deployment, erasure: Erasure) -> Erasure:
    """The erasure, extended to the rows of epochs that began later."""
    return reaching(erasure, shards_of(live.store, erasure.topic, required=False).values())


@dataclass(frozen=True)
class WaitingFile:
    """A staged file that a table may still load."""

    table: TableReference
    file: StagedFile
    is_quarantined: bool = False

    @property
    def stored(self) -> str:
        return quarantine_path(self.file.path) if self.is_quarantined else self.file.path


def waiting_files(live: Deployment, erasure: Erasure) -> list[WaitingFile]:
    """Staged files that may have rows of an erasure and that a table may still load."""
    return unloaded_files(live, reached(live, erasure).touches)


def unloaded_files(live: Deployment, chosen: Callable[[StagedFile], bool]) -> list[WaitingFile]:
    """The chosen files among all staged files that a table may still load, ordered by path."""
    view = read_view(StateCache(live.load_store))
    waiting = (each for table in view.tables for each in _unloaded(view, table))
    found = {each.file.path: each for each in waiting if chosen(each.file)}
    return [each for _, each in sorted(found.items())]


def _unloaded(view: LoadView, table: TableReference) -> Iterable[WaitingFile]:
    """The files that one table may still load. The job in flight may have files that nothing else lists, because a
    reset gave them up."""
    versioned = view.states.get(table)
    known = versioned.value if isinstance(versioned, state.Versioned) else TableState("")
    waiting = [
        *(WaitingFile(table, file) for file in view.files(table) if not known.is_loaded(file)),
        *(WaitingFile(table, bad.file, True) for bad in known.quarantined if not bad.dropped),
    ]
    listed = {identity(each.file) for each in waiting}
    loading = known.in_flight.files if known.in_flight else ()
    return [*waiting, *(WaitingFile(table, file) for file in loading if identity(file) not in listed)]


def is_in_job(live: Deployment, each: WaitingFile) -> bool:
    """Whether the table's job in flight has a file. If the file is gone, the job may read a copy (E11, L15)."""
    found = state.find(live.load_store, TableState, table_state_path(each.table))
    job = found.value.in_flight if found else None
    return job is not None and identity(each.file) in map(identity, job.files)


def delete_loaded(live: Deployment, erasure: Erasure) -> list[str]:
    """Delete staged files with rows of an erasure that every warehouse has loaded (W4), because a loader may have died
    before it deleted them. Returns the failures, each with its path. Raises Unavailable."""
    touches, store = reached(live, erasure).touches, live.load_store
    # Read the commits before the states: a file that enters a job meanwhile is in a state.
    files = [f for c in shards_of(live.store, erasure.topic, required=False).values() for f in c.files]
    states = state.warehouse_states(store)
    kept = store.delete_many([file.path for file in files if touches(file) and states.is_done_with(file)])
    return [f"{path}: {error}" for path, error in kept.items()]


def is_of_topic(failure: str, topic: str) -> bool:
    """Whether a clean-up failed to delete a file with records of the topic."""
    path = failure.partition(": ")[0]
    if path.startswith(BACKUP):
        return path.startswith(f"{BACKUP}{topic}/")
    try:  # also a copy in the quarantine of any warehouse
        name = StagedFileName.parse(STAGING + "/".join(path.split("/")[-2:]))
    except InvalidName:
        return False
    return name.topic_partition.topic == topic


def _check_reachable(found: ErasedTopic) -> None:
    topic = found.topic
    if not all(found.ids):
        raise Refused(
            f"the broker has no id for topic {topic}: a later topic with this name would lose its records",
            next_step="upgrade the brokers to 3.0 or later",
        )
    if len({(c.cluster_id, c.topic_id) for c in found.commits.values()}) > 1:
        raise Refused(f"the commits of {topic} are of two logs", next_step=f"kbq plan --topic {topic}")


def backup_areas(live: Deployment, topic: str, role: Role = Role.EXTRACT) -> list[BackupArea]:
    personal = live.settings.backup.personal_location
    areas = (live.backup_area(area, role) for area in AREAS if area != PERSONAL or personal)
    return [area for area in areas if topic in state.topic_registry(area).topics]


def check_same_log(live: Deployment, found: ErasedTopic) -> int:
    """The broker's number of partitions. Raises Refused if its topic is not the one that filled the tables."""
    described = live.offsets.topics((found.topic,)).get(found.topic)
    now = (live.offsets.cluster_id(), described.topic_id) if described else ("", "")
    if described is None or now != found.ids:
        raise Refused(
            f"topic {found.topic} is gone or was recreated: its offsets are of another log",
            next_step=f"kbq plan --topic {found.topic} shows the commands that fix it",
        )
    return described.partitions
