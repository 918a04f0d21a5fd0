"""Schedules of crashes, late calls, zombies and operators keep the four promises; mutants do not.

`kbq_assets_tests.sizes` sets how many schedules run. `python -m kbq_assets_tests.simulation` runs many more.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable

import pytest

from kbq_assets.core.errors import KbqError
from kbq_assets.core.loading import completeness
from kbq_assets.core.topics.evolution import VARIANT_COLUMN
from kbq_assets.pipelines.loading.restaging import is_copy
from kbq_assets.pipelines.protocol import state
from kbq_assets_tests.fakes.faults import Crash
from kbq_assets_tests.fakes.warehouse import FakeJob
from kbq_assets_tests.fixtures.local_stack import REPOSITORY
from kbq_assets_tests.simulation import schedule
from kbq_assets_tests.simulation.backup_mutants import (
    BACKUP_MUTANTS,
    COMPACTED_MUTANTS,
    ERASURE_MUTANTS,
    LATE_MUTANTS,
)
from kbq_assets_tests.simulation.error_replay_mutants import ERROR_REPLAY_MUTANTS, OUT_OF_ORDER_MUTANTS
from kbq_assets_tests.simulation.late_change_mutants import LATE_CHANGE_MUTANTS
from kbq_assets_tests.simulation.manifest_mutants import MANIFEST_MUTANTS
from kbq_assets_tests.simulation.mutants import (
    A_NEW_ID,
    HOUR_MUTANTS,
    LATEST_ONLY,
    MERGING_MUTANTS,
    MISHAP_MUTANTS,
    MUTANTS,
    ORDER_MUTANTS,
    REPLAY_MUTANTS,
    WAREHOUSE_MUTANTS,
    Mutant,
)
from kbq_assets_tests.simulation.promotion_mutants import (
    LAKE_MUTANTS,
    PROMOTION_MUTANTS,
    WAREHOUSE_REPLAY_MUTANTS,
)
from kbq_assets_tests.simulation.races import (
    run_late_changes,
    run_late_publication,
    run_late_skip,
    run_two_loaders,
)
from kbq_assets_tests.simulation.schedule import (
    APPLYING,
    BACKED_UP,
    BACKING_UP,
    BY_HOUR,
    COMPACTED,
    COMPACTING,
    ERASED,
    ERASED_COMPACTED,
    ERASED_MENDED,
    ERASED_MERGED,
    ERASING,
    ERASING_COMPACTED,
    ERASING_MENDED,
    FAILING,
    FUTURE,
    HOURLY,
    LET_IN,
    MENDED,
    MENDING,
    MERGING,
    MISHAPS,
    ORDERED,
    ORDERING,
    PROMOTING,
    PROMOTING_TWO,
    RECREATED,
    RECREATED_BACKED_UP,
    RECREATING,
    REPLAY,
    REPLAYED,
    REPLAYED_LAKE,
    REPLAYED_TWO,
    REPLAYED_UPSERTS,
    REPLAYING,
    RESTARTING,
    ROUGH,
    SEALING,
    STATEMENTS,
    SWITCHED,
    SWITCHING,
    TWO_WAREHOUSES,
    UNLISTED,
    Chaos,
    ScheduleFailed,
    commit,
    run_schedule,
    simulated_hours,
)
from kbq_assets_tests.simulation.statement_mutants import (
    ANY_SKIP,
    FORGOTTEN_RULE,
    STATEMENT_MUTANTS,
    SWITCH_MUTANTS,
)
from kbq_assets_tests.simulation.world import Recipe, World
from kbq_assets_tests.sizes import (
    FULL,
    HOURS_PROPERTY,
    LATE_SCHEDULES,
    LOADER_STARTS,
    REPAIRED_SCHEDULES,
    RETURNED_SCHEDULES,
    SCHEDULES,
    SCHEDULES_PROPERTY,
    STATEMENT_SCHEDULES,
    THOROUGH,
    VARIED_SCHEDULES,
)

#: Few enough schedules each that no test takes ten CPU seconds, and an odd number: every other seed parks tables, which
#: takes more time.
CHUNKS = max(21, SCHEDULES // 80)
STATEMENT_CHUNKS = max(2, STATEMENT_SCHEDULES // 40)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_schedule_keeps_the_promises(
    chunk: int, record_property: Callable[[str, object], None]
) -> None:
    rows, hours, seeds = 0, 0.0, range(chunk, SCHEDULES, CHUNKS)
    for seed in seeds:
        world = run_schedule(seed)
        rows += len(world.warehouse.log)
        hours += simulated_hours([world])
    assert rows > 0
    assert hours > 0
    # The report adds them up (kbq_assets_tests/conftest.py).
    record_property(SCHEDULES_PROPERTY, len(seeds))
    record_property(HOURS_PROPERTY, hours)


def test_a_failing_schedule_says_how_to_repeat_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(world: World) -> None:
        raise AssertionError("a promise")

    monkeypatch.setattr(schedule, "check_all", fail)
    with pytest.raises(
        ScheduleFailed, match=rf"again, at commit {re.escape(commit())}: python .* --seed 3 "
    ) as failure:
        run_schedule(3)
    assert re.search(r"at commit \w{7,}", str(failure.value))
    with pytest.raises(ScheduleFailed, match=r"simulation --kind two_warehouses --seed 3 --trace"):
        run_schedule(3, recipe=TWO_WAREHOUSES)


@pytest.mark.parametrize("chunk", range(STATEMENT_CHUNKS))
def test_statements_apply_every_batch_once(chunk: int) -> None:
    applied = 0
    for seed in range(chunk, STATEMENT_SCHEDULES, STATEMENT_CHUNKS):
        world = run_schedule(seed, APPLYING, STATEMENTS)
        applied += sum(map(len, world.warehouse.statements.applied.values()))
    assert applied > STATEMENT_SCHEDULES // STATEMENT_CHUNKS


@pytest.mark.parametrize("mutant", STATEMENT_MUTANTS, ids=lambda m: m.name.replace(" ", "-"))
def test_the_simulator_notices_when_a_rule_of_statements_is_removed(mutant: Mutant) -> None:
    with mutant.active(), pytest.raises((ScheduleFailed, KbqError, KeyError, Crash)):
        for seed in _seeds(mutant.seed, 300):
            run_schedule(seed, APPLYING, STATEMENTS)


def test_a_topic_that_leaves_the_list_is_loaded_as_it_asked_to_be() -> None:
    for seed in range(5):
        run_schedule(seed, APPLYING, UNLISTED)
    with FORGOTTEN_RULE.active(), pytest.raises(ScheduleFailed, match="no change is recorded"):
        for seed in range(5):
            run_schedule(seed, APPLYING, UNLISTED)


def test_a_change_of_load_comes_after_the_windows_before_it() -> None:
    met = Counter[str]()
    for seed in range(VARIED_SCHEDULES // 4):
        met += run_schedule(seed, SWITCHING, SWITCHED).met
    assert met["switched"] > VARIED_SCHEDULES // 10


@pytest.mark.parametrize("mutant", SWITCH_MUTANTS, ids=lambda m: m.name.replace(" ", "-"))
def test_the_simulator_notices_a_change_of_load_that_breaks_a_rule(mutant: Mutant) -> None:
    with mutant.active(), pytest.raises(ScheduleFailed, match=r"its change|no change is recorded"):
        for seed in range(300):
            run_schedule(seed, SWITCHING, SWITCHED)


def test_a_skip_that_arrives_late_gives_up_no_rows_that_nobody_decided_about() -> None:
    met = Counter[str]()
    for seed in range(20):
        met += run_late_skip(seed).met
    assert met["skip"] > 10
    assert met["ledger differs"] > 0
    with ANY_SKIP.active(), pytest.raises(ScheduleFailed):
        for seed in range(20):
            run_late_skip(seed)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name.replace(" ", "-"))
def test_the_simulator_notices_when_a_rule_is_removed(mutant: Mutant) -> None:
    with mutant.active(), pytest.raises((ScheduleFailed, KbqError, KeyError, Crash)):
        for seed in _seeds(mutant.seed, 2_000):
            run_schedule(seed)


@pytest.mark.parametrize("chunk", range(4))
def test_two_loaders_started_at_once_double_no_row(chunk: int) -> None:
    rows = 0
    for seed in range(chunk, LOADER_STARTS, 4):
        rows += len(run_two_loaders(seed).warehouse.log)
    assert rows >= LOADER_STARTS // 4


@pytest.mark.parametrize(
    "mutant", [A_NEW_ID, *(m for m in MUTANTS if "L2" in m.rule)], ids=lambda m: m.name.replace(" ", "-")
)
def test_two_loaders_without_l2_or_l3_break_a_promise(mutant: Mutant) -> None:
    with mutant.active(), pytest.raises((ScheduleFailed, KbqError, KeyError, Crash)):
        for seed in range(1_000):
            run_two_loaders(seed)


@pytest.mark.slow
def test_tables_that_are_tried_again_without_help_keep_the_promises() -> None:
    rows = 0
    for seed in range(VARIED_SCHEDULES):
        rows += len(run_schedule(seed, RESTARTING).warehouse.log)
    assert rows > 0


@pytest.mark.thorough
def test_mishaps_that_an_operator_repairs_keep_the_promises() -> None:
    met = Counter[str]()
    for seed in range(91, REPAIRED_SCHEDULES + 91):
        met += run_schedule(seed, MISHAPS).met
    wanted = {
        "damaged",
        "restaged",
        "schemas rewritten",
        "tables lost",
        "adopted",
        "intrusions",
        "retried",
        "dropped",
    }
    assert wanted <= met.keys()


@pytest.mark.parametrize("mutant", MISHAP_MUTANTS, ids=lambda m: m.name.replace(" ", "-"))
def test_mishaps_show_when_a_rule_is_removed(mutant: Mutant) -> None:
    with mutant.active(), pytest.raises((ScheduleFailed, KbqError)):
        for seed in _seeds(mutant.seed, 300):
            run_schedule(seed, MISHAPS)


def test_heads_that_name_and_drop_manifests_all_the_time_keep_the_promises() -> None:
    named = 0
    for seed in range(VARIED_SCHEDULES // 4):
        world = run_schedule(seed, SEALING)
        named += sum("create manifests/" in step for step in world.scheduler.trace)
    assert named > VARIED_SCHEDULES


@pytest.mark.parametrize("mutant", MANIFEST_MUTANTS, ids=lambda m: m.name.replace(" ", "-"))
def test_manifests_without_a_rule_break_a_promise(mutant: Mutant) -> None:
    with mutant.active(), pytest.raises((ScheduleFailed, KbqError)):
        for seed in _seeds(mutant.seed, 300):
            run_schedule(seed, SEALING)


def test_ordered_tables_keep_the_promises_while_operators_decide_about_batches() -> None:
    met, rows = Counter[str](), 0
    # In seed 15 operators decide in every way.
    for seed in dict.fromkeys((15, *range(VARIED_SCHEDULES // 4))):
        world = run_schedule(seed, ORDERING, ORDERED)
        met, rows = met + world.met, rows + len(world.warehouse.log)
    assert {"hold", "release", "continue", "skip"} <= met.keys()
    assert rows > 0


@pytest.mark.parametrize("mutant", ORDER_MUTANTS, ids=lambda m: m.name.replace(" ", "-"))
def test_ordered_tables_notice_when_a_rule_is_removed(mutant: Mutant) -> None:
    with mutant.active(), pytest.raises(ScheduleFailed, match="ORDER"):
        for seed in _seeds(mutant.seed, 300):
            run_schedule(seed, ORDERING, ORDERED)


def test_hours_follow_each_other_while_partitions_are_read_at_different_paces() -> None:
    waited, rows = 0, 0
    for seed in range(2 + VARIED_SCHEDULES // 8):
        world = run_schedule(seed, BY_HOUR, HOURLY)
        waited, rows = waited + world.met["waited"], rows + len(world.warehouse.log)
    assert rows > 0
    assert waited > 0


@pytest.mark.parametrize("mutant", HOUR_MUTANTS, ids=lambda m: m.name.replace(" ", "-"))
def test_hours_notice_when_a_rule_is_removed(mutant: Mutant) -> None:
    with (
        mutant.active(),
        pytest.raises(ScheduleFailed, match=r"ORDER.*(released early|crosses an hour|a mark covers)"),
    ):
        for seed in _seeds(mutant.seed, 300):
            run_schedule(seed, BY_HOUR, HOURLY)


def test_two_warehouses_each_keep_the_promises() -> None:
    rows, waited = dict.fromkeys(("", "lake"), 0), 0
    # Backlogs of the second warehouse begin with seed 17; 19 and 165 once lost a record.
    for seed in (165, *range(17, 17 + VARIED_SCHEDULES // 2)):
        world = run_schedule(seed, recipe=TWO_WAREHOUSES)
        for name, warehouse in world.warehouses.items():
            rows[name] += len(warehouse.log)
        waited += any("create backlog/lake/" in line for line in world.scheduler.trace)
    assert min(rows.values()) > 0
    assert waited > 0


@pytest.mark.parametrize("mutant", WAREHOUSE_MUTANTS, ids=lambda m: m.name.replace(" ", "-"))
def test_two_warehouses_notice_when_a_rule_is_removed(mutant: Mutant) -> None:
    with mutant.active(), pytest.raises((ScheduleFailed, KbqError, KeyError, Crash)):
        for seed in _seeds(mutant.seed, 2_000):
            run_schedule(seed, recipe=TWO_WAREHOUSES)


def test_jobs_that_read_merged_files_keep_the_promises() -> None:
    loaded, rows = 0, 0
    for seed in range(VARIED_SCHEDULES // 4):
        world = run_schedule(seed, FAILING, MERGING)
        rows += len(world.warehouse.log)
        jobs = [job for each in world.warehouses.values() for job in each.jobs.values()]
        loaded += sum(_reads_copies(world, job) for job in jobs if job.status.state == "DONE")
    assert rows > 0
    assert loaded > 0


def _reads_copies(world: World, job: FakeJob) -> bool:
    uris = job.load.source_uris if job.load and not job.status.error else ()
    return any(is_copy(world.store.path_of(uri)) for uri in uris)


@pytest.mark.parametrize("mutant", MERGING_MUTANTS, ids=lambda m: m.name.replace(" ", "-"))
def test_merged_files_without_a_rule_break_a_promise(mutant: Mutant) -> None:
    with mutant.active(), pytest.raises((ScheduleFailed, KbqError)):
        for seed in _seeds(mutant.seed, 300):
            run_schedule(seed, FAILING, MERGING)


def test_a_backup_goes_its_own_way_and_has_every_record() -> None:
    met = Counter[str]()
    for seed in range(VARIED_SCHEDULES // 2):
        met += run_schedule(seed, BACKING_UP, BACKED_UP).met
    assert met["backup reset"] > 0
    assert met["alone"] == VARIED_SCHEDULES // 2


@pytest.mark.parametrize("mutant", BACKUP_MUTANTS, ids=lambda m: m.name.replace(" ", "-"))
def test_backups_notice_when_a_rule_is_removed(mutant: Mutant) -> None:
    with mutant.active(), pytest.raises(ScheduleFailed, match=r"BACKUP|NO LOSS"):
        for seed in _seeds(mutant.seed, 300):
            run_schedule(seed, BACKING_UP, BACKED_UP)


def test_backup_files_are_merged_while_everything_else_goes_on() -> None:
    merged, erased = 0, 0
    for seed in range(VARIED_SCHEDULES // 4):
        merged += run_schedule(seed, COMPACTING, COMPACTED).met["backup files merged"]
        world = run_schedule(seed, ERASING_COMPACTED, ERASED_COMPACTED)
        merged, erased = merged + world.met["backup files merged"], erased + len(world.warehouse.erased)
    assert merged > VARIED_SCHEDULES // 8
    assert erased > 0


@pytest.mark.parametrize("mutant", COMPACTED_MUTANTS, ids=lambda m: m.name.replace(" ", "-"))
def test_merged_backup_files_without_a_rule_break_a_promise(mutant: Mutant) -> None:
    with mutant.active(), pytest.raises((ScheduleFailed, KbqError)):
        for seed in _seeds(mutant.seed, 300):
            run_schedule(seed, ERASING_COMPACTED, ERASED_COMPACTED)


def test_erasures_forget_everywhere_while_everything_else_goes_on() -> None:
    erased = 0
    for seed in range(VARIED_SCHEDULES // 2):
        erased += len(run_schedule(seed, ERASING, ERASED).warehouse.erased)
    assert erased > VARIED_SCHEDULES // 4


def test_erasures_forget_beside_jobs_that_read_merged_files() -> None:
    erased, read = 0, 0
    for seed in range(VARIED_SCHEDULES // 4):
        world = run_schedule(seed, ERASING, ERASED_MERGED)
        erased += len(world.warehouse.erased)
        jobs = [job for job in world.warehouse.jobs.values() if job.status.state == "DONE"]
        read += sum(_reads_copies(world, job) for job in jobs)
    assert erased > 0
    assert read > 0


@pytest.mark.parametrize("mutant", ERASURE_MUTANTS, ids=lambda m: m.name.replace(" ", "-"))
def test_erasures_notice_when_a_rule_is_removed(mutant: Mutant) -> None:
    with mutant.active(), pytest.raises((ScheduleFailed, KbqError)):
        for seed in _seeds(mutant.seed, 300):
            run_schedule(seed, ERASING, ERASED)


def test_what_was_read_before_an_erasure_is_never_published() -> None:
    met = Counter[str]()
    for seed in range(LATE_SCHEDULES):
        met += run_late_publication(seed).met
    assert met["late"] > 0


@pytest.mark.parametrize("mutant", LATE_MUTANTS, ids=lambda m: m.name.replace(" ", "-"))
def test_late_publications_notice_when_a_rule_is_removed(mutant: Mutant) -> None:
    with mutant.active(), pytest.raises(ScheduleFailed, match="forgot"):
        for seed in _seeds(mutant.seed, 100):
            run_late_publication(seed)


def test_a_topic_that_is_recreated_and_reset_all_the_time_keeps_the_promises() -> None:
    # Seed 12 once kept a file of a dropped partition for ever; in 116, a run reported a bug.
    met = Counter[str]()
    for seed in (12, 27, 116, *range(VARIED_SCHEDULES // 4)):
        met += run_schedule(seed, RECREATING, RECREATED).met
    assert met.keys() >= {"gap", "added"}


def test_the_backup_of_a_topic_that_is_recreated_has_every_record() -> None:
    # In seed 36, a partition that the topic no longer had once kept the backup stopped.
    for seed in (36, *range(VARIED_SCHEDULES // 4)):
        run_schedule(seed, RECREATING, RECREATED_BACKED_UP)


def test_what_was_measured_on_a_former_log_changes_nothing_after_a_reset() -> None:
    met = Counter[str]()
    for seed in range(LATE_SCHEDULES):
        met += run_late_changes(seed).met
    assert met["late"] >= LATE_SCHEDULES


@pytest.mark.parametrize("mutant", LATE_CHANGE_MUTANTS, ids=lambda m: m.name.replace(" ", "-"))
def test_late_changes_notice_when_a_rule_is_removed(mutant: Mutant) -> None:
    with mutant.active(), pytest.raises(ScheduleFailed, match="SKIPPED"):
        for seed in _seeds(mutant.seed, 100):
            run_late_changes(seed)


def test_replays_are_promoted_and_rolled_back_while_everything_else_goes_on() -> None:
    # Seeds 13 and 126 once lost a count, and let a table wait for ever. In the others, a lot happens.
    met = _met_in((13, 126, 15, 207), (4, 7), VARIED_SCHEDULES // 3, PROMOTING, REPLAYED)
    assert met >= {"promoted", "continued", "rolled back", "accepted"}


def _met_in(
    eventful: Iterable[int], more: Iterable[int], full: int, chaos: Chaos, recipe: Recipe
) -> set[str]:
    """What occurs in schedules of these seeds, which are known to be eventful, in CI in some more, and at full size in
    the first ones, too. When changed code moves events to others, the assertion on them asks for new seeds."""
    seeds = (*eventful, *(more if THOROUGH or FULL else ()), *(range(full) if FULL else ()))
    met = Counter[str]()
    for seed in dict.fromkeys(seeds):
        met += run_schedule(seed, chaos, recipe).met
    return set(met)


def test_replays_in_a_lake_replace_table_after_table() -> None:
    met = _met_in((4, 7, 16), range(8), 8, PROMOTING, REPLAYED_LAKE)
    assert met >= {"promoted", "continued", "rolled back", "accepted"}


@pytest.mark.parametrize("mutant", LAKE_MUTANTS, ids=lambda m: m.name.replace(" ", "-"))
def test_replays_in_a_lake_notice_when_a_rule_is_removed(mutant: Mutant) -> None:
    with mutant.active(), pytest.raises((ScheduleFailed, KbqError)):
        for seed in _seeds(mutant.seed, 300):
            run_schedule(seed, PROMOTING, REPLAYED_LAKE)


def test_each_of_two_warehouses_is_repaired_by_replays_of_its_own() -> None:
    met = _met_in((4, 6, 10), range(8), 8, PROMOTING_TWO, REPLAYED_TWO)
    assert met >= {"promoted in ", "promoted in lake", "continued", "rolled back", "accepted"}


@pytest.mark.parametrize("mutant", WAREHOUSE_REPLAY_MUTANTS, ids=lambda m: m.name.replace(" ", "-"))
def test_replays_of_two_warehouses_notice_when_a_rule_is_removed(mutant: Mutant) -> None:
    with mutant.active(), pytest.raises((ScheduleFailed, KbqError)):
        for seed in _seeds(mutant.seed, 300):
            run_schedule(seed, PROMOTING_TWO, REPLAYED_TWO)


def test_error_rows_of_a_lake_come_back_once_while_everything_else_goes_on() -> None:
    assert (
        sum(
            run_schedule(seed, MENDING, MENDED).met["error rows replayed"]
            for seed in range(RETURNED_SCHEDULES)
        )
        > 100
    )


@pytest.mark.parametrize("mutant", ERROR_REPLAY_MUTANTS, ids=lambda m: m.name.replace(" ", "-"))
def test_replays_of_error_rows_notice_when_a_rule_is_removed(mutant: Mutant) -> None:
    with mutant.active(), pytest.raises((ScheduleFailed, KbqError)):
        for seed in _seeds(mutant.seed, 300):
            run_schedule(seed, MENDING, MENDED)


def test_error_rows_come_out_of_order_only_by_a_decision_that_ordered_tables_keep() -> None:
    assert (
        sum(
            run_schedule(seed, MENDING, LET_IN).met["error rows replayed"]
            for seed in range(RETURNED_SCHEDULES)
        )
        > 20
    )


@pytest.mark.parametrize("mutant", OUT_OF_ORDER_MUTANTS, ids=lambda m: m.name.replace(" ", "-"))
def test_ordered_tables_notice_rows_that_no_decision_let_in(mutant: Mutant) -> None:
    with mutant.active(), pytest.raises((ScheduleFailed, KbqError)):
        for seed in _seeds(mutant.seed, 300):
            run_schedule(seed, MENDING, LET_IN)


def test_error_rows_of_a_lake_do_not_bring_back_what_is_erased() -> None:
    met = Counter[str]()
    for seed in range(RETURNED_SCHEDULES):
        met += run_schedule(seed, ERASING_MENDED, ERASED_MENDED).met
    assert met["error rows replayed"] > 20


def test_replays_of_upsert_tables_never_run_beside_a_statement() -> None:
    met = _met_in((4, 6, 13, 16), (11, 21, 32), 60, PROMOTING, REPLAYED_UPSERTS)
    assert met >= {"promoted", "continued", "rolled back", "accepted"}


@pytest.mark.parametrize("mutant", PROMOTION_MUTANTS, ids=lambda m: m.name.replace(" ", "-"))
def test_replays_notice_when_a_rule_is_removed(mutant: Mutant) -> None:
    with mutant.active(), pytest.raises((ScheduleFailed, KbqError)):
        for seed in _seeds(mutant.seed, 300):
            run_schedule(seed, PROMOTING, REPLAYED)


def test_schemas_that_contradict_their_table_keep_the_promises_as_variants() -> None:
    settings = Recipe().settings.with_options(on_incompatible=VARIANT_COLUMN)
    recipe, copies = Recipe("1122443gpt", settings=settings), 0
    for seed in range(VARIED_SCHEDULES):
        world = run_schedule(seed, dataclasses.replace(ROUGH, lose_placements=0.5), recipe)
        uris = [uri for job in world.warehouse.jobs.values() for uri in job.status.source_uris]
        copies += sum(is_copy(world.store.path_of(uri)) for uri in uris)
    assert copies > 0


@pytest.mark.slow
def test_a_replay_completes_no_hour_that_it_has_not_passed() -> None:
    complete = 0
    for seed in range(VARIED_SCHEDULES):
        world = run_schedule(seed, REPLAYING, REPLAY)
        states = state.read_table_states(world.store)
        complete += sum(found.value.hours.until > 0 for found in states.values())
    assert complete > VARIED_SCHEDULES


@pytest.mark.parametrize("mutant", REPLAY_MUTANTS, ids=lambda m: m.name.replace(" ", "-"))
def test_a_replay_notices_times_of_other_records(mutant: Mutant) -> None:
    with mutant.active(), pytest.raises(ScheduleFailed, match="COMPLETE"):
        for seed in range(100):
            run_schedule(seed, REPLAYING, REPLAY)


@pytest.mark.slow
def test_what_is_reported_of_an_hour_is_true_though_few_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completeness, "KEPT_HOURS", 3)
    dropped = 0
    for seed in range(60):
        world = run_schedule(seed, REPLAYING, FUTURE)
        states = state.read_table_states(world.store)
        dropped += sum(bool(found.value.hours.unlisted) for found in states.values())
    assert dropped > 20


def test_the_simulator_notices_hours_that_push_out_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completeness, "KEPT_HOURS", 3)
    with LATEST_ONLY.active(), pytest.raises(ScheduleFailed, match="HOURS"):
        for seed in range(60):
            run_schedule(seed, REPLAYING, FUTURE)


def _seeds(known: int, total: int) -> Iterable[int]:
    """Seeds to try: all of them at full size, else the one that is known to notice first."""
    return range(total) if FULL else itertools.chain([known], range(total))


def test_a_seed_is_a_schedule() -> None:
    traces = [run_schedule(7).scheduler.trace for _ in range(2)]
    assert traces[0] == traces[1]
    assert len(traces[0]) > 50


@pytest.mark.thorough
def test_a_seed_is_the_same_schedule_in_every_process() -> None:
    """Whatever the order of sets: otherwise a failure could not be reproduced, and each run would try other
    schedules. The eight schedules cover all usual kinds. This process has another order of sets, and ran other
    schedules before."""
    command = [
        sys.executable,
        "-m",
        "kbq_assets_tests.simulation",
        *("--first", "4", "--schedules", "8", "--trace"),
    ]
    hash_seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    other = subprocess.run(
        command,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()[:-2]
    own = [line for seed in range(4, 12) for line in _printed(run_schedule(seed).scheduler.trace)]
    assert own == other
    assert len(own) > 50 * 8


def _printed(trace: Iterable[str]) -> list[str]:
    return "\n".join(trace).splitlines()
