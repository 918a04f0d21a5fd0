"""Patterns for the many files of a batch match exactly these files."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kbq_assets.core.filebatches.patterns import patterns_of

names = st.lists(st.text("ab/_", min_size=1, max_size=6), max_size=40, unique=True)


@given(names, st.integers(0, 2**40))
def test_patterns_match_the_files_and_none_of_the_others(listed: list[str], chosen: int) -> None:
    files = [name for place, name in enumerate(listed) if chosen >> place & 1]
    others = [name for name in listed if name not in files]
    patterns = patterns_of(files, others, 40)
    matched = [
        name
        for name in listed
        if any(name == each or (each[-1] == "*" and name.startswith(each[:-1])) for each in patterns)
    ]
    assert sorted(matched) == sorted(files)
    assert len(patterns) <= len(files)


def test_many_files_next_to_their_success_object_are_one_pattern() -> None:
    files = [f"part-{number:05}.avro" for number in range(20_000)]
    assert patterns_of(files, ["_SUCCESS"], 10) == ("part-*",)
    days = [f"dt={day}/part-{number}.avro" for day in range(5) for number in range(1_000)]
    by_directory = tuple(f"dt={day}/part-*" for day in range(5))
    assert patterns_of(days, ["_SUCCESS", "dt=3/empty"], 10) == by_directory
    assert patterns_of(days, ["_SUCCESS"], 3) == ("dt=*",)


def test_names_that_need_too_many_patterns_have_none() -> None:
    files = [f"{number}a" for number in range(10, 30)]
    assert patterns_of(files, [f"{number}b" for number in range(10, 30)], 19) == ()
    assert len(patterns_of(files, [f"{number}b" for number in range(10, 30)], 20)) == 20
