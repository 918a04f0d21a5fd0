"""Whose turn it is: which slices of which partitions the tasks of a run read, and what may be published when.

A partition is read in slices, so that long partitions take turns. Where cores would be idle, slices of one partition
are read side by side; what they have staged is held until all below it has been released, so that windows are
published in order (PROTOCOL E4). When a slice ends early, those after it are given up: their files are orphans.

A topic's task seconds are set aside for a slice when it is handed out, and what it did not need comes back with it:
so tasks that run at the same time stay within the limit together. Partitions share what is left evenly. As their
slices are expected to end early, none is read ahead.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from kbq_assets.core.extraction.shares import urgency, weight
from kbq_assets.core.extraction.units import Unit, UnitOutcome
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition


@dataclass(frozen=True)
class SliceLimits:
    """A slice has at most ``positions``. ``least``: no smaller one is cut only to keep a core busy. ``ahead`` slices of
    one partition may be read or held beyond the first. Ranges up to ``packed_positions`` in all, and up to
    ``packed_units``, share a task. ``least_seconds`` of a topic's task seconds are worth a slice."""

    positions: int = 5_000_000
    least: int = 1_000_000
    ahead: int = 7
    packed_positions: int = 20_000
    packed_units: int = 64
    least_seconds: float = 1.0


@dataclass
class _Chain:
    """A partition's unit, what is left of it to hand out, and its slices that are read or held, in order."""

    unit: Unit
    turns: int = 0
    has_ended: bool = False
    slices: deque[_Slice] = field(default_factory=deque)

    @property
    def left(self) -> int:
        return 0 if self.has_ended else self.unit.range.positions

    def cut(self, positions: int, seconds: float = math.inf) -> Unit:
        """Hand out the next slice, with so much time."""
        tp, first, until = _bounds(self.unit)
        middle = min(until, first + positions)
        ahead = bool(self.slices)
        unit = dataclasses.replace(
            self.unit,
            range=OffsetRange(tp, first, middle),
            leader_epoch=-1 if ahead else self.unit.leader_epoch,
            ahead=ahead,
            seconds=seconds,
        )
        self.unit = dataclasses.replace(self.unit, range=OffsetRange(tp, middle, until))
        self.slices.append(_Slice(unit.range))
        self.turns += 1
        return unit

    def release(self) -> Iterator[UnitOutcome]:
        """Outcomes below which nothing is missing, in order."""
        while self.slices and (outcome := self.slices[0].outcome) is not None:
            self.slices.popleft()
            yield outcome
            leader_epoch = max(self.unit.leader_epoch, outcome.leader_epoch)
            until = outcome.epoch_until or self.unit.epoch_until
            self.unit = dataclasses.replace(self.unit, leader_epoch=leader_epoch, epoch_until=until)
            if outcome.has_ended or outcome.position < outcome.unit.range.until_offset:
                self._give_up(outcome)

    def _give_up(self, outcome: UnitOutcome) -> None:
        """What comes after a slice that ended early does not follow it. One that closed early is read on."""
        self.slices.clear()
        self.has_ended = self.has_ended or outcome.has_ended
        tp, _, until = _bounds(self.unit)
        self.unit = dataclasses.replace(self.unit, range=OffsetRange(tp, outcome.position, until))


@dataclass
class _Slice:
    range: OffsetRange
    outcome: UnitOutcome | None = None


@dataclass
class _Budget:
    """The task seconds of a topic that has a limit: what is left and not set aside, for how many partitions that
    wait for a turn, and those of them that wait for seconds to come back."""

    left: float
    queued: int = 0
    short: list[_Chain] = field(default_factory=list)

    @property
    def share(self) -> float:
        """What a slice gets now."""
        return self.left / max(1, self.queued)


class Turns:
    """The slices of one run. `next_task` hands them out, `take` receives what became of them."""

    def __init__(self, units: Collection[Unit], limits: SliceLimits) -> None:
        self._limits = limits
        self._chains = {unit.range.topic_partition: _Chain(unit) for unit in units}
        self._queue: list[tuple[float, float, int, TopicPartition]] = []
        self._reading: dict[TopicPartition, _Chain] = {}
        self._budgets: dict[str, _Budget] = {}
        self.in_flight = 0
        for unit in units:
            if unit.settings.extraction.max_seconds:
                self._budgets[unit.range.topic_partition.topic] = _Budget(
                    unit.settings.extraction.max_seconds
                )
        for chain in self._chains.values():
            self._enter(chain)

    @property
    def has_more(self) -> bool:
        """Whether a task may be had now: a partition waits for its turn, or slices may be read ahead."""
        return bool(self._queue or self._reading)

    @property
    def unfinished(self) -> int:
        """Partitions of which something is left that no slice has taken and no error has ended."""
        return sum(chain.left > 0 for chain in self._chains.values())

    def next_task(self, idle_slots: int, seconds: float = math.inf) -> tuple[Unit, ...]:
        """What the next task reads, while this many could start and so much time is left; nothing where nothing can be
        read now."""
        self._set_short_aside()
        units = tuple(
            self._packed(idle_slots, seconds) if self._queue else self._read_ahead(idle_slots, seconds)
        )
        self.in_flight += len(units)
        return units

    def take(self, outcome: UnitOutcome) -> list[UnitOutcome]:
        """Note an outcome; return those that can be published now, in order."""
        range_ = outcome.unit.range
        chain = self._chains[range_.topic_partition]
        self.in_flight -= 1
        self._settle(outcome)
        waiting = [piece for piece in chain.slices if piece.range == range_ and piece.outcome is None]
        if not waiting:
            return []  # given up while it was read
        waiting[0].outcome = outcome
        chain.has_ended = chain.has_ended or outcome.has_ended
        released = list(chain.release())
        if not chain.slices:
            del self._reading[range_.topic_partition]
            if chain.left:
                self._enter(chain)
        return released

    def _enter(self, chain: _Chain) -> None:
        """Queue a partition none of whose slices is being read."""
        budget = self._budget(chain)
        if budget is not None:
            budget.queued += 1
        turn = chain.turns / weight(chain.unit)
        heapq.heappush(self._queue, (turn, *urgency(chain.unit), chain.unit.range.topic_partition))

    def _packed(self, idle_slots: int, seconds: float) -> Iterator[Unit]:
        """The next slice; where it is small, with others as small in one task."""
        cores = idle_slots // len(self._queue)
        first = self._next_slice(cores, seconds)
        yield first
        size, count = first.range.positions, 1
        self._set_short_aside()
        while self._queue and count < self._limits.packed_units:
            size += self._chains[self._queue[0][-1]].left
            if size > self._limits.packed_positions:
                break
            yield self._next_slice(cores, seconds)
            count += 1
            self._set_short_aside()

    def _next_slice(self, cores: int, seconds: float) -> Unit:
        tp = heapq.heappop(self._queue)[-1]
        chain = self._reading[tp] = self._chains[tp]
        budget = self._budget(chain)
        if budget is None:
            return chain.cut(self._size(chain.left, cores), seconds)
        share = min(seconds, max(budget.share, min(self._limits.least_seconds, budget.left)))
        budget.queued -= 1
        budget.left -= share
        return chain.cut(self._size(chain.left, 1), share)

    def _read_ahead(self, idle_slots: int, seconds: float) -> Iterator[Unit]:
        """A further slice of the partition of which most is left, where that is worth a task."""
        limits, reading = self._limits, self._reading.values()
        chains = (c for c in reading if len(c.slices) <= limits.ahead and self._budget(c) is None)
        longest = max(chains, key=lambda chain: chain.left, default=None)
        if longest is not None and longest.left >= limits.least:
            yield longest.cut(self._size(longest.left, idle_slots), seconds)

    def _size(self, left: int, cores: int) -> int:
        """Even parts for so many cores, none too small, none too large."""
        parts = max(1, min(cores, left // self._limits.least))
        return min(self._limits.positions, math.ceil(left / parts))

    def _budget(self, chain: _Chain) -> _Budget | None:
        return self._budgets.get(chain.unit.range.topic_partition.topic)

    def _set_short_aside(self) -> None:
        """Take from the queue's head those whose topic has no seconds to give now."""
        while self._queue:
            chain = self._chains[self._queue[0][-1]]
            budget = self._budget(chain)
            if budget is None or budget.left >= self._limits.least_seconds:
                return
            heapq.heappop(self._queue)
            budget.queued -= 1
            budget.short.append(chain)

    def _settle(self, outcome: UnitOutcome) -> None:
        """Charge a topic for what a slice took; who waits for seconds may have a turn again."""
        budget = self._budgets.get(outcome.unit.range.topic_partition.topic)
        if budget is None:
            return
        budget.left += outcome.unit.seconds - outcome.seconds
        if budget.left >= self._limits.least_seconds:
            short, budget.short = budget.short, []
            for chain in short:
                self._enter(chain)


def _bounds(unit: Unit) -> tuple[TopicPartition, int, int]:
    range_ = unit.range
    return range_.topic_partition, range_.from_offset, range_.until_offset
