"""Publishes finished windows while the loop submits tasks: one swap per commit for all tables (PROTOCOL E4).

Shards are published in parallel, the swaps of one shard in order. The loop only adds outcomes and collects results, so
the store's latency delays no task.
"""

from __future__ import annotations

import contextlib
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass, field, replace
from typing import Final

from kbq_assets.core.errors import (
    ConfigurationError,
    Defect,
    NotFound,
    PreconditionFailed,
    StateError,
    TransientError,
    UnknownOutcome,
)
from kbq_assets.core.extraction.deaths import stop_of
from kbq_assets.core.extraction.planning import is_other_topic
from kbq_assets.core.extraction.publishing import rebase
from kbq_assets.core.extraction.stops import PartitionStop, refused_stop
from kbq_assets.core.extraction.units import UnitOutcome
from kbq_assets.core.protocol.commits import Commit, Stop, Window
from kbq_assets.core.protocol.names import commit_path, shard_of
from kbq_assets.core.protocol.offsets import TopicDescription, TopicPartition
from kbq_assets.core.protocol.waits import StopReason, stop_commands
from kbq_assets.core.protocol.watermarks import LogEnd, Shard, mark_ends
from kbq_assets.pipelines.extraction.end_marks import mark_idle
from kbq_assets.pipelines.protocol import manifests
from kbq_assets.pipelines.protocol.done_files import NO_DONE_FILES, write_done_files
from kbq_assets.pipelines.protocol.manifests import LostManifest
from kbq_assets.pipelines.protocol.refusals import end_if_all
from kbq_assets.pipelines.protocol.state import read_head, swap
from kbq_assets.ports.clock import Clock
from kbq_assets.ports.kafka import OffsetReader
from kbq_assets.ports.object_store import ObjectStore

#: GCS allows about one write per object and second. KBQ keeps the same pace on every store.
SECONDS_BETWEEN_SWAPS: Final = 1.0
#: Windows that may wait for their swap. Above this, the run submits no task until all of them are published.
MOST_WAITING: Final = 20_000
#: Attempts to rebase a swap on other writers' swaps before its windows are dropped.
_REBASES: Final = 10
_LOGGER: Final = logging.getLogger("kbq.extract")


@dataclass
class _Published:
    """The result of one swap: which outcomes were published, and which failed."""

    outcomes: list[UnitOutcome] = field(default_factory=list)
    failures: dict[TopicPartition, str] = field(default_factory=dict)
    stops: list[PartitionStop] = field(default_factory=list)
    refusal: ConfigurationError | None = None
    ended: float = 0.0


@dataclass
class PublishedCounts:
    """Positions and records of the published windows."""

    positions: int = 0
    records: int = 0

    def add(self, windows: Sequence[Window]) -> None:
        self.positions += windows[-1].until - windows[0].first
        self.records += sum(window.counts.records for window in windows)


class Publisher:
    """Publishes the windows of a run in the threads of ``pool``. ``published`` has the windows known to be in a commit.

    ``ends`` are the log ends that the broker reported at ``asked_ms``. Partitions that are read up to them get a mark.
    """

    def __init__(
        self,
        store: ObjectStore,
        offsets: OffsetReader,
        clock: Clock,
        pool: Executor,
        ends: Mapping[TopicPartition, LogEnd] | None = None,
        asked_ms: int = 0,
        *,
        done_files: bool = True,
    ) -> None:
        self._store = store
        self._done_files = done_files
        self._offsets = offsets
        self._clock = clock
        self._pool = pool
        self._ends = ends or {}
        self._asked_ms = asked_ms
        self._waiting: dict[Shard, list[UnitOutcome]] = defaultdict(list)
        self._running: dict[Future[_Published], tuple[Shard, int]] = {}
        #: when each shard's last swap ended, and the store's refusal of it
        self._last_swap: dict[Shard, tuple[float, ConfigurationError | None]] = {}
        self._unpublished = 0
        self.published: dict[TopicPartition, list[Window]] = {}
        self.failures: dict[TopicPartition, str] = {}
        #: partitions whose windows can never be published
        self.stops: list[PartitionStop] = []
        self.counts = PublishedCounts()

    def add(self, outcome: UnitOutcome) -> None:
        """Add an outcome's windows and its stop to the next swap of its commit."""
        tp = outcome.unit.range.topic_partition
        if (outcome.windows or outcome.stop or outcome.has_died) and tp not in self.failures:
            self._waiting[tp.topic, shard_of(tp.partition)].append(outcome)
            self._unpublished += len(outcome.windows)

    def flush_due(self) -> None:
        """Start a swap for shards whose last swap was at least a second ago, and collect finished swaps.

        If more than `MOST_WAITING` windows wait, waits until all are published.
        """
        self._collect()
        ripe = self._clock.monotonic() - SECONDS_BETWEEN_SWAPS
        self._start([s for s in self._waiting if s not in self._last_swap or self._last_swap[s][0] <= ripe])
        self._collect()
        if self._unpublished > MOST_WAITING:
            self.flush()

    def flush(self) -> None:
        """Publish everything, and wait until it is published."""
        while self._waiting or self._running:
            self._start(list(self._waiting))
            wait(self._running, return_when=FIRST_COMPLETED)
            self._collect()

    def mark_idle(self) -> None:
        """Mark partitions that had nothing to read, in commits that this run did not swap."""
        mark_idle(self._store, self._clock, self._ends, self._asked_ms, self._last_swap.keys())

    def _start(self, shards: Iterable[Shard]) -> None:
        """Publish shards in the pool, except those with a running swap: the swaps of one commit must be in order."""
        busy = {shard for shard, _ in self._running.values()}
        begun = [shard for shard in shards if shard not in busy]
        if not begun:
            return
        # Ask for the ids after the read: a topic that still has the commit's id had it during the whole read (E2). If a
        # topic is recreated, a client may silently continue in the new log.
        described = self._pool.submit(self._offsets.topics, frozenset(topic for topic, _ in begun))
        for shard in begun:
            outcomes = self._waiting.pop(shard)
            windows = sum(len(outcome.windows) for outcome in outcomes)
            self._running[self._pool.submit(self._publish, shard, outcomes, described)] = shard, windows

    def _collect(self) -> None:
        """Take the results of finished swaps. Raises ConfigurationError if the store refused all of many."""
        for future in [future for future in self._running if future.done()]:
            shard, windows = self._running.pop(future)
            self._unpublished -= windows
            result = future.result()
            self._last_swap[shard] = result.ended, result.refusal
            self.stops += result.stops
            for tp, message in result.failures.items():
                self.failures.setdefault(tp, message)
            for outcome in result.outcomes:
                self.published.setdefault(outcome.unit.range.topic_partition, []).extend(outcome.windows)
                self.counts.add(outcome.windows)
            if result.refusal is not None:
                end_if_all([refusal for _, refusal in self._last_swap.values()])

    # In the pool's threads

    def _publish(
        self,
        shard: Shard,
        outcomes: list[UnitOutcome],
        described: Future[Mapping[str, TopicDescription]],
    ) -> _Published:
        """Publish a shard's outcomes. If the broker, the store or the commit has an error, only these outcomes fail."""
        try:
            now = described.result().get(shard[0])
            result = self._swapped(commit_path(*shard), self._timed(outcomes), now.topic_id if now else "")
        except ConfigurationError as error:
            result = _lost(outcomes, f"not published: {error}")
            result.stops, result.refusal = [refused_stop(shard[0], "not published", error)], error
        except (TransientError, StateError) as error:
            result = _lost(outcomes, f"not published: {error}")
        except Exception as error:
            result = self._apart(shard, outcomes, described, error)
        result.ended = self._clock.monotonic()
        return result

    def _swapped(self, path: str, outcomes: list[UnitOutcome], topic_id: str) -> _Published:
        known: frozenset[str] | None = None
        for _ in range(_REBASES):
            try:
                current = read_head(self._store, path)
                known = known or frozenset(entry.name for entry in current.value.manifests)
                sealed = self._sealed_since(known, current.value)
            except NotFound:
                return _lost(outcomes, f"{path} is gone")
            except LostManifest:
                continue  # the manifest may have left the head meanwhile: read the head again (M4)
            if is_other_topic(current.value.topic_id, topic_id):
                return _lost(outcomes, "the topic was recreated while it was read")
            wanted, ours, lost = rebase(current.value, outcomes, self._clock.now_ms(), self._asked_ms, sealed)
            wanted = mark_ends(wanted, self._ends, self._asked_ms)
            try:
                swap(self._store, current, wanted)
            except (PreconditionFailed, UnknownOutcome):
                continue  # read the head again: windows that it lists are published, whichever attempt wrote them
            return _Published(ours, lost, self._announced(ours))
        return _lost(outcomes, f"{path} changed {_REBASES} times; the next run reads these windows again")

    def _announced(self, outcomes: Iterable[UnitOutcome]) -> list[PartitionStop]:
        """Write done files. If the store refuses one, return a stop for the topic."""
        if not self._done_files:
            return []
        names = [f.done for o in outcomes for w in o.windows for f in w.files]
        failed = write_done_files(self._store, names).items()
        refused = [(tp, error) for tp, error in failed if isinstance(error, ConfigurationError)]
        return [refused_stop(tp.topic, NO_DONE_FILES, error) for tp, error in refused[:1]]

    def _apart(
        self,
        shard: Shard,
        outcomes: list[UnitOutcome],
        described: Future[Mapping[str, TopicDescription]],
        error: Exception,
    ) -> _Published:
        """Publish each partition alone, because one of them cannot be published. If there is only one, stop it: the
        next run would fail too (E10)."""
        by_partition: dict[TopicPartition, list[UnitOutcome]] = defaultdict(list)
        for outcome in outcomes:
            by_partition[outcome.unit.range.topic_partition].append(outcome)
        if len(by_partition) == 1:
            [(tp, own)] = by_partition.items()
            return self._stopped(shard, tp, own, error)
        found = _Published()
        for own in by_partition.values():
            each = self._publish(shard, own, described)
            found.outcomes += each.outcomes
            found.failures |= each.failures
            found.stops += each.stops
        return found

    def _stopped(
        self, shard: Shard, tp: TopicPartition, outcomes: list[UnitOutcome], error: Exception
    ) -> _Published:
        path, why = commit_path(*shard), f"not published: {Defect.of(error)}"
        _LOGGER.error("%s is not published", tp, exc_info=error)
        unit, reason = outcomes[0].unit, StopReason.FAILED
        stop = Stop(reason, why, unit.range.from_offset, unit.range.until_offset)
        bare = self._timed([UnitOutcome(unit, stop=stop)])
        with contextlib.suppress(Exception):  # if the stop cannot be written either, only the report has it
            current = read_head(self._store, path)
            swap(self._store, current, rebase(current.value, bare, self._clock.now_ms())[0])
        return _Published(
            failures={tp: why}, stops=[PartitionStop(tp, reason, why, stop_commands(reason, tp))]
        )

    def _sealed_since(self, known: frozenset[str], head: Commit) -> frozenset[str]:
        """Paths of files in manifests that were not ``known`` when this publication began. A swap with an unknown
        outcome may have moved its own windows there."""
        since = [entry for entry in head.manifests if entry.name not in known]
        read = manifests.read_parts(self._store, head, since).manifests.values()
        return frozenset(file.path for manifest in read for file in manifest.files)

    def _timed(self, outcomes: list[UnitOutcome]) -> list[UnitOutcome]:
        """The outcomes, with the store's time in their stops: pauses count from it (E10)."""
        if all(outcome.stop is None and not outcome.has_died for outcome in outcomes):
            return outcomes
        now_ms = self._store.now_ms()
        outcomes = [replace(o, stop=stop_of(o, now_ms)) if o.has_died else o for o in outcomes]
        return [
            replace(o, stop=replace(o.stop, last_ms=now_ms)) if o.stop is not None else o for o in outcomes
        ]


def _lost(outcomes: Iterable[UnitOutcome], message: str) -> _Published:
    return _Published(failures={outcome.unit.range.topic_partition: message for outcome in outcomes})
