"""A job's files match the commit's entries in size and checksum."""

from __future__ import annotations

import dataclasses

import pytest

from kbq_assets.core.loading.verification import Unsound, damage, unsound
from kbq_assets.core.protocol.waits import ParkReason
from kbq_assets_tests.strategies import staged_file

FILE = dataclasses.replace(staged_file(0, 5, size=1234), crc32c="AAAAAA==")
OTHER = staged_file(5, 9, size=10)


@pytest.mark.parametrize(
    ("size", "listed", "stored", "why"),
    [
        (1234, "AAAAAA==", "AAAAAA==", ""),
        (1234, "", "BBBBBB==", ""),
        (1234, "AAAAAA==", "", ""),
        (1233, "AAAAAA==", "AAAAAA==", "has 1,233 bytes, the commit lists 1,234"),
        (0, "", "", "has 0 bytes, the commit lists 1,234"),
        (1234, "AAAAAA==", "BBBBBB==", "has the CRC32C BBBBBB==, the commit lists AAAAAA=="),
    ],
    ids=["the same", "no sum in the commit", "no sum in the store", "shorter", "empty", "other bytes"],
)
def test_a_stored_object_differs_by_size_or_checksum(size: int, listed: str, stored: str, why: str) -> None:
    file = dataclasses.replace(FILE, crc32c=listed)
    assert damage(file, size, stored) == (f"{file.path} {why}" if why else "")


def test_files_that_are_as_listed_are_sound() -> None:
    assert not unsound([], {})
    assert not unsound([FILE], {FILE.path: (1234, "AAAAAA=="), "another": (1, "")})


def test_missing_files_come_before_damaged_ones() -> None:
    found = unsound([OTHER, FILE], {OTHER.path: (11, "")})
    assert found.paths == (FILE.path, OTHER.path)
    assert (bool(found), found.reason) == (True, ParkReason.MISSING_FILES)
    assert found.message == f"1 staged file is gone: {FILE.path}"


def test_damaged_files_alone_name_the_first_difference() -> None:
    found = unsound([OTHER, FILE], {OTHER.path: (11, ""), FILE.path: (1, "")})
    assert (found.reason, found.paths) == (ParkReason.DAMAGED_FILES, (FILE.path, OTHER.path))
    assert found.message == f"2 staged files are damaged: {damage(FILE, 1, '')}"


def test_files_that_nobody_needs_any_more_count_no_longer() -> None:
    found = Unsound(("a", "b"), {"c": "short", "d": "long"})
    assert found.without(["a", "c"]) == Unsound(("b",), {"d": "long"})
    assert found.without(["a", "b"]).reason == ParkReason.DAMAGED_FILES
    assert not found.without("abcd")
