"""Covers the many files of a batch with few patterns: a BigQuery job takes 10,000 URIs, but millions of files by
wildcards.

So one job keeps a large batch atomic. Google's tool splits such a batch into jobs whose rows become visible one job at
a time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import groupby, islice
from os.path import commonprefix
from typing import Final

#: Most files per batch. The state lists each file with its generation, and every run reads the state.
MOST_FILES: Final = 50_000


def patterns_of(files: Collection[str], others: Collection[str], most: int) -> tuple[str, ...]:
    """At most ``most`` names and patterns (with one `*` at the end) that match all files and none of the ``others``
    between them; empty if that takes more. If possible, each pattern matches files of only one directory, so that fewer
    files added later match it."""
    own = set(files)
    for by_directory in (True, False):
        found = list(islice(_patterns(sorted({*own, *others}), own, by_directory), most + 1))
        if len(found) <= most:
            return tuple(found)
    return ()


def _patterns(listed: Sequence[str], own: Collection[str], by_directory: bool) -> Iterator[str]:
    def run_of(name: str) -> tuple[bool, str]:
        return name in own, name.rpartition("/")[0] if by_directory else ""

    runs = [(is_own, list(names)) for (is_own, _), names in groupby(listed, run_of)]
    for place, (is_own, names) in enumerate(runs):
        if is_own:
            before = runs[place - 1][1][-1] if place else ""
            after = runs[place + 1][1][0] if place + 1 < len(runs) else ""
            yield from _cover(names, (before, after))


def _cover(names: Sequence[str], neighbors: tuple[str, str]) -> Iterator[str]:
    """Patterns for consecutive names of a listing that do not match the neighbors before and after them."""
    shared = commonprefix([names[0], names[-1]])  # noqa: RUF071 (character by character, as patterns match)
    if len(names) == 1:
        yield names[0]
    elif not any(neighbor.startswith(shared) for neighbor in neighbors):
        yield f"{shared}*"
    else:
        for _, group in groupby(names, lambda name: name[len(shared) : len(shared) + 1]):
            yield from _cover(list(group), neighbors)
