"""Files of one hour of business time each."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from kbq_assets.core.topics.business_time import parse_business_time
from kbq_assets.wire.chunk import Chunk, RawRecord, encode_bytes
from kbq_assets.wire.files.encode import EncodedFile, Route, WindowEncoder
from kbq_assets.wire.files.hour_files import MOST_HOURS, UnitHours, WindowHours
from kbq_assets.wire.records.select import Chooser
from kbq_assets.wire.records.staged_schema import MetadataColumns, staged_schema, tombstone_schema
from kbq_assets_tests.wire.samples import Sinks, framed, record_of, window

HOUR = 3_600_000
#: An hour of some day.
TEN = 500_000
TIMED = MetadataColumns(business_time=parse_business_time("at"))
SCHEMA = staged_schema(record_of(("at", "string")), TIMED)
TOMBSTONES = Route("t", tombstone_schema(TIMED))


def text(hour: float) -> bytes:
    return framed(encode_bytes(str(int(hour * HOUR)).encode()))


def records(*hours: float | None, kafka: float = TEN + 9) -> Chunk:
    """Records of these hours, or tombstones, which Kafka has since another one."""
    values = [None if hour is None else text(hour) for hour in hours]
    return Chunk.from_messages(
        [RawRecord(value, n, int(kafka * HOUR), key=b"k") for n, value in enumerate(values)], keys=True
    )


def by_hour(unit: UnitHours, route: Route | None = None) -> WindowEncoder:
    found = route or Route("t", SCHEMA)
    return window(
        Sinks(), {}, resolve=lambda schema_id: found, hours=WindowHours(unit), tombstones=TOMBSTONES
    )


def files_of(files: tuple[EncodedFile, ...]) -> list[tuple[int, list[int]]]:
    """The first offset of each file, and its hours after ten."""
    return [(file.first_offset, [hour - TEN for hour in file.event_hours]) for file in files]


def windows(unit: UnitHours, chunk: Chunk) -> list[list[tuple[int, list[int]]]]:
    """The files of the windows of a chunk, which ends where a window ends."""
    found, encoder, first = [], by_hour(unit), 0
    while first < len(chunk):
        encoder.add(rest := chunk.slice(first, len(chunk)))
        until = len(chunk)
        if encoder.later is not None:
            until = first + encoder.later
            encoder.add(rest.slice(0, encoder.later))
        found.append(files_of(encoder.finish()))
        encoder, first = by_hour(unit), until
    return found


@pytest.mark.parametrize(
    ("hours", "found"),
    [
        ([TEN, TEN, TEN], [[(0, [0])]]),
        ([TEN, TEN + 1, TEN + 1], [[(0, [0])], [(1, [1])]]),
        ([TEN, TEN + 3, TEN + 1], [[(0, [0])], [(1, [3]), (2, [1])]]),
        # late rows have a file of their own, per hour
        ([TEN + 2, TEN, TEN + 1, TEN, TEN + 2], [[(0, [2]), (1, [0]), (2, [1])]]),
        # a tombstone has Kafka's time and moves nothing
        ([TEN, None, TEN], [[(0, [0]), (1, [9])]]),
    ],
)
def test_a_window_ends_before_a_later_hour(hours: list[float | None], found: list[object]) -> None:
    assert windows(UnitHours(), records(*hours)) == found


def test_a_clock_that_is_ahead_ends_no_window() -> None:
    ahead = records(TEN, TEN + 5, TEN, TEN + 4, kafka=TEN + 0.5)  # of Kafka's time
    assert windows(UnitHours(), ahead) == [[(0, [0]), (1, [5]), (3, [4])]]
    beyond = records(TEN, TEN + 5, TEN, kafka=TEN + 9)  # of the worker's
    assert windows(UnitHours(horizon=TEN + 1), beyond) == [[(0, [0]), (1, [5])]]
    assert len(windows(UnitHours(horizon=TEN + 5), beyond)) == 2


def test_a_record_without_its_time_ends_no_window() -> None:
    values = [text(TEN), framed(encode_bytes(b"soon")), text(TEN)]
    chunk = Chunk.from_messages([RawRecord(v, n, (TEN + 9) * HOUR) for n, v in enumerate(values)])
    assert windows(UnitHours(), chunk) == [[(0, [0]), (1, [9])]]


def test_late_rows_at_the_beginning_make_no_window_of_their_own() -> None:
    assert windows(UnitHours(highest=TEN + 1), records(TEN, TEN + 1, TEN)) == [[(0, [0]), (1, [1])]]


def test_many_hours_in_turn_share_a_file() -> None:
    unit, turn = UnitHours(highest=TEN + 99), [TEN + n % 50 for n in range(500)]
    [files] = windows(unit, records(*turn, kafka=TEN + 100))
    # One file is kept for the hour that the partition has reached.
    assert sorted(len(hours) for _, hours in files) == [*[1] * (MOST_HOURS - 1), 51 - MOST_HOURS]


def test_records_that_choose_their_table_have_files_per_hour_too() -> None:
    schema = staged_schema(record_of(("at", "string")), TIMED, ["key"])
    route = Route("", schema, Chooser(("key",), lambda values: Route(f"t_{values[0]!r}", schema)))
    encoder = by_hour(UnitHours(), route)
    chunk = records(TEN + 1, TEN, TEN + 1, TEN)
    assert not len(encoder.add(chunk))
    assert [(file.rows, len(file.event_hours)) for file in encoder.finish()] == [(2, 1), (2, 1)]
    assert encoder.rows == 4


@pytest.mark.parametrize("seed", range(20))
def test_every_row_is_in_one_file_of_its_hour_whatever_the_chunks(seed: int) -> None:
    chance = random.Random(seed)
    hours = [TEN + n // 9 - chance.choice((0, 0, 0, 1, 2)) for n in range(90)]
    whole = windows(UnitHours(), records(*hours))
    rows = Counter(hour for files in whole for _, of_file in files for hour in of_file)
    assert rows.keys() == {hour - TEN for hour in hours}
    assert all(len(of_file) == 1 for files in whole for _, of_file in files)
    newest = [max(of_file[0] for _, of_file in files) for files in whole]
    assert newest == sorted(set(newest))
    unit, found, first, chunk = UnitHours(), [], 0, records(*hours)
    encoder = by_hour(unit)
    while first < len(chunk):
        until = min(len(chunk), first + chance.randint(1, 20))
        encoder.add(chunk.slice(first, until))
        if encoder.later is not None:
            encoder.add(chunk.slice(first, until := first + encoder.later))
            found.append(files_of(encoder.finish()))
            encoder = by_hour(unit)
        first = until
    assert [*found, files_of(encoder.finish())] == whole
