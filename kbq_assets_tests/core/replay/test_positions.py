"""The start and end of a replay: as a person writes them, and as Kafka and the commit have them."""

from __future__ import annotations

import pytest

from kbq_assets.core.errors import ConfigurationError, InvalidName, Refused
from kbq_assets.core.protocol.commits import Commit, PartitionCommit
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import BrokerOffsets, OffsetRange, TopicPartition
from kbq_assets.core.replay.model import (
    Bounds,
    Replay,
    check_own,
    epoch_of,
    is_shadow,
    parse_replay_path,
    replay_path,
)
from kbq_assets.core.replay.positions import EARLIEST, LATEST, Extracted, Position, bounds_of, parse_position

TP = TopicPartition("t", 0)


def extracted(partition: int = 0, *, at: tuple[int, int] = (0, 0), earliest: int = 0) -> Extracted:
    """[10, 100) was extracted; Kafka has [earliest, 120)."""
    state = PartitionCommit(100, 10)
    return Extracted(TopicPartition("t", partition), state, BrokerOffsets(earliest, 120), *at)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", Position("earliest")),
        ("4200", Position(offset=4200)),
        ("0:4200,3:117", Position(offsets={0: 4200, 3: 117})),
        ("1970-01-01T00:00:01Z", Position(time_ms=1000)),
        ("1970-01-01T02:00:01+02:00", Position(time_ms=1000)),
    ],
)
def test_a_position_is_a_time_an_offset_or_an_edge(text: str, position: Position) -> None:
    assert parse_position("--from", text, EARLIEST) == position


@pytest.mark.parametrize("text", ["", "latest", "-1", "0:1,", "0:x", "9" * 19, "next week"])
def test_anything_else_is_refused_by_the_option(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--from"):
        parse_position("--from", text, EARLIEST)


@pytest.mark.parametrize(
    ("first", "until", "expected"),
    [
        (Position(EARLIEST), Position(LATEST), {0: Bounds(10, 100), 1: Bounds(10, 100)}),
        (Position(offset=20), Position(offset=30), {0: Bounds(20, 30), 1: Bounds(20, 30)}),
        (Position(offsets={1: 20}), Position(LATEST), {0: Bounds(100, 100), 1: Bounds(20, 100)}),
        (Position(time_ms=1), Position(time_ms=2), {0: Bounds(10, 60), 1: Bounds(40, 100)}),
        (Position(offset=30), Position(offset=20), {0: Bounds(100, 100), 1: Bounds(100, 100)}),
    ],
)
def test_times_are_cut_to_what_was_extracted(
    first: Position, until: Position, expected: dict[int, Bounds]
) -> None:
    partitions = [extracted(0, at=(5, 60)), extracted(1, at=(40, 119))]
    assert bounds_of(partitions, first, until) == expected


@pytest.mark.parametrize(
    ("first", "until", "earliest", "why"),
    [
        (Position(offset=9), Position(LATEST), 0, "was extracted"),
        (Position(offset=20), Position(offset=101), 0, "was extracted"),
        (Position(offset=20), Position(LATEST), 21, "no longer has"),
        (Position(offsets={4: 1}), Position(LATEST), 0, "no partition 4"),
    ],
)
def test_offsets_are_never_cut(first: Position, until: Position, earliest: int, why: str) -> None:
    with pytest.raises(Refused, match=why):
        bounds_of([extracted(earliest=earliest)], first, until)


MARKS = {"t/0/2/1": 40, "t/0/2/7": 50, "t/0/3/1": 90, "t/1/2/1": 95}


@pytest.mark.parametrize(
    ("first", "until", "epoch"), [(10, 50, 2), (45, 50, 2), (50, 90, 3), (60, 61, 3), (90, 100, 4)]
)
def test_an_epoch_ends_where_its_highest_mark_is(first: int, until: int, epoch: int) -> None:
    commit = Commit("t", 0, "c", "i", 4, {0: PartitionCommit(100, 10, 2)})
    assert epoch_of([OffsetRange(TP, first, until)], [commit], MARKS) == epoch


@pytest.mark.parametrize(("first", "until"), [(49, 51), (10, 100), (89, 91), (5, 5)])
def test_a_range_of_several_epochs_is_refused(first: int, until: int) -> None:
    commit = Commit("t", 0, "c", "i", 4, {0: PartitionCommit(100, 10, 2)})
    ranges = [r for r in [OffsetRange(TP, first, until)] if r]
    with pytest.raises(Refused):
        epoch_of(ranges, [commit], MARKS)


def test_a_replay_knows_its_own_names() -> None:
    replay = Replay(7, "t", 1, {1: Bounds(5, 9), 0: Bounds(3, 3)})
    assert (replay.ranges, replay.positions) == ((OffsetRange(TopicPartition("t", 1), 5, 9),), 4)
    assert parse_replay_path(replay_path(7)) == 7
    shadow = replay.shadow(TableReference("shop", "orders"))
    assert (str(shadow), is_shadow(shadow), check_own(shadow)) == ("shop._kbq_replay_7_orders", True, shadow)
    assert not is_shadow(TableReference("shop", "orders"))


@pytest.mark.parametrize("path", ["replays/7", "replays/07.json", "replays/x.json", "commits/7.json"])
def test_other_paths_are_no_replays(path: str) -> None:
    with pytest.raises(InvalidName):
        parse_replay_path(path)


def test_no_other_table_is_ever_dropped() -> None:
    with pytest.raises(Refused, match=r"shop\.orders"):
        check_own(TableReference("shop", "orders"))
