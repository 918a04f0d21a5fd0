"""The independent reader sees each kind of fault, and nothing where there is none."""

from __future__ import annotations

import json
from typing import TypeAlias

import pytest

from kbq_assets_tests.torture.counting import Place, Row, compare, expected

A, B = Place("documents.a", 0, 5), Place("documents.b", 0, 5)
WANTED = expected(
    {A: (b"k", b'{"n": 1, "m": null}'), B: (b"k", b'{"n": 1}'), A._replace(offset=6): (b"k", b"{")}, {}
)
ROW = Row("documents", b"k", (("n", 1),))
GOOD = [(A, ROW), (B, ROW), (A._replace(offset=6), None)]
Found: TypeAlias = "list[tuple[Place, Row | None]]"


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (GOOD, {}),
        (GOOD[1:], {"lost": 1}),
        ([*GOOD, (A, ROW)], {"doubled": 1}),
        ([*GOOD[1:], (A, ROW._replace(fields=(("n", 2),)))], {"altered": 1}),
        ([*GOOD[1:], (A, ROW._replace(table="others"))], {"altered": 1}),
        ([*GOOD[:2], (A._replace(offset=6), ROW)], {"altered": 1}),
        ([*GOOD[1:], (A._replace(offset=7), ROW)], {"lost": 1, "strange": 1}),
    ],
    ids=["good", "lost", "doubled", "altered", "moved", "error as row", "another offset"],
)
def test_each_fault_is_seen(found: Found, verdict: dict[str, int]) -> None:
    counted = compare(WANTED, found, records=4)
    faults = {name: getattr(counted, name) for name in ("lost", "doubled", "altered", "strange")}
    assert faults == {"lost": 0, "doubled": 0, "altered": 0, "strange": 0} | verdict
    assert counted.exact == (not verdict)
    assert (counted.records, counted.rows, counted.errors, counted.skipped) == (4, 2, 1, 1), json.dumps(
        faults
    )
