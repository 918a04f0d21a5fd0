"""A commit's facts about its partitions: leader epochs, rows per warehouse, resets, and stops that are retried."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbq_assets.core.errors import StateError
from kbq_assets.core.protocol import codec, commits
from kbq_assets.core.protocol.commits import Commit, PartitionCommit, Stop, Window, epoch_after, starting_at
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.manifest_entries import ManifestEntry
from kbq_assets_tests.strategies import staged_file, window

EMPTY = Commit("t", 0, "c", "id", 1, {0: PartitionCommit(0), 1: PartitionCommit(7, 7)})


def published(*windows: Window, commit: Commit = EMPTY) -> Commit:
    return commits.publish(commit, 0, commit.epoch, windows)


def of_leader(first: int, until: int, leader: int, epoch_until: int = 0) -> Window:
    found = window(first, until, staged_file(first, until))
    return dataclasses.replace(found, leader_epoch=leader, epoch_until=epoch_until)


@pytest.mark.parametrize(("start", "leader", "known_until"), [(5, 3, 5), (5, 0, 5), (5, -1, 0), (0, 3, 0)])
def test_a_partition_starts_under_the_leader_that_the_broker_names(
    start: int, leader: int, known_until: int
) -> None:
    state = starting_at(start, leader, 2)
    assert (state.next, state.start, state.since, state.leader_epoch, state.epoch_until) == (
        start, start, 2, leader, known_until,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("known", "windowed", "leader"),
    [
        (3, of_leader(0, 5, 4, 5), 4),
        (3, of_leader(0, 5, -1), 3),
        (3, of_leader(0, 5, -1, 5), -1),
        (-1, of_leader(0, 5, 0, 5), 0),
    ],
)
def test_the_leader_epoch_is_that_of_the_last_record(known: int, windowed: Window, leader: int) -> None:
    assert epoch_after(known, windowed) == leader


@pytest.mark.parametrize(
    ("state", "known_until"),
    [
        pytest.param(PartitionCommit(9, epoch_until=5), 5, id="known"),
        pytest.param(PartitionCommit(9, start=3), 9, id="before any record of this version"),
        pytest.param(PartitionCommit(9, start=3, totals=Counts(positions=6, gaps=6)), 3, id="gaps alone"),
        pytest.param(PartitionCommit(9, start=3, totals=Counts(positions=6, records=6)), 9, id="records"),
        pytest.param(
            PartitionCommit(9, since=2, totals=Counts(positions=20, records=20)), 0, id="none since a reset"
        ),
        pytest.param(
            PartitionCommit(9, start=3, totals=Counts(positions=6, gaps=5, records=1)), 9, id="both"
        ),
    ],
)
def test_the_position_up_to_which_the_leader_is_known(state: PartitionCommit, known_until: int) -> None:
    assert state.epoch_known_until == known_until


def test_gaps_after_the_last_record_do_not_move_the_known_position() -> None:
    state = published(of_leader(0, 5, 3, 5), window(5, 9, gaps=4)).partitions[0]
    assert (state.next, state.leader_epoch, state.epoch_until) == (9, 3, 5)


def for_warehouses(first: int, until: int, *names: str) -> Window:
    found = window(first, until, staged_file(first, until))
    return dataclasses.replace(
        found, files=tuple(dataclasses.replace(f, warehouses=names) for f in found.files)
    )


@pytest.mark.parametrize(
    ("windows", "rows"),
    [
        pytest.param([for_warehouses(0, 5)], {"": 5, "lake": 0}, id="the first"),
        pytest.param([for_warehouses(0, 5, "lake")], {"": 0, "lake": 5}, id="another"),
        pytest.param([for_warehouses(0, 5, "", "lake")], {"": 5, "lake": 5}, id="both"),
        pytest.param(
            [for_warehouses(0, 5), for_warehouses(5, 7, "lake")], {"": 5, "lake": 2}, id="one after the other"
        ),
        pytest.param([for_warehouses(0, 5, "lake", "copy")], {"": 0, "lake": 5, "copy": 5}, id="two others"),
    ],
)
def test_each_warehouse_has_the_rows_that_it_was_given(windows: list[Window], rows: dict[str, int]) -> None:
    state = published(*windows).partitions[0]
    assert {name: state.totals_for(name).staged for name in rows} == rows
    assert state.totals.records == windows[-1].until


def test_replays_and_erasures_change_the_rows_of_one_warehouse() -> None:
    more, less = Counts(rows={"d.t": 3}), Counts(rows={"d.t": -1})
    replaced = {"job-1": more, "lake/job-1": less, "lake/job-2": less}
    state = dataclasses.replace(published(for_warehouses(0, 5, "", "lake")).partitions[0], replaced=replaced)
    assert (state.totals_for("").staged, state.totals_for("lake").staged) == (8, 3)
    assert state.changes_of("lake") == {"job-1": less, "job-2": less}
    assert state.changes_of("copy") == {}


def test_files_that_were_read_again_take_the_place_of_others() -> None:
    commit = published(window(0, 5, staged_file(0, 3, window=0), staged_file(3, 5, window=0, table="d.u")))
    changed = commits.map_files(commit, lambda file: dataclasses.replace(file, restaged=file.restaged + 1))
    assert [file.restaged for file in changed.files] == [1, 1]
    assert changed.partitions[1] is commit.partitions[1]


def test_files_of_a_parked_table_leave_their_windows_and_empty_windows_go() -> None:
    both = window(0, 5, staged_file(0, 3, window=0), staged_file(3, 5, window=0, table="d.u"))
    commit = published(both, window(5, 7, staged_file(5, 7, table="d.u")))
    kept = commits.drop_files(commit, lambda file: file.table.table == "u")
    assert [[str(f.table) for f in w.files] for w in kept.partitions[0].windows] == [["d.t"]]
    assert kept.partitions[0].totals == commit.partitions[0].totals
    assert commits.drop_files(commit, lambda file: False) == commit


PENDING = published(window(0, 5, staged_file(0, 5)))


@pytest.mark.parametrize(
    ("more", "partitions", "given_up"),
    [
        pytest.param({}, [0, 1], 1, id="one partition"),
        pytest.param({"gone": {1}}, [0], 1, id="one is gone"),
        pytest.param({"backlog": [staged_file(0, 9, table="d.u")]}, [0, 1], 2, id="with a backlog"),
    ],
)
def test_a_reset_gives_up_what_waits(more: dict[str, Any], partitions: list[int], given_up: int) -> None:
    after = commits.reset(PENDING, {0: 2}, cluster_id="c2", topic_id="i2", give_up_pending=True, **more)
    assert list(after.partitions) == partitions
    assert len(after.given_up) == given_up
    assert list(after.files) == []
    assert after.totals == PENDING.totals
    assert (after.partitions[0].next, after.partitions[0].since, after.epoch) == (2, 2, 2)


def test_a_reset_without_pending_files_keeps_the_backlog() -> None:
    after = commits.reset(EMPTY, {0: 2}, cluster_id="c", topic_id="i", backlog=[staged_file(0, 9)])
    assert after.given_up == ()


def test_a_reset_may_add_partitions_and_begins_under_the_broker_s_leaders() -> None:
    after = commits.reset(EMPTY, {0: 2, 5: 3}, cluster_id="c", topic_id="i", leader_epochs={5: 8})
    assert after.partitions[5] == starting_at(3, 8, 2)
    assert after.partitions[0] == starting_at(2, -1, 2)
    assert after.partitions[1] == EMPTY.partitions[1]


def test_what_was_counted_before_a_reset_and_of_a_partition_that_is_gone_stays_counted() -> None:
    loaded = commits.prune(PENDING, lambda file: True)
    after = commits.reset(loaded, {1: 0}, cluster_id="c", topic_id="i", gone={0})
    assert (after.retired.records, after.totals.records) == (5, 5)


STOP = Stop("failed", "no", 5, 9, last_ms=100)


@pytest.mark.parametrize(
    ("second", "tries"),
    [
        pytest.param(dataclasses.replace(STOP, last_ms=200), 1, id="the same place, later"),
        pytest.param(dataclasses.replace(STOP, last_ms=200, reason="bad_record"), 1, id="for another reason"),
        pytest.param(STOP, 0, id="the reply was lost"),
        pytest.param(dataclasses.replace(STOP, first=6, last_ms=200), 0, id="elsewhere"),
    ],
)
def test_a_second_stop_in_a_place_is_a_failed_try(second: Stop, tries: int) -> None:
    stop = commits.stop(commits.stop(EMPTY, 0, STOP), 0, second).partitions[0].stop
    assert stop is not None
    assert (stop.first, stop.tries, stop.last_ms) == (second.first, tries, second.last_ms)


def test_a_gap_begins_under_the_broker_s_leader_and_ends_a_stop() -> None:
    stopped = commits.stop(EMPTY, 0, STOP)
    known = commits.accept_gap(stopped, 0, 9, "x", leader_epoch=4).partitions[0]
    unknown = commits.accept_gap(stopped, 0, 9, "x").partitions[0]
    assert (known.leader_epoch, known.epoch_until, known.stop) == (4, 9, None)
    assert (unknown.leader_epoch, unknown.epoch_until) == (-1, 0)


def test_behind_a_gap_deaths_are_counted_anew() -> None:
    died = EMPTY.with_partition(0, dataclasses.replace(EMPTY.partitions[0], deaths=3))
    assert commits.accept_gap(died, 0, 9, "x").partitions[0].deaths == 0


@pytest.mark.parametrize(
    ("commit", "number"),
    [
        (EMPTY, codec.FORMAT),
        (dataclasses.replace(EMPTY, erasures=1), codec.ORDERED),
        (dataclasses.replace(EMPTY, merges=1), codec.MERGING),
        (dataclasses.replace(EMPTY, merges=2), codec.FORMAT),
        (dataclasses.replace(EMPTY, merges=1, erasures=1), codec.MERGING),
    ],
)
def test_releases_that_would_misread_a_commit_refuse_it(commit: Commit, number: int) -> None:
    assert commit.stored_format == number


def test_a_head_lists_no_files() -> None:
    head = dataclasses.replace(EMPTY, manifests=(ManifestEntry("m", "", 1),))
    with pytest.raises(StateError, match=r"^t: a head does not list all files"):
        list(head.files)


def test_a_file_of_a_backup_has_no_dataset() -> None:
    file = staged_file(0, 5)
    assert (file.dataset, dataclasses.replace(file, content="sha256:x").dataset) == ("d", "")
    assert (file.wanted_by, dataclasses.replace(file, warehouses=("lake",)).wanted_by) == (("",), ("lake",))


@settings(max_examples=25)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.integers(0, 8))
def test_windows_may_be_published_in_any_number_of_swaps(sizes: list[int], cut: int) -> None:
    bounds = [sum(sizes[:n]) for n in range(len(sizes) + 1)]
    windows = [window(a, b, staged_file(a, b)) for a, b in itertools.pairwise(bounds)]
    once = published(*windows)
    assert published(*windows[cut:], commit=published(*windows[:cut])) == once
    assert once.partitions[0].next == sum(sizes)
    loaded = commits.prune(once, lambda file: file.until <= bounds[min(cut, len(sizes))])
    assert len(loaded.partitions[0].windows) == len(windows[cut:])
    assert loaded.totals == once.totals
