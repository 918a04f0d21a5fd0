"""Chooses the slices that the tasks of a run read, and decides when their windows may be published.

Partitions take turns, slice by slice. If cores would be idle, tasks read several slices of one partition at once. An
outcome waits until all earlier slices are released, so windows are published in order (PROTOCOL E4). If a slice ends
early, the slices after it are dropped, and their files become orphans.

If a topic limits its task seconds, a slice reserves seconds when it is handed out and returns the unused ones. So
concurrent tasks together stay within the limit. Partitions share the remaining seconds evenly. Their slices are
expected to end early, so none is read ahead.
"""

from __future__ import annotations

import dataclasses
import functools
import heapq
import math
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from kbq_assets.core.extraction.shares import urgency, weight
from kbq_assets.core.extraction.units import Unit, UnitOutcome
from kbq_assets.core.protocol.commits import epoch_after
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition

_Lane: TypeAlias = tuple[TopicPartition, bool]


@dataclass(frozen=True)
class SliceLimits:
    """Sizes of slices, and how many a task or a partition may have."""

    #: most positions of a slice
    positions: int = 5_000_000
    #: smallest slice that is cut only to keep a core busy
    least: int = 1_000_000
    #: most slices of one partition, beyond the first, that are read or wait at once
    ahead: int = 7
    #: most positions in a task of several ranges, if there are enough slots
    packed_positions: int = 20_000
    #: most ranges in a task, if there are enough slots
    packed_units: int = 64
    #: factor for both if many ranges wait for few slots: starting a task costs 34 ms
    packed_times: int = 8
    #: least number of such larger tasks per slot, so that no slot sits idle while the last task runs
    tasks_left: int = 4
    #: fewest task seconds that are worth a slice
    least_seconds: float = 1.0


@dataclass
class _Chain:
    """One partition: the unread rest of its unit, and, in order, its slices that are being read or wait for earlier
    ones."""

    unit: Unit
    turns: int = 0
    has_ended: bool = False
    slices: deque[_Slice] = field(default_factory=deque)

    @property
    def left(self) -> int:
        return 0 if self.has_ended else self.unit.range.positions

    def cut(self, positions: int, seconds: float = math.inf) -> Unit:
        """The next slice, to be read within ``seconds``."""
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
        """Outcomes that no earlier slice holds back, in order."""
        while self.slices and (outcome := self.slices[0].outcome) is not None:
            self.slices.popleft()
            yield outcome
            leader_epoch = functools.reduce(epoch_after, outcome.windows, self.unit.leader_epoch)
            until = outcome.epoch_until or self.unit.epoch_until
            self.unit = dataclasses.replace(
                self.unit,
                leader_epoch=leader_epoch,
                epoch_until=until,
                backup_epoch=self.unit.backup_epoch if outcome.backup_follows else 0,
            )
            if outcome.has_ended or outcome.position < outcome.unit.range.until_offset:
                self._drop_later(outcome)

    def _drop_later(self, outcome: UnitOutcome) -> None:
        """If a slice fails, drop the slices after it. If it merely closed early, continue from its position."""
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
    """The task seconds of a topic that limits them."""

    #: seconds that no slice has reserved
    left: float
    #: partitions that wait for a turn
    queued: int = 0
    #: partitions that wait until slices return seconds
    short: list[_Chain] = field(default_factory=list)

    @property
    def share(self) -> float:
        """Seconds for a slice that starts now."""
        return self.left / max(1, self.queued)


class Turns:
    """The slices of one run. `next_task` hands them out, `take` receives their outcomes."""

    def __init__(self, units: Collection[Unit], limits: SliceLimits) -> None:
        self._limits = limits
        self._chains = {unit.lane: _Chain(unit) for unit in units}
        self._queue: list[tuple[float, float, int, _Lane]] = []
        self._reading: dict[_Lane, _Chain] = {}
        self._budgets: dict[str, _Budget] = {}
        self.in_flight = 0
        #: most slots that were idle at once
        self._slots = 0
        for unit in units:
            if unit.settings.extraction.max_seconds:
                self._budgets[unit.range.topic_partition.topic] = _Budget(
                    unit.settings.extraction.max_seconds
                )
        for chain in self._chains.values():
            self._enter(chain)

    @property
    def has_more(self) -> bool:
        """Whether `next_task` may return units, because a partition waits for its turn or may be read ahead."""
        return bool(self._queue or self._reading)

    @property
    def unfinished(self) -> int:
        """Number of partitions that did not fail and are not read to the end of their unit."""
        return sum(chain.left > 0 for chain in self._chains.values())

    @property
    def limited(self) -> int:
        """Number of unfinished partitions whose topic has used its seconds."""
        return sum(len(budget.short) for budget in self._budgets.values())

    def next_task(self, idle_slots: int, seconds: float = math.inf) -> tuple[Unit, ...]:
        """Units for the next task, given idle slots and remaining seconds; empty if none is ready."""
        self._set_short_aside()
        units = tuple(
            self._packed(idle_slots, seconds) if self._queue else self._read_ahead(idle_slots, seconds)
        )
        self.in_flight += len(units)
        return units

    def take(self, outcome: UnitOutcome) -> list[UnitOutcome]:
        """Record an outcome; return the outcomes that can be published now, in order."""
        range_, lane = outcome.unit.range, outcome.unit.lane
        chain = self._chains[lane]
        self.in_flight -= 1
        self._settle(outcome)
        waiting = [piece for piece in chain.slices if piece.range == range_ and piece.outcome is None]
        if not waiting:
            return []  # dropped while it was read
        waiting[0].outcome = outcome
        chain.has_ended = chain.has_ended or outcome.has_ended
        released = list(chain.release())
        if not chain.slices:
            del self._reading[lane]
            if chain.left:
                self._enter(chain)
        return released

    def _enter(self, chain: _Chain) -> None:
        """Queue a partition that has no slice in a task."""
        budget = self._budget(chain)
        if budget is not None:
            budget.queued += 1
        turn = chain.turns / weight(chain.unit)
        heapq.heappush(self._queue, (turn, *urgency(chain.unit), chain.unit.lane))

    def _packed(self, idle_slots: int, seconds: float) -> Iterator[Unit]:
        """The next slice and, if it is small, more small slices for the same task."""
        limits, cores = self._limits, idle_slots // len(self._queue)
        self._slots = max(self._slots, idle_slots)
        tasks = len(self._queue) // (limits.packed_units * limits.tasks_left * max(1, self._slots))
        times = max(1, min(limits.packed_times, tasks))
        first = self._next_slice(cores, seconds)
        yield first
        size, count = first.range.positions, 1
        self._set_short_aside()
        while self._queue and count < limits.packed_units * times and not first.alone:
            following = self._chains[self._queue[0][-1]]
            size += following.left
            if size > limits.packed_positions * times or following.unit.alone:
                break
            yield self._next_slice(cores, seconds)
            count += 1
            self._set_short_aside()

    def _next_slice(self, cores: int, seconds: float) -> Unit:
        lane = heapq.heappop(self._queue)[-1]
        chain = self._reading[lane] = self._chains[lane]
        budget = self._budget(chain)
        if budget is None:
            return chain.cut(self._size(chain.left, cores), seconds)
        share = min(seconds, max(budget.share, min(self._limits.least_seconds, budget.left)))
        budget.queued -= 1
        budget.left -= share
        return chain.cut(self._size(chain.left, 1), share)

    def _read_ahead(self, idle_slots: int, seconds: float) -> Iterator[Unit]:
        """Another slice of the partition with the most unread positions, if it is worth a task."""
        limits, reading = self._limits, self._reading.values()
        chains = (c for c in reading if len(c.slices) <= limits.ahead and self._budget(c) is None)
        longest = max(chains, key=lambda chain: chain.left, default=None)
        if longest is not None and longest.left >= limits.least:
            yield longest.cut(self._size(longest.left, idle_slots), seconds)

    def _size(self, left: int, cores: int) -> int:
        """Positions of a slice: an even part per core, within the limits."""
        parts = max(1, min(cores, left // self._limits.least))
        return min(self._limits.positions, math.ceil(left / parts))

    def _budget(self, chain: _Chain) -> _Budget | None:
        return self._budgets.get(chain.unit.range.topic_partition.topic)

    def _set_short_aside(self) -> None:
        """Move partitions whose topic has no seconds left from the queue's head to their budget's list."""
        while self._queue:
            chain = self._chains[self._queue[0][-1]]
            budget = self._budget(chain)
            if budget is None or budget.left >= self._limits.least_seconds:
                return
            heapq.heappop(self._queue)
            budget.queued -= 1
            budget.short.append(chain)

    def _settle(self, outcome: UnitOutcome) -> None:
        """Charge a topic for a slice's seconds, and queue its partitions again if they waited for seconds."""
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
