"""What must hold after every schedule (PROTOCOL, Promises)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

from kbq_assets.core.loading import completeness
from kbq_assets.core.loading.completeness import hour_rows
from kbq_assets.core.protocol.names import BACKLOG, QUARANTINE, STAGING, TableReference, quarantine_path
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.done_files import list_done_files
from kbq_assets_tests.fakes.warehouse import Row
from kbq_assets_tests.simulation import backups, error_replays, ordered, replays
from kbq_assets_tests.simulation.mishaps import rows_of
from kbq_assets_tests.simulation.world import World


class PromiseBroken(AssertionError):
    """A promise of the protocol does not hold."""


def check_no_duplicate(world: World) -> None:
    """No record is visible twice, in one table or in two."""
    doubled = [row for row, count in Counter(row for _, row in world.warehouse.log).items() if count > 1]
    if doubled:
        raise PromiseBroken(f"NO DUPLICATE: {doubled[:5]}")


def check_order(world: World) -> None:
    """Per table, partition, epoch and schema id, rows become visible in offset order."""
    if world.out_of_order or (late := ordered.check_visible(world) or ordered.check_audit(world)):
        raise PromiseBroken(f"ORDERED: {world.out_of_order or late}")
    last: dict[tuple[object, ...], int] = {}
    is_replaced = replays.is_replaced(world)
    schema_of = _schema_ids(world)
    for table, row in ordered.as_visible(world):
        if row in world.brought_back or is_replaced(row):
            continue
        key = (table, row.topic, row.partition, row.epoch, schema_of(row))
        if last.get(key, -1) >= row.offset:
            raise PromiseBroken(f"ORDER: {table} {row} after offset {last[key]}")
        last[key] = row.offset


def _schema_ids(world: World) -> Callable[[Row], object]:
    """The schema id of a row. Where the topic was recreated, an offset has had several: each row is its own kind."""
    if world.recreated:
        return lambda row: row.offset
    return lambda row: world.schema_ids[TopicPartition(row.topic, row.partition), row.offset]


def check_no_loss(world: World) -> None:
    """Every record below a partition's position is in its table, in quarantine, skipped or given up on purpose."""
    if world.skipped:
        raise PromiseBroken(f"SKIPPED: {world.skipped[:5]}")
    quarantined, wanted_table = _quarantined(world), replays.wanted_table(world)
    is_brought = replays.is_brought(world)
    stored: dict[TopicPartition, dict[int, TableReference]] = defaultdict(dict)
    for commit in world.commits():
        for holder, row in world.warehouse.log:
            if row.epoch == commit.epoch:
                stored[TopicPartition(row.topic, row.partition)][row.offset] = holder
        for partition, position in commit.partitions.items():
            tp = commit.topic_partition(partition)
            expected = world.expected[tp, commit.topic_id]
            gaps = [range(gap.first, gap.until) for gap in position.accepted_gaps]
            is_erased = backups.excused(world, tp, commit.topic_id)
            for offset, wanted in expected.items():
                excused = offset in quarantined[commit.epoch, tp] or any(offset in gap for gap in gaps)
                excused = excused or is_erased(offset)
                if position.start <= offset < position.next and wanted and not excused:
                    found = stored[tp].get(offset)
                    row = Row(commit.epoch, *tp, offset)
                    table, is_here = wanted_table(row, wanted), world.is_wanted(tp, commit.epoch, offset)
                    if found != (table if is_here or is_brought(row) else None):
                        raise PromiseBroken(f"NO LOSS: {tp} offset {offset} is in {found}, not in {table}")
            unknown = {o for o in stored[tp] if o not in expected}
            if unknown:
                raise PromiseBroken(f"NO LOSS: {tp} has rows at {unknown} that were never produced")


def _quarantined(world: World) -> dict[tuple[int, TopicPartition], set[int]]:
    offsets: dict[tuple[int, TopicPartition], set[int]] = defaultdict(set)
    states = state.read_table_states(world.store)
    for table in states.values():
        for bad in table.value.quarantined:
            name = bad.file.name
            offsets[name.epoch, name.topic_partition].update(range(name.first_offset, bad.file.until))
            if not bad.dropped:
                world.store.get(bad.file.path.replace("staging/", "quarantine/"))
    return offsets


def check_progress(world: World) -> None:
    """Nothing is left to do: positions at the end, no pending file, job in flight, backlog or orphan."""
    problems = []
    for commit in world.commits():
        for partition, position in commit.partitions.items():
            end = world.kafka.log(commit.topic_partition(partition)).last_stable
            if position.next != end or position.stop is not None:
                problems.append(f"[{partition}] stands at {position.next} of {end}: {position.stop}")
            if position.windows:
                problems.append(f"[{partition}] has pending windows {position.windows}")
    for table, found in state.read_table_states(world.store).items():
        if found.value.in_flight or found.value.parked:
            problems.append(f"{table}: flight {found.value.in_flight}, parked {found.value.parked}")
    problems += [e.path for prefix in (STAGING, BACKLOG) for e in world.store.list(prefix)]
    problems += _unlisted_copies(world)
    problems += error_replays.broken(world)
    if problems:
        raise PromiseBroken("PROGRESS: " + "; ".join(problems))


def _unlisted_copies(world: World) -> Iterator[str]:
    """Copies in quarantine that no table lists, so they would never be deleted."""
    for area in state.areas(world.store).values():
        states = state.read_table_states(area).values()
        listed = {quarantine_path(bad.file.path) for each in states for bad in each.value.quarantined}
        yield from (e.path for e in area.list(QUARANTINE) if e.path not in listed)


def check_quarantine(world: World) -> None:
    """A record is in its table or in quarantine, not in both (L13); and no batch lost most of its files without an
    operator's consent (L5)."""
    if world.lost_silently:
        raise PromiseBroken(f"QUARANTINE: {world.lost_silently[:5]}")
    if world.recreated:
        return
    loaded, is_replaced = set(world.warehouse.log), replays.is_replaced(world)
    for table, found in state.read_table_states(world.store).items():
        for bad in found.value.quarantined:
            twice = [row for row in rows_of(world, bad.file) if (table, row) in loaded]
            # A replay of its range may bring back what an operator gave up.
            if twice := [row for row in twice if not (bad.dropped and is_replaced(row))]:
                raise PromiseBroken(f"COUNTED TWICE: {twice} of {bad}")


def check_table_rows(world: World) -> None:
    """A table holds the rows that its state counts, except those that an operator gave up (L12). Only its next job
    notices that a table is gone. An upsert table has fewer rows than its state counts records (R11)."""
    for table, found in state.read_table_states(world.store).items():
        counted = sum(found.value.rows.values()) - found.value.accepted.rows
        rows = len(world.warehouse.rows(table))
        rows -= error_replays.added(world, table) if table in world.warehouse.stored else 0
        if table in world.warehouse.stored and counted != rows and not replays.is_keyed(world, table):
            raise PromiseBroken(f"TABLE: {table} holds {rows} rows, its state counts {counted}")


def check_highest_done_files(world: World) -> None:
    """The highest done file of a partition that has rows is never missing (L7)."""
    highest: dict[TopicPartition, int] = defaultdict(lambda: -1)
    for name in list_done_files(world.store):
        highest[name.topic_partition] = max(highest[name.topic_partition], name.last_offset)
    for commit in world.commits():
        for _, row in world.warehouse.log:
            tp = TopicPartition(row.topic, row.partition)
            if row.epoch == commit.epoch and highest[tp] < row.offset:
                raise PromiseBroken(
                    f"DONE FILES: {tp} has a row at {row.offset}, its highest done file ends at {highest[tp]}"
                )


def check_counters(world: World) -> None:
    """Metrics count each event once (docs/monitoring.md): staged rows, also those before a reset, and failed jobs."""
    for commit in world.commits():
        totals, counted = commit.totals, commit.published.rows.sum
        if counted != totals.staged + totals.errors:
            raise PromiseBroken(f"COUNTERS: {counted} rows were counted as published of {totals}")
    failed = {job.status.job_id for job in world.warehouse.jobs.values() if job.status.error is not None}
    failed -= world.warehouse.statements.committed  # their ledger says that they took effect (S2)
    for table, found in state.read_table_states(world.store).items():
        own = [job_id for job_id in failed if job_id.startswith(f"kbq-{found.value.uuid}-")]
        # `kbq adopt` goes on from another statement's ledger, without asking how its own job ended.
        adopted = world.met["ledger differs"]
        if not len(own) - adopted <= found.value.jobs.ended.failed <= len(own):
            raise PromiseBroken(
                f"COUNTERS: {table} counted {found.value.jobs.ended.failed} failed jobs of {own}"
            )


def check_hours(world: World) -> None:
    """Each row is counted once, for its hour of business time, and as late only if that hour was complete before. A
    listed hour is listed completely, and all hours are listed while they are few. Rows that an erasure removed from
    staged files may be counted too, since their hours are unknown."""
    loaded: dict[TableReference, Counter[int]] = defaultdict(Counter)
    rows = world.loads if world.recipe.replays else (*world.warehouse.log, *world.warehouse.erased)
    for table, row in rows:
        loaded[table][world.hour_of(row)] += 1
    left_out = backups.left_out(world)
    for table, found in state.read_table_states(world.store).items():
        hours, real, spare = found.value.hours, loaded[table], left_out[table]
        listed = hour_rows(table, hours)
        wrong = [row for row in listed if not real[row.hour] <= row.rows <= real[row.hour] + spare]
        counted = sum(hours.rows.values()) + hours.older_rows
        if not real.total() <= counted <= real.total() + spare:
            raise PromiseBroken(f"HOURS: {table} counts {hours}, it holds {real}")
        are_few = len(real) <= completeness.KEPT_HOURS
        if not world.recreated and (wrong or (are_few and hours.older_rows)):
            raise PromiseBroken(f"HOURS: {table} counts {hours}, it holds {real}")
        late = world.late_rows[table]
        if not world.recreated and not late <= hours.late_rows <= late + spare:
            raise PromiseBroken(f"HOURS: {table} counts {hours.late} as late, {late} rows were")


def check_complete(world: World) -> None:
    """No hour became complete too early: every partition was read beyond it, and all its rows were loaded, or given up
    by an operator."""
    if world.too_early:
        raise PromiseBroken(f"COMPLETE: {world.too_early[:5]}")


def check_backup(world: World) -> None:
    """A backup has every record as it was, and is nowhere behind; what was erased is nowhere."""
    if backups.has_backup(world) and (found := [*world.backup.behind, *backups.broken(world)]):
        raise PromiseBroken(f"BACKUP: {found[:5]}")


def check_replays(world: World) -> None:
    """Every replacement has ended, and what commits count is what tables hold."""
    if not world.recipe.replays:
        return
    quarantined = {tp for _, tp in _quarantined(world)}
    if found := [*replays.broken(world, quarantined.__contains__)]:
        raise PromiseBroken(f"REPLAYS: {found[:5]}")


def check_all(world: World) -> None:
    """All promises, for each warehouse."""
    if world.defects:
        raise PromiseBroken(f"DEFECT: {world.defects[:5]}")
    for name in world.warehouses:
        seen = world.as_seen_by(name) if name else world
        _check(seen)
        check_replays(seen)
    check_backup(world)


def _check(world: World) -> None:
    check_counters(world)
    check_hours(world)
    check_complete(world)
    check_no_duplicate(world)
    check_quarantine(world)
    check_table_rows(world)
    check_order(world)
    check_no_loss(world)
    check_progress(world)
    check_highest_done_files(world)
