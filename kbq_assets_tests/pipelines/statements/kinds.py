"""What the table of each kind of statement must show, computed by Python from the records alone."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Record:
    """A record: its key, its version, and the day on which it happened; ``n`` identifies it."""

    n: int
    id: int | None
    v: int | None
    day: int


def random_records(chance: random.Random, count: int) -> list[Record]:
    """Few keys and versions, so that they meet; some lack one."""
    return [
        Record(
            n,
            None if chance.random() < 0.1 else chance.randrange(5),
            None if chance.random() < 0.15 else chance.randrange(4),
            chance.randrange(6),
        )
        for n in range(count)
    ]


Check = Callable[[Sequence[Record], Sequence[int]], None]


def all_versions(records: Sequence[Record], group: Callable[[Record], object]) -> list[int]:
    """The records of the newest version of each group, and each record without a group."""
    newest: dict[object, int] = {}
    for record in records:
        newest[group(record)] = max(newest.get(group(record), -1), -1 if record.v is None else record.v)
    return [r.n for r in records if group(r) is None or newest[group(r)] == (-1 if r.v is None else r.v)]


def shows_the_newest_version_of_each_key(records: Sequence[Record], found: Sequence[int]) -> None:
    assert list(found) == all_versions(records, lambda record: record.id)


def shows_the_newest_version(records: Sequence[Record], found: Sequence[int]) -> None:
    assert list(found) == all_versions(records, lambda record: "the table")


def has_each_key_once(records: Sequence[Record], found: Sequence[int]) -> None:
    rows = [records[n] for n in found]
    assert Counter(r.id for r in rows if r.id is not None) == Counter(
        {r.id for r in records if r.id is not None}
    )
    assert [r for r in rows if r.id is None] == [r for r in records if r.id is None]


def has_each_key_once_within_a_day(records: Sequence[Record], found: Sequence[int]) -> None:
    """No two rows of a key are within a day of each other, and each omitted row has such a neighbor."""
    rows = [records[n] for n in found]
    assert len(rows) == len(set(rows))
    for row in rows:
        assert not [other for other in rows if row is not other and _are_near(row, other)]
    for record in set(records) - set(rows):
        assert [other for other in records if record is not other and _are_near(record, other)]


def _are_near(left: Record, right: Record) -> bool:
    return left.id is not None and left.id == right.id and abs(left.day - right.day) <= 1


def has_every_record_once(records: Sequence[Record], found: Sequence[int]) -> None:
    assert list(found) == list(range(len(records)))


def shows_the_newest_record_of_each_key(records: Sequence[Record], found: Sequence[int]) -> None:
    newest = {record.id: record.n for record in records if record.id is not None}
    assert list(found) == [r.n for r in records if r.id is None or newest[r.id] == r.n]


def history_of(records: Sequence[Record]) -> dict[int, tuple[int, int | None]]:
    """By record: the day from which it is valid, and the day of its key's next record."""
    found: dict[int, tuple[int, int | None]] = {}
    for record in records:
        at = (record.day, record.n)
        later = [(r.day, r.n) for r in records if r.id == record.id and (r.day, r.n) > at]
        found[record.n] = (record.day, min(later)[0] if later and record.id is not None else None)
    return found


KINDS: dict[str, tuple[dict[str, Any], Check]] = {
    "insert_new": ({"load": "insert_new", "key": "id"}, has_each_key_once),
    "within_days": ({"load": "insert_new", "key": "id", "within_days": 1}, has_each_key_once_within_a_day),
    "delete_insert": (
        {"load": "delete_insert", "key": "id", "version": "v"},
        shows_the_newest_version_of_each_key,
    ),
    "sql": (
        {
            "load": "sql",
            "sql": "INSERT INTO {{ table }} ({{ columns }}) SELECT {{ columns }} FROM {{ batch }}",
        },
        has_every_record_once,
    ),
    "scd2": ({"load": "scd2", "key": "id"}, has_every_record_once),
    "snapshot": ({"load": "snapshot", "version": "v"}, shows_the_newest_version),
}
UPSERT: tuple[dict[str, Any], Check] = ({"load": "upsert", "key": "id"}, shows_the_newest_record_of_each_key)
