"""Replaces the rows of a range with those of a replay, or restores them: one job for all affected tables (PROTOCOL R3
to R6).

    begin     swap the job id and the tables into the replay
    enter     make each table wait for the job: no load job is in flight, nothing of the range can still be loaded
    prepare   create tables and columns that the new rows need
    replace   run one job, under the id in the replay: a transaction, or a commit per table
    record    update the commits, then the tables, then the replay

Every step can be repeated, and any process can continue, so a crash costs only time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kbq_assets.core.errors import (
    ConfigurationError,
    JobAlreadyExists,
    JobFailed,
    KbqError,
    Refused,
    Unavailable,
    UnknownOutcome,
)
from kbq_assets.core.loading.origins import LABEL, doubt, labelled, with_label
from kbq_assets.core.loading.replacing import Replacing
from kbq_assets.core.loading.table_notes import StoredTable, TableNotes
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.loading.tables import Column
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.names import TABLES, TableReference, commit_path, table_state_path
from kbq_assets.core.protocol.waits import ParkReason
from kbq_assets.core.replay import promotion
from kbq_assets.core.replay.model import (
    REPLACEMENT,
    Phase,
    Replay,
    check_alone,
    check_epoch,
    check_latest,
    replay_path,
)
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.pipelines.errors_replay.steps import give_up_replays
from kbq_assets.pipelines.loading import replacing
from kbq_assets.pipelines.loading.replacing import POLL_SECONDS, WAIT_SECONDS
from kbq_assets.pipelines.loading.view import read_view
from kbq_assets.pipelines.operate.commands import shards_of
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.state_cache import StateCache
from kbq_assets.pipelines.replay.changes import balance_of, change_of_table, check_order
from kbq_assets.pipelines.replay.chosen import check_moves, left_out
from kbq_assets.pipelines.replay.keyed import KeyedTables, check_replaceable
from kbq_assets.pipelines.replay.parts import ReplaceParts
from kbq_assets.pipelines.replay.start import ReplayedTopic, read_replays, rows_of
from kbq_assets.pipelines.replay.warehouses import marks_in
from kbq_assets.ports.replay import ReplaceJob, Replacement, ReplayTables


@dataclass(frozen=True)
class Direction:
    """Promotion or rollback: the phases before, during and after it."""

    before: frozenset[Phase]
    during: Phase
    after: Phase
    #: the phase of a replay whose replacement could not begin
    back: Phase


PROMOTE: Final = Direction(
    frozenset({Phase.READ, Phase.ROLLED_BACK}), Phase.PROMOTING, Phase.PROMOTED, Phase.READ
)
ROLL_BACK: Final = Direction(
    frozenset({Phase.PROMOTED}), Phase.ROLLING_BACK, Phase.ROLLED_BACK, Phase.PROMOTED
)


def free_tables(live: Deployment, replay: Replay) -> list[TableReference]:
    """Let tables continue that still wait for an ended job of a replay, and return them (R5). A process may have made
    them wait after another one ended the job, and then died. Their rows are as the job left them. ``replay`` may be
    old."""
    store, freed = live.load_store, []
    for table, found in state.read_table_states(store).items():
        waits = found.value.definition.replacing
        if waits and waits.replay == replay.number and _attempt_of(waits.job_id) <= replay.ended:
            replacing.leave(live, [table], waits.job_id, done=False)
            freed.append(table)
    return freed


def check_own_table(
    live: Deployment, table: TableReference, stored: StoredTable, staging_id: str, again: str
) -> None:
    """Raise Refused if another staging area feeds a table (L12)."""
    current = state.find(live.load_store, TableState, table_state_path(table))
    known = current.value if current else TableState("")
    found = doubt(known, stored, staging_id, live.load_store.uri(TABLES))
    if found is not None and found.reason == ParkReason.FOREIGN_ROWS:
        raise Refused(f"{table}: {found.text}", next_step=f"kbq adopt --table {table}, then {again}")


def _again(replay: Replay) -> str:
    return f"kbq replay continue {replay.number}"


def tables_of(replay: Replay) -> list[TableReference]:
    return [TableReference.parse(table) for table in replay.tables]


def _attempt_of(job_id: str) -> int:
    return int(job_id.rpartition("-")[2])


@dataclass(frozen=True)
class Replacer:
    """Replaces the rows of one replay's range."""

    live: Deployment
    tables: ReplayTables
    #: tables that the replay has rows for
    replayed: tuple[TableReference, ...]
    direction: Direction
    #: the replay's counts of all tables of the topic
    totals: Counts = field(default_factory=Counts)
    #: numbers of records of the range that became no rows of the replay, by partition
    passed_over: Mapping[int, int] = field(default_factory=dict)

    def run(self, number: int) -> Replay:
        """Replace the rows, or continue a replacement. Raises Refused, Unavailable: call it again to continue."""
        replay = self._begin(number)
        free_tables(self.live, replay)
        if replay.phase == self.direction.after:
            return replay
        try:
            replaced = self.parts(replay).replaced()
            if not replaced:
                keyed = KeyedTables(self.live, replay).among(tables_of(replay))
                for table in sorted(tables_of(replay), key=lambda table: table in keyed):
                    self._enter(replay, table)
                if self._has_ended(replay):
                    return replay.at(self.direction.after)
                self._check_others(replay)
            if replaced < len(self.parts(replay).parts):
                self._prepare(replay)
                self._replace(replay)
        except (Refused, ConfigurationError, JobFailed) as error:
            self._give_up(replay)
            raise error
        return self._record(replay)

    # Begin --------------------------------------------------------------------------------------------------------

    def _begin(self, number: int) -> Replay:
        """Swap the job id and the tables into the replay, unless it has them."""
        staging_id = state.table_registry(self.live.load_store).staging_id

        def change(replay: Replay) -> Replay:
            if replay.phase in (self.direction.during, self.direction.after):
                return replay
            if replay.phase not in self.direction.before:
                raise Refused(f"replay {number} is {replay.phase}", next_step=f"kbq replay status {number}")
            attempt = replay.attempt + 1
            # A rollback changes the same tables as the promotion, even if some have no row of the range now.
            tables = tables_of(replay) if self.direction is ROLL_BACK else self._affected(replay)
            own_id = staging_id or replacing.new_staging_id(self.live, tables)
            return dataclasses.replace(
                replay,
                phase=str(self.direction.during),
                attempt=attempt,
                job_id=f"{REPLACEMENT}{own_id}-{number}-{attempt}",
                tables=tuple(map(str, tables)),
            )

        return state.change(self.live.store, Replay, replay_path(number), change).value

    def _has_ended(self, replay: Replay) -> bool:
        """Whether another process ended the job, perhaps before this one made its tables wait. Then they continue.
        Raises Refused if the job replaced nothing."""
        now = state.read(self.live.store, Replay, replay_path(replay.number)).value
        if now.is_changing and now.job_id == replay.job_id:
            return False
        free_tables(self.live, now)
        if now.phase != self.direction.after:
            raise Refused(
                f"replay {now.number} is {now.phase}: another process ended this operation",
                next_step=f"kbq replay status {now.number}",
            )
        return True

    def _affected(self, replay: Replay) -> list[TableReference]:
        """Tables with rows of the range, before or after the replacement. Raises Refused for a column of another type,
        for a table whose rows must not change, and if any table, even an empty one, may still get rows of the range."""
        self._check_settled(replay)
        found = ReplayedTopic.read(self.live, replay.topic)
        known = {t for t in (*found.tables(replay.topic), *self.replayed) if replay.covers(t)}
        counted = self.tables.days([*known, *map(replay.shadow, known)], rows_of(replay))
        keyed = {t for t in known if t in found.states and found.states[t].has_statements}
        keyed = {t for t in keyed if promotion.is_fed(replay, found.states[t])}
        affected = sorted(t for t in known if t in keyed or counted.get(t) or counted.get(replay.shadow(t)))
        for table in affected:
            check_replaceable(self.live, replay.topic, table, found.states.get(table, TableState("")))
            self._columns(replay, table)
        return affected

    def _check_settled(self, replay: Replay) -> None:
        view = read_view(StateCache(self.live.load_store))
        for table in view.tables:
            found = view.states.get(table)
            files = view.files(table)
            if not isinstance(found, KbqError):
                promotion.check_settled(replay, table, found.value if found else TableState(""), files)
            elif any(promotion.overlaps(replay, file) for file in files):
                raise found
        own = [commit for commit in view.commits if commit.topic == replay.topic]
        check_epoch(
            replay, own, marks_in(f.value for f in view.states.values() if not isinstance(f, KbqError))
        )

    # Enter --------------------------------------------------------------------------------------------------------

    def _enter(self, replay: Replay, table: TableReference) -> None:
        """Make a table wait for the replacement (R3)."""

        def check(found: TableState, files: Iterable[StagedFile]) -> None:
            check_replaceable(self.live, replay.topic, table, found)
            if found.in_flight is None:
                promotion.check_settled(replay, table, found, files)

        owner = Replacing(replay.number, replay.job_id)
        replacing.enter(self.live, table, owner, check, lambda found: self._entered(replay, table, found))

    def _entered(self, replay: Replay, table: TableReference, current: TableState) -> Replacing:
        """The change of a waiting table's rows. Nobody else can change them meanwhile."""
        if not current.has_statements:
            source = self._source(replay, table)
            return change_of_table(self.live, self.tables, replay, table, source, current)
        # Upsert tables enter last. The first of them takes the balance of the other tables' rows.
        waiting = self._waiting(replay)
        is_first = not KeyedTables(self.live, replay).among(waiting)
        return balance_of(replay, waiting if is_first else {})

    def _source(self, replay: Replay, table: TableReference) -> TableReference | None:
        """The table with the new rows; None if there are none."""
        if self.direction is ROLL_BACK:
            return replay.former(table)
        return replay.shadow(table) if table in self.replayed else None

    def _check_others(self, replay: Replay) -> None:
        """Raise Refused if another replay moves rows of the range, or has moved some. Called when all tables wait."""
        give_up_replays(self.live.load_store, self.live.warehouse)
        for table in tables_of(replay):
            check_order(self.live, self.tables, replay, table, self._source(replay, table))
        others = read_replays(self.live.store)
        if self.direction is ROLL_BACK:
            keyed = KeyedTables(self.live, replay).among(tables_of(replay))
            check_latest(replay, others, frozenset(keyed))
            return
        check_alone(replay, others)
        if moved := {*map(str, self._affected(replay))} - {*replay.tables}:
            raise Refused(
                f"{', '.join(sorted(moved))}: rows of the range arrived meanwhile",
                next_step=f"kbq replay promote {replay.number}",
            )
        check_moves(self.live, self.tables, replay, left_out(replay, self.totals))

    # Prepare and replace ------------------------------------------------------------------------------------------

    def _prepare(self, replay: Replay) -> None:
        """Create tables and columns that the new rows need. Raises Refused."""
        options = self.live.sources.table_options()
        staging_id = state.table_registry(self.live.load_store).staging_id
        for table in tables_of(replay):
            columns = self._columns(replay, table)
            stored, notes = self.live.warehouse.find_table(table), None
            if stored is None:
                wanted = with_label(options(table, frozenset({replay.topic})), staging_id)
                self.live.warehouse.create_table(table, columns, wanted)
            elif stored.labels.get(LABEL) != staging_id:
                check_own_table(self.live, table, stored, staging_id, f"kbq replay promote {replay.number}")
                notes = labelled(TableNotes(), staging_id)
            self.live.warehouse.update_columns(table, columns, notes)
        keyed = KeyedTables(self.live, replay)
        for table, rule in keyed.among(tables_of(replay)).items():
            keyed.prepare(table, rule)
            if self.direction is PROMOTE:
                keyed.check(table, rule, self.replayed, self.totals)

    def _columns(self, replay: Replay, table: TableReference) -> tuple[Column, ...]:
        columns = self.live.warehouse.columns
        return promotion.merged_columns(table, columns(table), columns(replay.shadow(table)))

    def _job(self, replay: Replay, *, with_sql: bool = False) -> ReplaceJob:
        promotes, keyed = self.direction is PROMOTE, KeyedTables(self.live, replay)
        rules = keyed.among(tables_of(replay)) if with_sql else {}
        text = keyed.promotion_sql if promotes else keyed.rollback_sql
        each = [
            Replacement(
                table,
                self._source(replay, table),
                replay.former(table) if promotes else None,
                replay.number if promotes else 0,
                text(table, rules[table]) if table in rules else "",
            )
            for table in tables_of(replay)
        ]
        return ReplaceJob(replay.job_id, rows_of(replay), tuple(each))

    def _replace(self, replay: Replay) -> None:
        """Run the job unless it ran before. Raises Unavailable, JobFailed."""
        try:
            self.tables.replace(self._job(replay, with_sql=True))
        except JobAlreadyExists:
            pass
        except UnknownOutcome as error:
            raise Unavailable(error.message, next_step=_again(replay)) from error
        clock = self.live.clock
        deadline = clock.monotonic() + WAIT_SECONDS
        while not self.parts(replay).is_done:
            if clock.monotonic() >= deadline:
                raise Unavailable(f"job {replay.job_id} has not ended", next_step=_again(replay))
            clock.sleep(POLL_SECONDS)

    def parts(self, replay: Replay) -> ReplaceParts:
        one = self.tables.one_transaction
        return ReplaceParts(self.live.warehouse, self._job(replay).parts(one_transaction=one))

    # Record -------------------------------------------------------------------------------------------------------

    def _record(self, replay: Replay) -> Replay:
        """Count the replaced rows in the commits while every table waits; then let each table continue (R5)."""
        self._note_turn(replay)
        waiting = self._waiting(replay)
        if len(waiting) == len(replay.tables):
            changes = promotion.changes_of({t: found.rows for t, found in waiting.items()})
            passed_over = self.passed_over if self.direction is PROMOTE else None
            for shard in shards_of(self.live.store, replay.topic):
                state.change_head(
                    self.live.store,
                    commit_path(replay.topic, shard),
                    lambda commit: promotion.replaced(
                        commit, replay.job_id, replay.epoch, changes, replay.warehouse, passed_over
                    ),
                )
        self._leave(replay)
        return self._end(replay, self.direction.after)

    def _note_turn(self, replay: Replay) -> None:
        """Store the promotion's turn among all promotions, before a table continues and another one can begin (R7)."""
        if self.direction is not PROMOTE or len(self._waiting(replay)) < len(replay.tables):
            return
        others = (each for each in read_replays(self.live.store) if each.number != replay.number)
        turn = 1 + max((each.turn for each in others), default=0)

        def change(now: Replay) -> Replay:
            if now.job_id != replay.job_id or now.phase != self.direction.during:
                return now
            return dataclasses.replace(now, turn=turn)

        state.change(self.live.store, Replay, replay_path(replay.number), change)

    def _waiting(self, replay: Replay) -> Mapping[TableReference, Replacing]:
        return replacing.waiting(self.live, tables_of(replay), replay.job_id)

    def _leave(self, replay: Replay, *, done: bool = True) -> None:
        replacing.leave(self.live, tables_of(replay), replay.job_id, done=done)

    def _give_up(self, replay: Replay) -> None:
        """Burn the job's id, then let the tables continue unchanged. If the job ran, do nothing (R6)."""
        if not self.parts(replay).give_up():
            return
        self._leave(replay, done=False)
        self._end(replay, self.direction.back)

    def _end(self, replay: Replay, phase: Phase) -> Replay:
        def change(now: Replay) -> Replay:
            return now.at(phase) if (now.phase, now.job_id) == (self.direction.during, replay.job_id) else now

        return state.change(self.live.store, Replay, replay_path(replay.number), change).value
