"""Replays of one deployment: start, read, compare, promote and drop them. Each method is one bounded step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from kbq_assets.core.errors import Refused
from kbq_assets.core.loading import table_state
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.protocol.commits import Commit
from kbq_assets.core.protocol.names import TableReference, commit_path, table_state_path
from kbq_assets.core.protocol.offsets import OffsetRange
from kbq_assets.core.replay.model import (
    BACKUP,
    KAFKA,
    Phase,
    Replay,
    ReplayProgress,
    check_latest,
    replay_path,
)
from kbq_assets.core.replay.positions import Position
from kbq_assets.core.statements.side_tables import deleted_table
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.pipelines.extraction.ports import Progress
from kbq_assets.pipelines.observation.lake_readers import OpenReaders, follow_lake
from kbq_assets.pipelines.operate.commands import Proposal, resumed, shards_of
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.replay.area import TURN_SECONDS, AreaAdapters, ReplayArea
from kbq_assets.pipelines.replay.backup_ranges import TopicCopies
from kbq_assets.pipelines.replay.chosen import check_moves, left_out
from kbq_assets.pipelines.replay.diff import ReplayDiff, billed_lines, check_records, compare
from kbq_assets.pipelines.replay.keyed import KeyedTables
from kbq_assets.pipelines.replay.leftovers import delete_objects
from kbq_assets.pipelines.replay.promote import (
    PROMOTE,
    ROLL_BACK,
    Direction,
    Replacer,
    free_tables,
    tables_of,
)
from kbq_assets.pipelines.replay.ranged import replayed_settings
from kbq_assets.pipelines.replay.start import (
    create,
    find_replay,
    plan_lines,
    plan_replay,
    read_replays,
    replay_numbers,
)
from kbq_assets.pipelines.replay.warehouses import check_own
from kbq_assets.ports.replay import ReplayTables


@dataclass(frozen=True)
class Replays:
    """Reads ranges of topics again, while live extraction and loading continue.

    ``open_area`` opens the ports of a staging area below the live one, ``open_tables`` the warehouse's replay tables.
    ``open_readers`` opens the port that lets BigQuery's tables of a lake read new rows; without it, they keep the old.
    """

    live: Deployment
    open_area: Callable[[str], AreaAdapters]
    open_tables: Callable[[], ReplayTables]
    open_readers: OpenReaders | None = None

    def find(self, number: int) -> Replay:
        """A replay of this warehouse. Raises NotFound; Refused for a replay of another warehouse."""
        return check_own(self.live.settings, find_replay(self.live.store, number))

    def list(self) -> list[Replay]:
        """All replays, of every warehouse, in order."""
        return read_replays(self.live.store)

    def area(self, replay: Replay, rate: int = 0) -> ReplayArea:
        return ReplayArea(self.live, replay, self.open_area(replay.area), rate)

    def progress(self, replay: Replay) -> ReplayProgress:
        """A replay's progress of reading and loading."""
        return self.area(replay).progress()

    def propose(
        self,
        topic: str,
        first: Position,
        until: Position,
        source: str = KAFKA,
        only: frozenset[TableReference] = frozenset(),
    ) -> tuple[Replay, Proposal]:
        """The next replay, of all tables or ``only`` some, and its plan. Applying the plan creates the replay but reads
        nothing yet. Raises Refused."""
        tables = self.open_tables()
        number = max(replay_numbers(self.live.store), default=0) + 1
        replay = plan_replay(self.live, number, topic, (first, until), source, only)
        lines = tuple(plan_lines(self.live, tables, replay))
        return replay, Proposal(
            f"replay {replay.number} of {topic}", lines, lambda: create(self.live, replay)
        )

    def read(
        self,
        number: int,
        *,
        rate: int = 0,
        on_progress: Callable[[Progress], None] = lambda progress: None,
    ) -> ReplayProgress:
        """Read and load the rest of the range, turn by turn. ``rate`` limits records per second; 0 is no limit.

        Ends early if a turn makes no progress, because something is stopped or does not answer. The next call
        continues.
        """
        replay = self.find(number)
        if replay.phase != Phase.READING:
            return self.progress(replay)
        check_rate(replay.source, rate)
        area = self.area(replay, rate)
        area.prepare()
        self._check_copies(area)
        before, clock = area.progress(), self.live.clock
        while not before.is_done:
            started = clock.monotonic()
            area.extractor.extract(only=frozenset({replay.topic}), on_progress=on_progress)
            area.loader.load(only=replay.chosen)
            now = area.progress()
            if now == before:
                return now
            if rate and not now.is_done:
                clock.sleep(max(0.0, started + TURN_SECONDS - clock.monotonic()))
            before = now
        self.enter(number, {Phase.READING}, Phase.READ)
        return before

    def _check_copies(self, area: ReplayArea) -> None:
        """Raise Refused if the backup has lost a part of the rest of the range, and Unavailable (R9)."""
        replay, live = area.replay, self.live
        if replay.source != BACKUP:
            return
        commits = shards_of(live.store, replay.topic)
        copies = TopicCopies.read(live, replayed_settings(live.sources, replay.topic), commits)
        for commit in area.commits():
            for partition, found in sorted(commit.partitions.items()):
                until = replay.bounds[partition].until
                if found.next < until:
                    left = OffsetRange(commit.topic_partition(partition), found.next, until)
                    copies.check(left, f"kbq replay drop {replay.number}")

    def resume(self, number: int, *, as_errors: bool = False) -> None:
        """Resume a replay's stopped partitions and parked tables. The next `read` tries them again. Raises Refused for
        a replay that was accepted or dropped."""
        replay = self.find(number)
        if replay.is_ended:
            raise Refused(f"replay {number} is {replay.phase}", next_step=_way_on(replay))
        area = self.area(replay)
        store, load_store = area.deployment.store, area.deployment.load_store
        for commit in area.commits():
            for partition, found in commit.partitions.items():
                if found.stop is not None:
                    path = commit_path(commit.topic, commit.shard)
                    state.change(store, Commit, path, partial(resumed, partition, as_errors))
        for table, versioned in area.states().items():
            if versioned.value.parked is not None:
                state.change(load_store, TableState, table_state_path(table), table_state.unpark)

    def diff(self, number: int, sample: int = 10) -> ReplayDiff:
        """Compare the range's rows in the live tables with the replay's. Raises Refused for a dropped replay."""
        replay = self.find(number)
        if replay.phase in (Phase.DROPPED, Phase.ACCEPTED):
            raise Refused(f"replay {number} is {replay.phase}", next_step="kbq replay list")
        area = self.area(replay)
        return compare(
            self.live,
            self.open_tables(),
            replay,
            area.progress(),
            list(area.states()),
            sample,
            with_keys=True,
        )

    # Promotion ----------------------------------------------------------------------------------------------------

    def propose_promotion(self, number: int) -> Proposal:
        """Replace the live rows of the range with the replay's. Raises Refused for an incomplete replay."""
        replay, area = self._replaceable(number, PROMOTE)
        progress = area.progress()
        if not progress.is_done:
            raise Refused(f"replay {number} is not complete", next_step=f"kbq replay resume {number}")
        found = compare(self.live, self.open_tables(), replay, progress, list(area.states()), 0)
        check_records(replay, found)
        check_moves(self.live, self.open_tables(), replay, left_out(replay, area.totals))
        appended = {day.table for day in found.days} - found.keyed
        lines = (
            *found.table_lines,
            *billed_lines(self.open_tables(), replay, appended),
            "until kbq replay accept, kbq replay rollback can restore the previous rows",
        )
        return Proposal(f"promote replay {number}", lines, lambda: self._replace(area, PROMOTE))

    def propose_rollback(self, number: int) -> Proposal:
        """Restore the previous rows of the range. Later rows stay. Raises Refused unless the replay was promoted."""
        replay, area = self._replaceable(number, ROLL_BACK)
        keyed = KeyedTables(self.live, replay).among(map(TableReference.parse, replay.tables))
        check_latest(replay, self.list(), frozenset(keyed))
        lines = tuple(f"{table}: restores the previous rows of the range" for table in replay.tables)
        return Proposal(f"roll replay {number} back", lines, lambda: self._replace(area, ROLL_BACK))

    def continue_(self, number: int) -> Replay:
        """Complete a promotion or rollback, or let tables continue that still wait for an ended one. Raises Refused if
        there is neither."""
        replay = self.find(number)
        for direction in (PROMOTE, ROLL_BACK):
            if replay.phase in (direction.during, direction.after):
                self._replace(self.area(replay), direction)
                return self.find(number)
        if free_tables(self.live, replay):
            return replay
        raise Refused(f"replay {number} is {replay.phase}", next_step=f"kbq replay status {number}")

    def propose_accept(self, number: int) -> Proposal:
        """Keep the promoted rows for good, and delete the copies of the previous ones. Raises Refused."""
        replay = self.find(number)
        if replay.phase not in (Phase.PROMOTED, Phase.ACCEPTED):
            raise Refused(f"replay {number} is {replay.phase}", next_step=_way_on(replay))

        def apply() -> None:
            if replay.phase == Phase.PROMOTED:
                self._replace(self.area(replay), PROMOTE)  # a table may still wait for it
            self.enter(number, {Phase.PROMOTED}, Phase.ACCEPTED)
            self._clear(replay, f"kbq replay accept {number}")

        lines = tuple(f"deletes {replay.former(TableReference.parse(table))}" for table in replay.tables)
        return Proposal(f"accept replay {number}", lines, apply)

    def _replaceable(self, number: int, direction: Direction) -> tuple[Replay, ReplayArea]:
        replay = self.find(number)
        if replay.phase not in {*direction.before, direction.during}:
            raise Refused(f"replay {number} is {replay.phase}", next_step=f"kbq replay status {number}")
        return replay, self.area(replay)

    def replaced(self, replay: Replay) -> Mapping[TableReference, bool]:
        """Whether the rows of each table are replaced, for a promotion or rollback that has not ended."""
        if not replay.is_changing:
            return {}
        direction = PROMOTE if replay.phase == Phase.PROMOTING else ROLL_BACK
        return self._replacer(self.area(replay), direction).parts(replay).progress()

    def _replacer(self, area: ReplayArea, direction: Direction) -> Replacer:
        return Replacer(
            self.live, self.open_tables(), tuple(area.states()), direction, area.totals, area.passed_over
        )

    def _replace(self, area: ReplayArea, direction: Direction) -> None:
        if direction is PROMOTE and area.replay.phase in PROMOTE.before:  # one that has begun has done this
            area.share_columns()
        replaced = self._replacer(area, direction).run(area.replay.number)
        follow_lake(self.live, self.open_readers, tables_of(replaced))

    def propose_drop(self, number: int) -> Proposal:
        """Delete a replay's shadow tables and staged files. The live tables do not change."""
        replay = self.find(number)
        if replay.phase not in _DROPPABLE:
            raise Refused(f"replay {number} is {replay.phase}", next_step=_way_on(replay))
        shadows = [replay.shadow(table) for table in self.area(replay).states()]

        def apply() -> None:
            free_tables(self.live, self.enter(number, _DROPPABLE, Phase.DROPPED))
            self._clear(replay, f"kbq replay drop {number}")

        return Proposal(f"drop replay {number}", tuple(f"deletes {table}" for table in shadows), apply)

    def _clear(self, replay: Replay, again: str) -> None:
        """Delete the tables, then the objects: after a crash in between, the states still name the tables. ``again``
        repeats it. Raises Refused, Unavailable."""
        tables = {*self.area(replay).states(), *map(TableReference.parse, replay.tables)}
        own = ((replay.shadow(t), replay.former(t), replay.former(deleted_table(t))) for t in sorted(tables))
        self.open_tables().drop([name for names in own for name in names])
        delete_objects(self.live.store, replay, again)

    def enter(self, number: int, before: frozenset[str] | set[Phase], phase: Phase) -> Replay:
        """Move a replay to another phase. Raises Refused if it is neither in this phase nor in one of ``before``."""

        def change(replay: Replay) -> Replay:
            if replay.phase not in {*before, phase}:
                raise Refused(f"replay {number} is {replay.phase}", next_step="kbq replay list")
            return dataclasses.replace(replay, phase=str(phase))

        return state.change(self.live.store, Replay, replay_path(number), change).value


def _way_on(replay: Replay) -> str:
    """The command that takes a replay on from its phase."""
    match replay.phase:
        case Phase.READING:
            return f"kbq replay resume {replay.number}"
        case Phase.PROMOTING | Phase.ROLLING_BACK:
            return f"kbq replay continue {replay.number}"
        case Phase.PROMOTED:
            return f"kbq replay accept {replay.number}, or kbq replay rollback {replay.number}"
        case Phase.ACCEPTED | Phase.DROPPED:
            return f"kbq replay start {replay.topic} reads the range again, as another replay"
    return f"kbq replay promote {replay.number}"


def check_rate(source: str, rate: int) -> None:
    """Raise Refused for a rate if the replay does not read from Kafka, because it would limit nothing."""
    if rate and source == BACKUP:
        raise Refused(
            "--rate limits reading from Kafka, but this replay reads a backup", next_step="omit --rate"
        )


_DROPPABLE: Final = frozenset({Phase.READING, Phase.READ, Phase.ROLLED_BACK, Phase.DROPPED})
