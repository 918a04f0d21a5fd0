"""Erasures, and the erasure log of a topic (PROTOCOL X1 to X4). None of these objects contain personal values.

erasures/7.json                     the records that one erasure erases, and its progress
erasures/@topics/shop.orders.json   the log: all records of a topic that must never be read again
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from kbq_assets.core.erasure import offset_sets as sets
from kbq_assets.core.erasure.offset_sets import Offsets
from kbq_assets.core.errors import InvalidName, MissingState
from kbq_assets.core.protocol.codec import INLINE, RESTORE, Stored
from kbq_assets.core.protocol.commits import Commit, StagedFile
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.names import FIRST_WAREHOUSE, check_topic, parse_number
from kbq_assets.core.protocol.offsets import TopicPartition

ERASURES: Final = "erasures/"
_LOGS: Final = "erasures/@topics/"
#: Prefix of the ids of an erasure's jobs: kbq-erase-<staging area>-<number>-<attempt>.
JOB_PREFIX: Final = "kbq-erase-"


class ErasurePhase(StrEnum):
    """The progress of an erasure."""

    #: the log may lack it, and some commits may not require it yet
    BEGUN = "begun"
    #: the records are never read again; copies are being deleted
    LOGGED = "logged"
    DONE = "done"


@dataclass(frozen=True)
class ErasedPartition(Stored):
    """The records of one partition to erase. ``since`` and ``epoch`` are its commit's: rows of these epochs have
    offsets of the present log."""

    since: int
    epoch: int
    #: positions below this were searched; later records of the person stay
    until: int
    offsets: Offsets = ()


@dataclass(frozen=True)
class CopiedEpochs(Stored):
    """The epochs of a partition's backup, ``since`` to ``epoch``, whose files belonged to the log at the time of the
    search."""

    since: int
    epoch: int


@dataclass(frozen=True)
class ErasureTimes(Stored):
    """When an erasure began and was done, by the store's time."""

    started_ms: int = 0
    ended_ms: int = 0


@dataclass(frozen=True)
class RewrittenFile(Stored):
    """A staged file that replaces another one, with ``rows`` fewer rows."""

    old: str
    new: StagedFile
    rows: int


@dataclass(frozen=True)
class Deletion(Stored):
    """The deletion of an erasure's rows in one warehouse."""

    #: number of deletions so far, and the job of an unfinished one with its rows by table
    attempt: int = 0
    job_id: str = ""
    deleting: Mapping[str, int] = field(default_factory=dict)
    #: staged files that this deletion rewrote, while their tables wait
    staged: tuple[RewrittenFile, ...] = ()
    #: rows deleted so far, by table
    rows: Mapping[str, int] = field(default_factory=dict)
    #: number of files rewritten so far; the first warehouse also counts those of backups
    files: int = 0
    #: the reason that its last run did not finish
    problem: str = ""


@dataclass(frozen=True)
class Erasure(Stored):
    """`erasures/<number>.json`."""

    number: int
    topic: str
    cluster_id: str
    topic_id: str
    partitions: Mapping[int, ErasedPartition]
    #: rows of epochs before ``since``, whose offsets may be of another log, by ``<partition>/<epoch>``
    older: Mapping[str, Offsets] = field(default_factory=dict)
    #: records of the backup's older epochs, by ``<partition>/<epoch>``
    copies: Mapping[str, Offsets] = field(default_factory=dict)
    #: by partition; needed because a reset of the backup may end these epochs before their files are rewritten
    copied: Mapping[int, CopiedEpochs] = field(default_factory=dict)
    phase: str = str(ErasurePhase.BEGUN)
    times: ErasureTimes = field(default_factory=ErasureTimes, metadata=INLINE)
    #: the deletion in the first warehouse, and in the others by name
    first: Deletion = field(default_factory=Deletion, metadata=INLINE)
    others: Mapping[str, Deletion] = field(default_factory=dict)

    def deletion(self, warehouse: str) -> Deletion:
        return self.first if warehouse == FIRST_WAREHOUSE else self.others.get(warehouse, Deletion())

    def with_deletion(self, warehouse: str, deletion: Deletion) -> Erasure:
        """The erasure with new progress in a warehouse."""
        if warehouse == FIRST_WAREHOUSE:
            return dataclasses.replace(self, first=deletion)
        if deletion == self.deletion(warehouse):
            return self
        return dataclasses.replace(self, others={**self.others, warehouse: deletion})

    @property
    def rows(self) -> Mapping[str, int]:
        """Rows deleted so far by table, in other warehouses by ``warehouse/table``."""
        others = (
            (f"{name}/{t}", rows) for name, each in self.others.items() for t, rows in each.rows.items()
        )
        return dict(sorted((*self.first.rows.items(), *others)))

    @property
    def files(self) -> int:
        """Number of files rewritten so far."""
        return sum(each.files for each in (self.first, *self.others.values()))

    @property
    def records(self) -> int:
        """Number of records to erase, including those of older epochs."""
        present = (each.offsets for each in self.partitions.values())
        return sum(map(sets.size, (*present, *self.older.values(), *self.copies.values())))

    def of_epoch(self, partition: int, epoch: int) -> Offsets:
        found = self.partitions.get(partition)
        if found is not None and found.since <= epoch <= found.epoch:
            return found.offsets
        return self.older.get(f"{partition}/{epoch}", ())

    def touches(self, file: StagedFile) -> bool:
        """Whether a staged file may have a row to erase."""
        name = file.name
        own = self.of_epoch(name.topic_partition.partition, name.epoch)
        return name.topic_partition.topic == self.topic and sets.meet(own, name.first_offset, file.until)

    @property
    def epochs(self) -> tuple[tuple[int, int, Offsets], ...]:
        present = (
            (number, epoch, each.offsets)
            for number, each in self.partitions.items()
            for epoch in range(each.since, each.epoch + 1)
        )
        older = ((int(p), int(e), own) for key, own in self.older.items() for p, e in [key.split("/")])
        return tuple(sorted(each for each in (*present, *older) if each[2]))

    def at(self, phase: ErasurePhase) -> Erasure:
        return dataclasses.replace(self, phase=str(phase))


@dataclass(frozen=True)
class ErasureLog(Stored):
    """`erasures/@topics/<topic>.json`: offsets that must never be read again, of the log with this cluster and topic
    id."""

    topic: str
    cluster_id: str
    topic_id: str
    #: the number of the last erasure entered; a topic has only one at a time (X1)
    version: int = 0
    partitions: Mapping[int, Offsets] = field(default_factory=dict)

    def of(self, commit: Commit, partition: int) -> Offsets:
        """The erased offsets of a commit's partition; none if the commit is of another log."""
        if (self.cluster_id, self.topic_id) != (commit.cluster_id, commit.topic_id):
            return ()
        return self.partitions.get(partition, ())


def reaching(erasure: Erasure, commits: Iterable[Commit]) -> Erasure:
    """The erasure extended to epochs of the same log that began since. Units may have published in them before the
    commits required the new log version."""
    epochs = {
        number: commit.epoch
        for commit in commits
        if (commit.cluster_id, commit.topic_id) == (erasure.cluster_id, erasure.topic_id)
        for number in commit.partitions
    }
    partitions = {
        number: dataclasses.replace(each, epoch=max(each.epoch, epochs.get(number, 0)))
        for number, each in erasure.partitions.items()
    }
    return dataclasses.replace(erasure, partitions=partitions)


def with_erasure(log: ErasureLog, erasure: Erasure) -> ErasureLog:
    """The log with an erasure added, once. If the topic was recreated since, drops the offsets of its former log."""
    if erasure.number <= log.version:
        return log
    is_same = (log.cluster_id, log.topic_id) == (erasure.cluster_id, erasure.topic_id)
    partitions = dict(log.partitions) if is_same else {}
    for number, each in erasure.partitions.items():
        if each.offsets:
            partitions[number] = sets.united(partitions.get(number, ()), each.offsets)
    return dataclasses.replace(
        log,
        cluster_id=erasure.cluster_id,
        topic_id=erasure.topic_id,
        version=erasure.number,
        partitions=partitions,
    )


def raised(commit: Commit, version: int) -> Commit:
    """The commit with a minimum log version, so that units with an older log cannot publish (X2)."""
    return commit if commit.erasures >= version else dataclasses.replace(commit, erasures=version)


def check_version(commit: Commit, log: ErasureLog | None) -> ErasureLog | None:
    """Return the log that a commit requires, None for a commit without erasures. Raises MissingState if it is gone or
    older, because KBQ never assumes that nothing was erased."""
    if not commit.erasures:
        return None
    if log is None or log.version < commit.erasures:
        raise MissingState(
            f"{log_path(commit.topic)} is missing or older than the commit: erased records would come back",
            next_step=RESTORE,
        )
    return log


def erased_rows(
    commit: Commit, job_id: str, changes: Sequence[tuple[int, int, Counts]], warehouse: str = FIRST_WAREHOUSE
) -> Commit:
    """The commit after a deletion of a warehouse's rows, applied once (X3). ``changes`` are partition, epoch and
    counts. Ignores rows of epochs that the commit no longer counts.

    A partition keeps the sum under the last job's id. That is enough because a topic's deletions run one after another,
    with increasing ids.
    """
    for number in sorted({number for number, _, _ in changes}):
        found = commit.partitions.get(number)
        if found is None:
            continue
        known = found.changes_of(warehouse)
        before = [job for job in known if job.startswith(JOB_PREFIX)]
        if any(turn_of(job) >= turn_of(job_id) for job in before):
            continue
        own = [counts for p, epoch, counts in changes if p == number and epoch >= found.since]
        place = f"{warehouse}/" if warehouse else ""
        kept = {
            key: counts
            for key, counts in found.replaced.items()
            if key not in {place + job for job in before}
        }
        kept[place + job_id] = sum([*(known[job] for job in before), *own], Counts())
        commit = commit.with_partition(number, dataclasses.replace(found, replaced=kept))
    return commit


def turn_of(job_id: str) -> tuple[int, int]:
    """Number and attempt of an erasure's job."""
    _, number, attempt = job_id.rsplit("-", 2)
    return int(number), int(attempt)


def erasure_path(number: int) -> str:
    return f"{ERASURES}{number}.json"


def parse_erasure_path(path: str) -> int | None:
    """The number in a path, None for a log. Raises InvalidName."""
    base = path.removeprefix(ERASURES)
    if path.startswith(_LOGS):
        return None
    if not (path.startswith(ERASURES) and base.endswith(".json")):
        raise InvalidName(f"{path!r} is not an erasure", next_step=f"expected {ERASURES}<number>.json")
    return parse_number(base.removesuffix(".json"), path)


def log_path(topic: str) -> str:
    return f"{_LOGS}{check_topic(topic)}.json"


def key_of(tp: TopicPartition, epoch: int) -> str:
    """The key of rows in table states (`rows_key` in core/loading/table_state.py)."""
    return f"{tp.topic}/{tp.partition}/{epoch}"
