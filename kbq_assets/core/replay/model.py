"""A replay: the positions to read again, the tables, and the progress (PROTOCOL R1, R2).

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
#: Staging areas of replays. Each has the folders of a normal staging area.
AREAS: Final = "replayed/"
#: Prefix of the tables with the rows of a range. They do not belong to a topic, so nothing counts them.
SHADOW: Final = "_kbq_replay_"
#: Prefix of the tables with the rows that a replay replaced, until it is accepted.
FORMER: Final = "_kbq_former_"
#: The column with the number of the replay that wrote a row; null for rows of the live topic.
REPLAY_COLUMN: Final = "_kbq_replay"
#: Prefix of the ids of replacements, followed by staging area, replay and attempt.
REPLACEMENT: Final = "kbq-replay-"

#: Sources of a range.
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
    """The positions of one partition to read again."""

    first: int
    until: int


@dataclass(frozen=True)
class Replay(Stored):
    """`replays/<number>.json`."""

    number: int
    topic: str
    #: the epoch of the range's rows
    epoch: int
    #: by partition, for every partition of the topic; empty ranges are not read
    bounds: Mapping[int, Bounds]
    source: str = KAFKA
    phase: str = str(Phase.READING)
    #: when it was started, by the store's time
    started_ms: int = 0
    #: number of replacements so far, the job of the latest, and the tables whose rows it replaces (R3)
    attempt: int = 0
    job_id: str = ""
    tables: tuple[str, ...] = ()
    #: increases with every promotion: of two overlapping promotions, the higher one was later (R7)
    turn: int = 0
    #: the only tables that it fills, compares and replaces; empty: all tables of the topic (R10)
    only: tuple[str, ...] = ()
    #: whether records without a value are rows, which delete their key from an upsert table (R11)
    tombstones: bool = False
    #: the stored name of the warehouse that it fills, compares and replaces in (R13)
    warehouse: str = FIRST_WAREHOUSE

    @property
    def stored_format(self) -> int:
        """Locks out older releases: those without chosen tables would delete the rows of all other tables (R10), and
        those without warehouses the rows of the first warehouse (R13)."""
        return ELSEWHERE if self.warehouse else CHOSEN if self.only else FORMAT

    @property
    def ranges(self) -> tuple[OffsetRange, ...]:
        """The nonempty ranges to read, by partition."""
        found = (OffsetRange(TopicPartition(self.topic, p), b.first, b.until) for p, b in self.bounds.items())
        return tuple(sorted(range_ for range_ in found if range_))

    @property
    def positions(self) -> int:
        """All positions: an upper bound on the number of records."""
        return sum(range_.positions for range_ in self.ranges)

    @property
    def area(self) -> str:
        """Its staging area, below the live one."""
        return f"{AREAS}{self.number}"

    @property
    def chosen(self) -> frozenset[TableReference] | None:
        """The only tables that it fills; None: all tables of the topic."""
        return frozenset(map(TableReference.parse, self.only)) or None

    def covers(self, table: TableReference) -> bool:
        """Whether it may replace rows of a table."""
        return not self.only or str(table) in self.only

    def shadow(self, table: TableReference) -> TableReference:
        """The table with the range's rows for ``table``. Raises InvalidName if the name is too long."""
        return TableReference(table.dataset, f"{SHADOW}{self.number}_{table.table}")

    def former(self, table: TableReference) -> TableReference:
        """The table with the replaced rows of ``table``. Raises InvalidName."""
        return TableReference(table.dataset, f"{FORMER}{self.number}_{table.table}")

    @property
    def is_changing(self) -> bool:
        """Whether it is replacing rows of live tables."""
        return self.phase in (Phase.PROMOTING, Phase.ROLLING_BACK)

    @property
    def is_ended(self) -> bool:
        """Whether it was accepted or dropped, so none of its own tables or files are left."""
        return self.phase in (Phase.ACCEPTED, Phase.DROPPED)

    @property
    def ended(self) -> int:
        """The number of the last replacement that has ended."""
        return self.attempt - self.is_changing

    def at(self, phase: Phase) -> Replay:
        return dataclasses.replace(self, phase=str(phase))


def check_latest(
    replay: Replay, others: Iterable[Replay], keyed: frozenset[TableReference] = frozenset()
) -> None:
    """Raise Refused for a rollback if a later promotion replaced the same rows. The rollback would restore rows that
    both replaced, and a later rollback of the other would restore this replay's rows (R7). In ``keyed`` tables, any two
    ranges may have records of the same key (R11)."""
    shared = {*map(str, keyed)}
    for other in _beside(replay, others):
        overlaps = _overlap(replay, other) or bool(shared & {*replay.tables} & {*other.tables})
        if not overlaps:
            continue
        later = (other.turn, other.number) > (replay.turn, replay.number)
        rollback = f"kbq replay rollback {replay.number}"
        if other.is_changing:
            what, first = (
                "is replacing rows of its range or keys",
                f"kbq replay continue {other.number}, then {rollback}",
            )
        elif later and other.phase == Phase.PROMOTED:
            what = "was promoted later, over rows of its range or keys"
            first = f"kbq replay rollback {other.number}, then {rollback}"
        elif later and other.phase == Phase.ACCEPTED:
            what = "was promoted later, over rows of its range or keys, and accepted"
            first = f"kbq replay accept {replay.number}: it can no longer be rolled back"
        else:
            continue
        raise Refused(
            f"replay {replay.number} cannot be rolled back: replay {other.number} {what}", next_step=first
        )


def check_alone(replay: Replay, others: Iterable[Replay]) -> None:
    """Raise Refused while another replay changes rows of the range, because both could add a row for the same record
    (R3)."""
    for other in _beside(replay, others):
        if other.is_changing and _overlap(replay, other):
            raise Refused(
                f"replay {other.number} is replacing rows of its range",
                next_step=f"kbq replay continue {other.number}, then kbq replay promote {replay.number}",
            )


def _beside(replay: Replay, others: Iterable[Replay]) -> Iterable[Replay]:
    """The other replays of its warehouse. Replays of other warehouses do not change its tables (R13)."""
    return (o for o in others if o.number != replay.number and o.warehouse == replay.warehouse)


def _overlap(one: Replay, other: Replay) -> bool:
    """Whether two replays have positions in common, in the same epoch."""
    if (one.topic, one.epoch) != (other.topic, other.epoch):
        return False
    both = ((bounds, other.bounds.get(p)) for p, bounds in one.bounds.items())
    return any(b is not None and max(a.first, b.first) < min(a.until, b.until) for a, b in both)


def is_shadow(table: TableReference) -> bool:
    """Whether a table was made by a replay, next to the topic's own tables."""
    return table.table.startswith((SHADOW, FORMER))


def check_own(table: TableReference) -> TableReference:
    """Return a replay's own table. Raises Refused for all others, because only a replay's own tables may be dropped."""
    if not is_shadow(table):
        raise Refused(f"{table} is not a replay's table", next_step="report a bug")
    return table


def replay_path(number: int) -> str:
    return f"{REPLAYS}{number}.json"


def parse_replay_path(path: str) -> int:
    """The number in a path. Raises InvalidName."""
    base = path.removeprefix(REPLAYS)
    if not (path.startswith(REPLAYS) and base.endswith(".json")):
        raise InvalidName(f"{path!r} is not a replay", next_step=f"expected {REPLAYS}<number>.json")
    return parse_number(base.removesuffix(".json"), path)


def epoch_of(ranges: Iterable[OffsetRange], commits: Iterable[Commit], marks: Mapping[str, int]) -> int:
    """The epoch of the rows of all ranges (R2). Raises Refused if they have several epochs.

    ``marks`` are those of the topic's tables. Only they tell where the rows of an epoch end, because a reset of other
    partitions raises the epoch without a trace in this partition's commit.
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
            next_step="start one replay for each epoch"
            if epochs
            else "choose an earlier --from or a later --until",
        )
    return next(iter(epochs))


def check_epoch(replay: Replay, commits: Iterable[Commit], marks: Mapping[str, int]) -> None:
    """Raise Refused if rows of the range were loaded, after the replay began, with an earlier epoch than the replay's,
    because the replay's rows would duplicate them (R2)."""
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
    """The epochs of a range. Each ends at its highest mark, except the last one, which is open."""
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
    """The progress of a replay's reading and loading."""

    positions: int = 0
    read: int = 0
    records: int = 0
    rows: int = 0
    errors: int = 0
    skipped: int = 0
    waiting: int = 0
    #: stops that wait for an operator, each with its next step
    stops: tuple[str, ...] = field(default=())

    @property
    def is_done(self) -> bool:
        """Whether every position is read and every row is in a shadow."""
        return self.read >= self.positions and not self.waiting and not self.stops
