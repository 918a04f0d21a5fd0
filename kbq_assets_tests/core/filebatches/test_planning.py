"""Which batches of a table prefix are accepted, and the effect of jobs and operators on them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest

from kbq_assets.core.errors import Refused
from kbq_assets.core.filebatches import table_batches
from kbq_assets.core.filebatches.discovery import FoundBatch
from kbq_assets.core.filebatches.planning import (
    MOST_JOBS,
    BatchRules,
    BatchState,
    PendingBatch,
    plan_batches,
)
from kbq_assets.core.filebatches.prefix_registry import (
    PrefixRegistry,
    applied_path,
    file_registry_path,
    file_state_path,
)
from kbq_assets.core.filebatches.table_batches import (
    APPLIED,
    FIRST_PAUSE_MS,
    MOST_TRIES,
    BatchFile,
    BatchInFlight,
    FileDecision,
    FileTableState,
    FileTarget,
    JobBegin,
    SettledBatch,
    job_id_of,
)
from kbq_assets.core.protocol import codec

EMPTY = FileTableState("d/t", "u")
DECIDED = FileDecision(5, "retry", "x", "why", "me")


def pending(*paths: str, ordered: bool = True, generation: int = 1, problem: str = "") -> list[PendingBatch]:
    return [PendingBatch(FoundBatch(path, generation), ordered, problem) for path in paths]


def states(
    state: FileTableState, batches: list[PendingBatch], now_ms: int = 0, **rules: Any
) -> dict[str, BatchState]:
    applied = {each.path: each.generation for each in state.applied}
    planned = plan_batches(state, applied, batches, BatchRules(**rules), now_ms)
    return {each.path: each.state for each in planned}


def running(path: str, *, ordered: bool = True, tries: int = 1, generation: int = 1) -> BatchInFlight:
    target, files = FileTarget("d", "t"), (BatchFile("a.csv", 1, 2),)
    return BatchInFlight(
        path, generation, f"job-{path}", "p", "US", target, files, ordered=ordered, begin=JobBegin(5, tries)
    )


def entered(path: str, **more: Any) -> tuple[FileTableState, BatchInFlight]:
    own = running(path, **more)
    return table_batches.enter(EMPTY, own, 0), own


def applied(path: str, **more: Any) -> FileTableState:
    state, own = entered(path, **more)
    return table_batches.settle(state, own, 3, 9, validates=False)


def test_ordered_batches_are_entered_one_at_a_time_by_path() -> None:
    found = pending("d/t/2", "d/t/1", "d/t/3")
    assert states(EMPTY, found) == {
        "d/t/1": BatchState.READY,
        "d/t/2": BatchState.WAITS,
        "d/t/3": BatchState.WAITS,
    }
    assert states(entered("d/t/1")[0], found)["d/t/2"] is BatchState.WAITS
    assert states(applied("d/t/1"), found) == {"d/t/2": BatchState.READY, "d/t/3": BatchState.WAITS}


def test_unordered_batches_are_entered_at_once_while_ordered_ones_wait() -> None:
    found = [*pending("d/t/h1", "d/t/h2", ordered=False), *pending("d/t/i1", "d/t/i2")]
    assert states(EMPTY, found) == {
        "d/t/h1": BatchState.READY,
        "d/t/h2": BatchState.READY,
        "d/t/i1": BatchState.READY,
        "d/t/i2": BatchState.WAITS,
    }


def test_only_so_many_jobs_are_in_flight() -> None:
    found = pending(*(f"d/t/{number:02}" for number in range(MOST_JOBS + 5)), ordered=False)
    ready = [path for path, state in states(EMPTY, found).items() if state is BatchState.READY]
    assert len(ready) == MOST_JOBS


def test_a_failed_batch_stops_ordered_ones_and_no_others() -> None:
    state, own = entered("d/t/2")
    failed = table_batches.fail(state, own, "bad", 7)
    found = [*pending("d/t/1", "d/t/2", "d/t/3"), *pending("d/t/h", ordered=False)]
    assert states(failed, found) == {
        "d/t/1": BatchState.WAITS,
        "d/t/2": BatchState.FAILED,
        "d/t/3": BatchState.WAITS,
        "d/t/h": BatchState.READY,
    }
    assert states(failed, pending("d/t/3")) == {"d/t/2": BatchState.FAILED, "d/t/3": BatchState.WAITS}


def test_an_unordered_batch_that_failed_is_tried_again_when_it_is_uploaded_again() -> None:
    state, own = entered("d/t/1", ordered=False)
    failed = table_batches.fail(state, own, "bad", 7)
    assert states(failed, pending("d/t/1", ordered=False)) == {"d/t/1": BatchState.FAILED}
    again = pending("d/t/1", ordered=False, generation=2)
    assert states(failed, again) == {"d/t/1": BatchState.READY}


def test_transient_errors_are_tried_again_after_growing_pauses_and_then_wait_for_a_person() -> None:
    state, own = entered("d/t/1")
    failed = table_batches.fail(state, own, "busy", 100, transient=True)
    assert states(failed, pending("d/t/1"), now_ms=100) == {"d/t/1": BatchState.RETRIES}
    later = 100 + FIRST_PAUSE_MS
    assert states(failed, pending("d/t/1", "d/t/2"), now_ms=later) == {
        "d/t/1": BatchState.READY,
        "d/t/2": BatchState.WAITS,
    }
    last = dataclasses.replace(own, begin=JobBegin(5, MOST_TRIES))
    given_up = table_batches.fail(table_batches.enter(EMPTY, last, 0), last, "busy", 100, transient=True)
    assert states(given_up, pending("d/t/1"), now_ms=10**12) == {"d/t/1": BatchState.FAILED}


def test_a_batch_with_a_bad_configuration_stops_those_after_it() -> None:
    found = [*pending("d/t/1"), *pending("d/t/2", problem="bad key"), *pending("d/t/3")]
    assert states(applied("d/t/1"), found) == {"d/t/2": BatchState.BLOCKED, "d/t/3": BatchState.WAITS}


def test_a_held_table_enters_no_ordered_batch() -> None:
    found = [*pending("d/t/1"), *pending("d/t/h", ordered=False)]
    assert states(EMPTY, found, held="no _HISTORYDONE") == {
        "d/t/1": BatchState.WAITS,
        "d/t/h": BatchState.READY,
    }


@pytest.mark.parametrize(("apply", "state"), [(True, BatchState.READY), (False, BatchState.REUPLOADED)])
def test_a_batch_that_is_uploaded_again_follows_its_rule_and_stops_no_other(
    apply: bool, state: BatchState
) -> None:
    found = [*pending("d/t/1", generation=2), *pending("d/t/2")]
    planned = states(applied("d/t/1"), found, apply_reuploads=apply)
    assert planned == {"d/t/1": state, "d/t/2": BatchState.WAITS if apply else BatchState.READY}


@pytest.mark.parametrize(("park", "state"), [(False, BatchState.READY), (True, BatchState.LATE)])
def test_a_batch_that_sorts_before_the_last_one_follows_its_rule(park: bool, state: BatchState) -> None:
    found = pending("d/t/1", "d/t/3")
    planned = states(applied("d/t/2"), found, park_late=park)
    assert planned == {"d/t/1": state, "d/t/3": BatchState.READY if park else BatchState.WAITS}


def test_a_retried_batch_is_ready_whatever_a_rule_says() -> None:
    state = table_batches.retry(applied("d/t/2"), "d/t/1", 1, DECIDED)
    assert states(state, pending("d/t/1"), park_late=True) == {"d/t/1": BatchState.READY}
    again = table_batches.retry(applied("d/t/2"), "d/t/2", 5, DECIDED)
    assert states(again, pending("d/t/2", generation=5)) == {"d/t/2": BatchState.READY}
    assert states(again, pending("d/t/2", generation=6)) == {"d/t/2": BatchState.REUPLOADED}
    assert table_batches.enter(state, running("d/t/1"), 0).wanted == {}
    assert state.decisions == (DECIDED,)


def test_a_skipped_batch_lets_the_next_one_start_and_is_never_applied() -> None:
    state, own = entered("d/t/1")
    failed = table_batches.fail(state, own, "bad", 7)
    skipped = table_batches.skip(failed, "d/t/1", 1, True, DECIDED)
    assert states(skipped, pending("d/t/1", "d/t/2")) == {"d/t/2": BatchState.READY}
    assert skipped.applied[-1].skipped == "why" and skipped.last_ordered == "d/t/1"


@pytest.mark.parametrize(
    "decide",
    [
        lambda state: table_batches.retry(state, "d/t/1", 1, DECIDED),
        lambda state: table_batches.skip(state, "d/t/1", 1, True, DECIDED),
    ],
)
def test_nothing_is_decided_about_a_job_in_flight(decide: Callable[[FileTableState], object]) -> None:
    with pytest.raises(Refused):
        decide(entered("d/t/1")[0])


def test_a_burned_job_leaves_its_batch_pending_or_failed() -> None:
    state, own = entered("d/t/1")
    [burning] = table_batches.burn(state, own).in_flight
    assert burning.end.burning
    assert states(table_batches.give_up(state, burning, 5), pending("d/t/1")) == {"d/t/1": BatchState.READY}
    [refused] = table_batches.burn(state, own, "refused").in_flight
    assert states(table_batches.give_up(state, refused, 5), pending("d/t/1")) == {"d/t/1": BatchState.FAILED}


def test_sequence_numbers_are_never_used_again() -> None:
    state, own = entered("d/t/1")
    failed = table_batches.fail(state, own, "bad", 7)
    assert (state.next_number, failed.next_number) == (2, 2)
    assert job_id_of("u", 2) == "kbq-u-2" and job_id_of("u", 2, "edw-d-t") == "kbq-edw-d-t-u-2"


def test_a_long_list_of_applied_batches_moves_to_archives() -> None:
    done = tuple(SettledBatch(f"{number:06}", 1, 1) for number in range(APPLIED.most))
    state = dataclasses.replace(EMPTY, applied=done)
    assert dataclasses.replace(EMPTY, applied=done[1:]).applied_chunk() == ()
    left = state.without_chunks()
    assert state.applied_chunk() + left.applied == done
    assert (left.archived, len(state.applied_chunk())) == (APPLIED.chunk, APPLIED.chunk)


def test_states_survive_their_codec() -> None:
    state, own = entered("d/t/1")
    state = table_batches.fail(table_batches.enter(state, running("d/t/2"), 4), own, "bad", 7)
    state = table_batches.retry(applied("d/t/3"), "d/t/9", 4, DECIDED) if not state.failed else state
    assert codec.loads(FileTableState, codec.dumps(state), "x") == state
    registry = PrefixRegistry().announce("d/t", "u").announce("d/t", "v").activate("d/t").activate("d/t")
    assert codec.loads(PrefixRegistry, codec.dumps(registry), "x").prefixes == {"d/t": "u"}


def test_a_job_in_flight_is_stored_as_former_releases_store_it() -> None:
    state, _ = entered("d/t/1", tries=3)
    [stored] = json.loads(codec.dumps(state))["in_flight"]
    assert (stored["entered_ms"], stored["tries"]) == (5, 3)


def test_names_keep_prefixes_apart() -> None:
    assert file_state_path("a/b") == "filebatches/tables/a%2Fb.json"
    assert file_state_path("a%2Fb") != file_state_path("a/b")
    assert file_registry_path("lake") == "filebatches/@lake/_tables.json"
    assert applied_path("a/b", 500) == "filebatches/applied/a%2Fb/500.json"
