"""A replay: which positions are read again, into which tables, and how far it is (PROTOCOL R1, R2).

replays/7.json              the replay itself
replayed/7/                 its own staging area: commit, staged files and table states of the range
shop._kbq_replay_7_orders   the shadow of shop.orders
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from kbq_assets.core.errors import InvalidName, Refused
from kbq_assets.core.protocol.codec import CHOSEN, ELSEWHERE, FORMAT, Stored
from kbq_assets.core.protocol.commits import Commit
from kbq_assets.core.protocol.names import FIRST_WAREHOUSE, TableReference, parse_number
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition

REPLAYS: Final = "replays/"
#: Staging areas of replays, each with the folders of an ordinary one.
AREAS: Final = "replayed/"
#: Tables that hold the rows of a range are no topic's tables: nothing counts them.
SHADOW: Final = "_kbq_replay_"
#: The rows that a replay replaced, until it is accepted.
FORMER: Final = "_kbq_former_"
#: The number of the replay that a row came from; null for rows of the live topic.
REPLAY_COLUMN: Final = "_kbq_replay"
#: Ids of replacements: staging area, replay and attempt follow.
REPLACEMENT: Final = "kbq-replay-"

#: Where a range is read from.
KAFKA: Final = "kafka"
BACKUP: Final = "backup"


class Phase(StrEnum):
    """The phase of a replay."""

    READING = "reading"
    READ = "read"
    PROMOTING = "promoting"
    PROMOTED = "promoted"
    ROLLING_BACK = "rolling_back"
    ROLLED_BACK = "rolled_back"
    ACCEPTED = "accepted"
    DROPPED = "dropped"


@dataclass(frozen=True)
class Bounds(Stored):
    """The positions of one partition that are read again."""

    first: int
    until: int


@dataclass(frozen=True)
class Replay(Stored):
    """`replays/<number>.json`."""

    number: int
    topic: str
    #: that of the range's rows
    epoch: int
    #: every partition of the topic; of some nothing is read
    bounds: Mapping[int, Bounds]
    source: str = KAFKA
    phase: str = str(Phase.READING)
    #: when it was started, by the store's time
    started_ms: int = 0
    #: replacements so far, the job of the latest, and the tables whose rows it replaces (R3)
    attempt: int = 0
    job_id: str = ""
    tables: tuple[str, ...] = ()
    #: grows with every promotion: of two that overlap the higher one was later (R7)
    turn: int = 0
    #: the only tables that it fills, compares and replaces; empty: all of the topic (R10)
    only: tuple[str, ...] = ()
    #: whether records without a value are rows, which delete their key in an upsert table (R11)
    tombstones: bool = False
    #: the stored name of the warehouse that it fills, compares and replaces in (R13)
    warehouse: str = FIRST_WAREHOUSE

    @property
    def stored_format(self) -> int:
        """Releases that know no chosen tables would delete the rows of all others (R10); those that know no warehouse,
        the rows of the first (R13)."""
        return ELSEWHERE if self.warehouse else CHOSEN if self.only else FORMAT

    @property
    def ranges(self) -> tuple[OffsetRange, ...]:
        """The range to read, by partition."""
        found = (OffsetRange(TopicPartition(self.topic, p), b.first, b.until) for p, b in self.bounds.items())
        return tuple(sorted(range_ for range_ in found if range_))

    @property
    def positions(self) -> int:
        """All positions, an upper bound of the records."""
        return sum(range_.positions for range_ in self.ranges)

    @property
    def area(self) -> str:
        """Its staging area, below the live one."""
        return f"{AREAS}{self.number}"

    @property
    def chosen(self) -> frozenset[TableReference] | None:
        """The only tables that it fills; None: all of the topic."""
        return frozenset(map(TableReference.parse, self.only)) or None

    def covers(self, table: TableReference) -> bool:
        """Whether it may replace rows of a table."""
        return not self.only or str(table) in self.only

    def shadow(self, table: TableReference) -> TableReference:
        """The table that has the range's rows of ``table``. Raises InvalidName if the name is too long."""
        return TableReference(table.dataset, f"{SHADOW}{self.number}_{table.table}")

    def former(self, table: TableReference) -> TableReference:
        """The table that keeps the rows of ``table`` that were replaced. Raises InvalidName."""
        return TableReference(table.dataset, f"{FORMER}{self.number}_{table.table}")

    @property
    def is_changing(self) -> bool:
        """Whether it replaces rows of live tables now."""
        return self.phase in (Phase.PROMOTING, Phase.ROLLING_BACK)

    @property
    def is_ended(self) -> bool:
        """Whether it was accepted or dropped: no table or file of its own is left."""
        return self.phase in (Phase.ACCEPTED, Phase.DROPPED)

    @property
    def ended(self) -> int:
        """The replacements that have ended: the last of their attempts."""
        return self.attempt - self.is_changing

    def at(self, phase: Phase) -> Replay:
        return dataclasses.replace(self, phase=str(phase))


def check_latest(
    replay: Replay, others: Iterable[Replay], keyed: frozenset[TableReference] = frozenset()
) -> None:
    """Raise Refused for a rollback whose rows a later promotion replaced: it would bring rows back that both of them
    replaced, and the later rollback would bring those of this replay back (R7). In the ``keyed`` tables, any two ranges
    may have records of a key (R11)."""
    shared = {*map(str, keyed)}
    for other in _beside(replay, others):
        overlaps = _overlap(replay, other) or bool(shared & {*replay.tables} & {*other.tables})
        if not overlaps:
            continue
        later = (other.turn, other.number) > (replay.turn, replay.number)
        rollback = f"kbq replay rollback {replay.number}"
        if other.is_changing:
            what, first = (
                "replaces rows of its range or keys now",
                f"kbq replay continue {other.number}, then {rollback}",
            )
        elif later and other.phase == Phase.PROMOTED:
            what = "was promoted later, over rows of its range or keys"
            first = f"kbq replay rollback {other.number}, then {rollback}"
        elif later and other.phase == Phase.ACCEPTED:
            what = "was promoted later, over rows of its range or keys, and accepted"
            first = f"kbq replay accept {replay.number}: nothing of it can be rolled back any more"
        else:
            continue
        raise Refused(
            f"replay {replay.number} cannot be rolled back: replay {other.number} {what}", next_step=first
        )


def check_alone(replay: Replay, others: Iterable[Replay]) -> None:
    """Raise Refused while another replay changes rows of the range: both could add a row for the same record (R3)."""
    for other in _beside(replay, others):
        if other.is_changing and _overlap(replay, other):
            raise Refused(
                f"replay {other.number} replaces rows of its range now",
                next_step=f"kbq replay continue {other.number}, then kbq replay promote {replay.number}",
            )


def _beside(replay: Replay, others: Iterable[Replay]) -> Iterable[Replay]:
    """The other replays of its warehouse: those of another one replace no row of its tables (R13)."""
    return (o for o in others if o.number != replay.number and o.warehouse == replay.warehouse)


def _overlap(one: Replay, other: Replay) -> bool:
    """Whether two replays have positions of one epoch in common."""
    if (one.topic, one.epoch) != (other.topic, other.epoch):
        return False
    both = ((bounds, other.bounds.get(p)) for p, bounds in one.bounds.items())
    return any(b is not None and max(a.first, b.first) < min(a.until, b.until) for a, b in both)


def is_shadow(table: TableReference) -> bool:
    """Whether a table holds rows of a range next to the topic's own tables."""
    return table.table.startswith((SHADOW, FORMER))


def check_own(table: TableReference) -> TableReference:
    """Return a replay's own table. Raises Refused for any other: nothing else is ever dropped."""
    if not is_shadow(table):
        raise Refused(f"{table} is no replay's table", next_step="report a bug")
    return table


def replay_path(number: int) -> str:
    return f"{REPLAYS}{number}.json"


def parse_replay_path(path: str) -> int:
    """The number in a path. Raises InvalidName."""
    base = path.removeprefix(REPLAYS)
    if not (path.startswith(REPLAYS) and base.endswith(".json")):
        raise InvalidName(f"{path!r} is no replay", next_step=f"expected {REPLAYS}<number>.json")
    return parse_number(base.removesuffix(".json"), path)


def epoch_of(ranges: Iterable[OffsetRange], commits: Iterable[Commit], marks: Mapping[str, int]) -> int:
    """The epoch of the rows of all ranges (R2). ``marks`` are those of the topic's tables.

    A reset of other partitions raises the epoch without a trace in the commit. Where an epoch's rows end is known from
    the marks alone. Raises Refused if the ranges lie in several epochs.
    """
    states = {c.topic_partition(p): (c.epoch, found) for c in commits for p, found in c.partitions.items()}
    epochs: dict[int, list[str]] = {}
    for range_ in ranges:
        epoch, found = states[range_.topic_partition]
        for each in _epochs_within(range_, found.since, epoch, marks):
            epochs.setdefault(each, []).append(str(range_))
    if len(epochs) != 1:
        named = "; ".join(f"epoch {epoch}: {', '.join(names)}" for epoch, names in sorted(epochs.items()))
        raise Refused(
            f"the range has rows of several epochs: {named}" if epochs else "the range is empty",
            next_step="start one replay for each epoch" if epochs else "choose a later --until",
        )
    return next(iter(epochs))


def check_epoch(replay: Replay, commits: Iterable[Commit], marks: Mapping[str, int]) -> None:
    """Raise Refused if rows of the range were loaded in an epoch before that of the replay, which did not know of
    them when it began: its rows would double them (R2)."""
    since = {c.topic_partition(p): found.since for c in commits for p, found in c.partitions.items()}
    for range_ in replay.ranges:
        found = _epochs_within(range_, since.get(range_.topic_partition, replay.epoch), replay.epoch, marks)
        if earlier := [epoch for epoch in found if epoch != replay.epoch]:
            raise Refused(
                f"{range_} has rows of epoch {earlier[0]} that were loaded since replay {replay.number} began: it has"
                f" epoch {replay.epoch}",
                next_step=f"kbq replay drop {replay.number}, then start it again",
            )


def _epochs_within(range_: OffsetRange, since: int, last: int, marks: Mapping[str, int]) -> Iterable[int]:
    """The epochs of a range: each ends at its highest mark, and the last one never."""
    tp, first = range_.topic_partition, range_.from_offset
    for epoch in range(max(since, 1), last + 1):
        prefix = f"{tp.topic}/{tp.partition}/{epoch}/"
        until = max((mark for key, mark in marks.items() if key.startswith(prefix)), default=0)
        if epoch == last or until > first:
            yield epoch
            first = max(first, until)
        if first >= range_.until_offset:
            return


@dataclass(frozen=True)
class ReplayProgress:
    """The progress of a replay: read and loaded."""

    positions: int = 0
    read: int = 0
    records: int = 0
    rows: int = 0
    errors: int = 0
    skipped: int = 0
    waiting: int = 0
    #: what waits for an operator, each with its next step
    stops: tuple[str, ...] = field(default=())

    @property
    def is_done(self) -> bool:
        """Whether every position is read and every row is in a shadow."""
        return self.read >= self.positions and not self.waiting and not self.stops
