"""A commit only moves forward, by whole windows whose records are all accounted for."""

from __future__ import annotations

import dataclasses

import pytest

from kbq_assets.core.errors import Defect, Refused, StateError
from kbq_assets.core.protocol import codec, commits
from kbq_assets.core.protocol.business_times import BusinessTimes
from kbq_assets.core.protocol.commits import Commit, PartitionCommit, StagedFile, Stop, Window
from kbq_assets.core.protocol.counts import Counts
from kbq_assets_tests.strategies import staged_file, window

EMPTY = Commit("t", 0, "c", "id", 1, {0: PartitionCommit(next=10, start=10), 1: PartitionCommit(next=0)})


def _published(*windows: Window) -> Commit:
    return commits.publish(EMPTY, 0, 1, windows)


def test_published_windows_advance_the_position_and_the_totals() -> None:
    commit = _published(window(10, 15, staged_file(10, 15)), window(15, 18, staged_file(15, 17), gaps=1))
    state = commit.partitions[0]
    assert (state.next, len(state.windows)) == (18, 2)
    assert state.totals == Counts(positions=8, records=7, gaps=1, rows={"d.t": 7})
    assert commit.partitions[1] == EMPTY.partitions[1]


def test_a_window_without_files_advances_the_position_and_is_not_kept() -> None:
    state = _published(window(10, 12, gaps=2)).partitions[0]
    assert (state.next, state.windows, state.totals.gaps) == (12, (), 2)


@pytest.mark.parametrize("first", [9, 11])
def test_a_window_that_overlaps_or_leaves_a_hole_is_refused(first: int) -> None:
    with pytest.raises(StateError, match="does not follow"):
        _published(window(first, 15, staged_file(first, 15)))


def test_a_window_of_another_epoch_is_refused() -> None:
    with pytest.raises(StateError, match="epoch"):
        commits.publish(EMPTY, 0, 2, [window(10, 15, staged_file(10, 15))])


@pytest.mark.parametrize(
    "counts",
    [
        Counts(positions=5, records=4, rows={"d.t": 4}),  # an unexplained position
        Counts(positions=5, records=5, rows={"d.t": 4}),  # an unexplained record
        Counts(positions=4, records=4, rows={"d.t": 4}),  # not the window's length
        Counts(positions=5, records=5, rows={"d.t": 4}, skipped=1),  # not the files' rows
    ],
)
def test_a_window_whose_counts_do_not_add_up_is_refused(counts: Counts) -> None:
    with pytest.raises(Defect):
        _published(Window(10, 15, counts, (staged_file(10, 15),)))


def test_only_windows_all_of_whose_files_are_loaded_are_pruned() -> None:
    first = window(10, 15, staged_file(10, 14, table="d.a"), staged_file(14, 15, table="d.b", window=10))
    second = window(15, 20, staged_file(15, 20, table="d.a"))
    commit = commits.prune(_published(first, second), lambda file: file.table.table == "a")
    assert commit.partitions[0].windows == (first,)
    assert commit.partitions[0].next == 20


def test_an_accepted_gap_is_counted_as_lost_and_kept_on_record() -> None:
    state = commits.accept_gap(EMPTY, 0, 25, "retention").partitions[0]
    assert (state.next, state.totals.lost, state.totals.positions) == (25, 15, 15)
    assert [(g.first, g.until) for g in state.accepted_gaps] == [(10, 25)]


def test_gaps_that_adjoin_are_one_on_record_if_their_reason_is_one() -> None:
    commit = EMPTY
    for until in range(11, 300):
        commit = commits.accept_gap(commit, 0, until, "retention")
    commit = commits.accept_gap(commit, 0, 310, "an operator's")
    state = commit.partitions[0]
    assert [(g.first, g.until) for g in state.accepted_gaps] == [(10, 299), (299, 310)]
    assert state.totals.lost == 300


def test_the_latest_gaps_are_kept_on_record_and_all_are_counted() -> None:
    commit = EMPTY
    for number in range(3 * commits.MOST_GAPS):
        commit = commits.accept_gap(commit, 0, 11 + number, f"reason {number}")
    state = commit.partitions[0]
    assert [g.reason for g in state.accepted_gaps][::99] == ["reason 200", "reason 299"]
    assert (len(state.accepted_gaps), state.totals.lost) == (commits.MOST_GAPS, 300)


def test_there_is_no_gap_below_the_position() -> None:
    with pytest.raises(Refused, match="no gap"):
        commits.accept_gap(EMPTY, 0, 10, "x")


def test_a_reset_begins_a_new_epoch_for_the_named_partitions() -> None:
    commit = commits.reset(EMPTY, {0: 3}, cluster_id="c2", topic_id="id2")
    assert (commit.epoch, commit.cluster_id, commit.topic_id) == (2, "c2", "id2")
    assert commit.partitions[0] == PartitionCommit(next=3, start=3, since=2)
    assert commit.partitions[1] == EMPTY.partitions[1]


def test_a_reset_refuses_while_windows_are_pending_unless_an_option_gives_them_up() -> None:
    commit = _published(window(10, 15, staged_file(10, 15)))
    with pytest.raises(Refused, match="loaded: 1"):
        commits.reset(commit, {1: 0}, cluster_id="c", topic_id="id")
    given_up = commits.reset(commit, {1: 0}, cluster_id="c", topic_id="id", give_up_pending=True)
    assert [list(p.windows) for p in given_up.partitions.values()] == [[], []]


def test_a_stopped_partition_resumes_and_may_accept_its_errors() -> None:
    stopped = commits.stop(EMPTY, 0, Stop("error_share", "bad", 10, 30))
    assert commits.resume(stopped, 0).partitions[0] == EMPTY.partitions[0]
    accepted = commits.resume(stopped, 0, as_errors=True).partitions[0]
    assert (accepted.stop, accepted.accept_errors_until) == (None, 30)
    with pytest.raises(Refused):
        commits.resume(EMPTY, 0)


def test_publishing_clears_a_stop() -> None:
    stopped = commits.stop(EMPTY, 0, Stop("error_share", "bad", 10, 30))
    assert commits.publish(stopped, 0, 1, [window(10, 12, gaps=2)]).partitions[0].stop is None


def test_counts_add_up_per_table() -> None:
    left, right = (
        Counts(positions=2, records=2, rows={"a": 1, "b": 1}),
        Counts(positions=1, records=1, rows={"b": 1}),
    )
    assert left + right == Counts(positions=3, records=3, rows={"a": 1, "b": 2})


def test_files_covers_are_named_by_their_done_files() -> None:
    file = dataclasses.replace(staged_file(10, 15, schema_id=4), until=20)
    assert file.done.format() == "done/t.0.d.t.4.10.19.done"


def test_files_of_older_versions_have_no_hours_and_new_ones_keep_theirs() -> None:
    path = "staging/0-a/t.0.d.t.1.5.avro"
    new = StagedFile(
        path, 5, 9, 4, 1, 1, "c", "f", (20_000,), 1, BusinessTimes({480_000: 3}, 1_728_000_000_123, 1)
    )
    assert codec.loads(StagedFile, codec.dumps(new), "x") == new
    stored = codec.encode(new)
    for name in ("event_hours", "newest_event_ms", "event_time_fallbacks"):
        del stored[name]
    old = codec.decode(StagedFile, stored)
    assert old.events == BusinessTimes()
