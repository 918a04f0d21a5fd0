"""The staging area of one replay. It has its own commits, staged files and table states, so extraction and loading run
on it unchanged (PROTOCOL R1)."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Protocol

from kbq_assets.core.config.settings import Settings
from kbq_assets.core.erasure.model import log_path
from kbq_assets.core.errors import NotFound, PreconditionFailed
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.commits import Commit, starting_at
from kbq_assets.core.protocol.counts import Counts, total
from kbq_assets.core.protocol.names import TableReference, shard_of
from kbq_assets.core.protocol.waits import stop_commands
from kbq_assets.core.replay.model import Replay, ReplayProgress
from kbq_assets.core.topics.column_names import AS_WRITTEN
from kbq_assets.core.topics.evolution import VARIANTS
from kbq_assets.core.topics.json.inference import SHAPES, InferredSchema
from kbq_assets.core.topics.json.merging import merged
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.pipelines.extraction.extractor import Extractor
from kbq_assets.pipelines.loading.loader import Loader
from kbq_assets.pipelines.operate.commands import shards_of
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.state import Versioned
from kbq_assets.pipelines.replay.ranged import RangedOffsets, ReplaySources
from kbq_assets.pipelines.replay.shadows import ShadowWarehouse
from kbq_assets.ports.engine import ExtractionEngine
from kbq_assets.ports.object_store import ObjectStore

#: Seconds of a turn. With a rate, each turn reads at most as many records as the rate allows in this time.
TURN_SECONDS: Final = 30


class AreaAdapters(Protocol):
    """Opens the ports of a staging area below the live one."""

    settings: Settings

    def store(self) -> ObjectStore:
        """The area's objects, with the extraction's credentials."""

    def load_store(self) -> ObjectStore:
        """The area's objects, with the loader's credentials."""

    def engine(self) -> AbstractContextManager[ExtractionEngine]:
        """An engine whose tasks write into the area."""


@dataclass(frozen=True)
class ReplayArea:
    """A replay's extractor and loader. ``live`` is the live deployment; ``rate`` limits records per second (0: no)."""

    live: Deployment
    replay: Replay
    adapters: AreaAdapters
    rate: int = 0

    @cached_property
    def deployment(self) -> Deployment:
        """The replay's own deployment: another staging area, shadow tables, and only the range of the topic."""
        live, replay = self.live, self.replay
        settings = self.adapters.settings
        if self.rate:
            run = dataclasses.replace(settings.run, run_records=self.rate * TURN_SECONDS)
            settings = dataclasses.replace(settings, run=run)
        return Deployment(
            settings=settings,
            clock=live.clock,
            sources=ReplaySources(live.settings, live.sources.open_catalog, replay.topic, replay.source),
            open_store=self.adapters.store,
            open_load_store=self.adapters.load_store,
            open_offsets=lambda: RangedOffsets(live.offsets, replay),
            open_warehouse=lambda: ShadowWarehouse(live.warehouse, replay),
            examine_staging=live.examine_staging,
            open_backup=live.open_backup,
        )

    @cached_property
    def extractor(self) -> Extractor:
        return Extractor(self.deployment, self.adapters.engine)

    @cached_property
    def loader(self) -> Loader:
        return Loader(self.deployment, publishes_hours=False)

    def prepare(self) -> None:
        """Create the commits of the range, with the live topic's schemas. Repeatable."""
        # Copy the erasure log before creating the commits: they get its version (X4).
        for prefix in (f"{SHAPES}{self.replay.topic}.json", VARIANTS, log_path(self.replay.topic)):
            for path in self.live.store.paths(prefix):
                _copy(self.live.store, self.deployment.store, path)
        state.create_commits(self.deployment.store, list(self._commits()))

    def _commits(self) -> Iterable[Commit]:
        for shard, live in sorted(shards_of(self.live.store, self.replay.topic).items()):
            bounds = {p: b for p, b in self.replay.bounds.items() if shard_of(p) == shard}
            yield Commit(
                live.topic,
                shard,
                live.cluster_id,
                live.topic_id,
                self.replay.epoch,
                {p: starting_at(b.first, -1, self.replay.epoch) for p, b in bounds.items()},
                schema_ids=live.schema_ids,
            )

    def share_columns(self) -> None:
        """Add the columns that the replay inferred from documents to those of the live topic, which then keeps to their
        types (R3). Repeatable. Raises Refused if the two contradict each other."""
        topic, number = self.replay.topic, self.replay.number
        path = f"{SHAPES}{topic}.json"
        own = state.find(self.deployment.store, InferredSchema, path)
        if own is None:
            return
        settings = self.live.sources.select([topic]).get(topic)
        style = settings.destination.column_names if settings else AS_WRITTEN
        again = (
            f"kbq replay drop {number}, and replay again: it then begins with the columns of the live topic"
        )
        state.create(self.live.store, path, own.value)  # unless the topic has columns
        state.change(
            self.live.store, InferredSchema, path, lambda live: merged(live, own.value, style, again=again)
        )

    def states(self) -> Mapping[TableReference, Versioned[TableState]]:
        """The states of the shadows, by the names of the real tables."""
        store = self.deployment.load_store
        return state.read_table_states(store)

    def commits(self) -> list[Commit]:
        store = self.deployment.store
        return [found.value for found in state.read_commits(store)]

    @property
    def totals(self) -> Counts:
        """The counts of the records read so far, for all tables of the topic."""
        return _totals(self.commits())

    @property
    def passed_over(self) -> Mapping[int, int]:
        """Numbers of records that became no rows, by partition."""
        found = {n: each.totals for c in self.commits() for n, each in c.partitions.items()}
        return {n: counts.skipped + counts.erased for n, counts in found.items()}

    def progress(self) -> ReplayProgress:
        """The progress of reading and loading the range."""
        commits, states = self.commits(), {t: s.value for t, s in self.states().items()}
        waiting = [
            file
            for commit in commits
            for file in commit.files
            if self.replay.covers(file.table)
            and (file.table not in states or not states[file.table].is_loaded(file))
        ]
        backlog = [c for t in states for c in state.read_backlog(self.deployment.load_store, t)]
        totals = _totals(commits)
        return ReplayProgress(
            positions=self.replay.positions,
            read=totals.positions,
            records=totals.records,
            rows=sum(rows for found in states.values() for rows in found.rows.values()),
            errors=totals.errors,
            skipped=totals.skipped,
            waiting=sum(file.rows for file in waiting) + sum(f.rows for c in backlog for f in c.value.files),
            stops=tuple(self._stops(commits, states)),
        )

    def _stops(
        self, commits: Collection[Commit], states: Mapping[TableReference, TableState]
    ) -> Iterator[str]:
        """The stops that wait for an operator, each with its next step."""
        number = self.replay.number
        for commit in commits:
            for partition, found in sorted(commit.partitions.items()):
                if (stop := found.stop) is not None:
                    commands = stop_commands(stop.reason, commit.topic_partition(partition))
                    yield f"{stop.message}; next: {_command(number, commands)}"
        for table, current in sorted(states.items()):
            if current.parked:
                yield f"{table} is parked: {current.parked.error}; next: kbq replay resume {number}"
        for bad in (bad for current in states.values() for bad in current.quarantined):
            yield f"{bad.file.path} was rejected by the warehouse: {bad.error}; next: kbq replay drop {number}"
        if lost := _totals(commits).lost:
            yield f"{counted(lost, 'position is', 'positions are')} lost; next: kbq replay drop {number}"


def _totals(commits: Iterable[Commit]) -> Counts:
    return total(found.totals for commit in commits for found in commit.partitions.values())


def _command(number: int, live: tuple[str, ...]) -> str:
    """The command that resumes a stopped replay; ``live`` are the commands that would resume the live topic."""
    as_errors = any(command.endswith("--as-errors") for command in live)
    resume = f"kbq replay resume {number}"
    return f"{resume} or {resume} --as-errors" if as_errors else f"{resume} or kbq replay drop {number}"


def _copy(source: ObjectStore, target: ObjectStore, path: str) -> None:
    """Copy an object unless it is gone or the copy exists."""
    with contextlib.suppress(NotFound, PreconditionFailed):
        target.create(path, source.get(path).data)
