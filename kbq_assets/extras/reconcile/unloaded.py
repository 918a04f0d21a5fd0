"""Staged files whose rows are in no table: they wait to be loaded, or are in quarantine."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.commits import Commit, StagedFile
from kbq_assets.core.protocol.names import STAGING, TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.extras.reconcile.account import UnloadedFiles
from kbq_assets.extras.reconcile.findings import Finding
from kbq_assets.pipelines.observation.accounting import replaced_rows
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.warehouse_store import warehouse_of
from kbq_assets.ports.object_store import ObjectStore

#: Maximum number of paths that a finding names.
SHOWN = 3
#: What is wrong with files, for one and for more.
_GONE = "staged file is gone", "staged files are gone"
_RESIZED = "staged file has another size than staged", "staged files have other sizes than staged"


def epochs_of(commits: Iterable[Commit]) -> dict[TopicPartition, range]:
    """The epochs whose rows count. A reset of other partitions also raises the epoch (E9)."""
    return {
        c.topic_partition(p): range(found.since, c.epoch + 1)
        for c in commits
        for p, found in c.partitions.items()
    }


@dataclass(frozen=True)
class Unloaded:
    """Staged files in the partitions' current epochs whose rows are in no table."""

    pending: Mapping[TopicPartition, list[StagedFile]]
    quarantined: Mapping[TopicPartition, list[StagedFile]]
    #: sizes of staged objects
    sizes: Mapping[str, int] = field(default_factory=dict)
    #: rows that erasures are deleting
    deleting: Mapping[TopicPartition, int] = field(default_factory=dict)

    @classmethod
    def read(cls, store: ObjectStore, commits: Iterable[Commit]) -> Unloaded:
        """Read the files of commits, backlogs and quarantine. Tables are read last: if a load deletes a file meanwhile,
        the table shows it as loaded."""
        commits = list(commits)
        given_up = {path for commit in commits for path in commit.given_up}
        registry = state.table_registry(store)
        own = warehouse_of(store)
        files = [file for commit in commits for file in commit.files if own in file.wanted_by]
        for table in registry.tables:
            files.extend(f for chunk in state.read_backlog(store, table) for f in chunk.value.files)
        sizes = {entry.path: entry.size for entry in store.list(STAGING)}
        states = {t: found.value for t, found in state.read_table_states(store, registry).items()}
        pending = [file for file in files if file.path not in given_up and not _is_loaded(file, states)]
        bad = [quarantined.file for table in states.values() for quarantined in table.quarantined]
        epochs = epochs_of(commits)
        return cls(
            _by_partition(pending, epochs), _by_partition(bad, epochs), sizes, _deleting(states, epochs)
        )

    def waiting(self, tp: TopicPartition) -> UnloadedFiles:
        """The files of a partition."""
        return UnloadedFiles(self.pending.get(tp, ()), self.quarantined.get(tp, ()), self.deleting.get(tp, 0))

    def missing(self) -> list[Finding]:
        """Findings about files that a load cannot read: they are gone, or their sizes differ from the commit's."""
        found: dict[tuple[TableReference, tuple[str, str]], list[str]] = defaultdict(list)
        for file in (file for files in self.pending.values() for file in files):
            if file.path not in self.sizes:
                found[file.table, _GONE].append(file.path)
            elif self.sizes[file.path] != file.bytes:
                found[file.table, _RESIZED].append(file.path)
        return [
            Finding(
                f"{table}: {counted(len(paths), *what)}: {', '.join(paths[:SHOWN])}",
                "restore them from a backup, or kbq reset --topic TOPIC --give-up-pending reads their records again",
            )
            for (table, what), paths in found.items()
        ]


def _by_partition(
    files: Iterable[StagedFile], epochs: Mapping[TopicPartition, range]
) -> dict[TopicPartition, list[StagedFile]]:
    found: dict[TopicPartition, list[StagedFile]] = defaultdict(list)
    for file in {file.path: file for file in files}.values():
        if file.name.epoch in epochs.get(file.name.topic_partition, ()):
            found[file.name.topic_partition].append(file)
    return found


def _deleting(
    states: Mapping[TableReference, TableState], epochs: Mapping[TopicPartition, range]
) -> Counter[TopicPartition]:
    """Rows by partition that erasures are deleting from waiting tables. Commits count the deletion afterwards."""
    found: Counter[TopicPartition] = Counter()
    for table in states.values():
        if (replacing := table.definition.replacing) and replacing.erasure:
            for range_, rows in replaced_rows(table).items():
                tp = range_.topic_partition
                found[tp] -= rows if range_.epoch in epochs.get(tp, ()) else 0
    return found


def _is_loaded(file: StagedFile, states: Mapping[TableReference, TableState]) -> bool:
    return file.table in states and states[file.table].is_loaded(file)
