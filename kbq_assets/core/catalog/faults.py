"""Finds the entries that a mistake stops: only those that contain or inherit it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

from kbq_assets.core.catalog.entries import ROOT_FILE, Catalog, place_of
from kbq_assets.core.catalog.fields import ENTRY
from kbq_assets.core.catalog.nodes import CatalogProblem
from kbq_assets.core.topics.source_list import EntryMistake, SourceEntry
from kbq_assets.core.topics.topic_settings import TopicSettings

_FIX: Final = "kbq catalog validate"
#: Keys of an entry that determine its topic's name.
_NAMING: Final = frozenset({"kafka", "scope", "encoding", "typology", "throughput"})
#: Keys that cannot be a misspelling of `consumers`.
_ABOUT_OTHERS: Final = ENTRY.keys() - {"consumers"}
#: Most mistakes of an entry in the message of a stop; the command shows all.
_NAMED: Final = 3


def is_root(path: str) -> bool:
    """Whether a file is `catalog.yaml`, on which all others depend."""
    return "/" not in path and path.rpartition(".")[0] == ROOT_FILE


def faults_of_files(
    problems: Iterable[CatalogProblem], entries: Iterable[str]
) -> Iterator[tuple[str, CatalogProblem]]:
    """The problems of unreadable files, each with the path of every entry that needs the file."""
    paths = sorted(entries)
    for problem in problems:
        for path in paths:
            if _needs(path, problem.path):
                yield path, problem


def _needs(entry: str, path: str) -> bool:
    """Whether an entry is the file, inherits from it, or reads its schema from it. A missing SQL file is reported at
    the key that names it."""
    folder, _, name = path.rpartition("/")
    stem, _, env = name.rpartition(".")[0].partition(".")
    place = place_of(entry)
    if path == entry or place is None:
        return path == entry
    if stem == "defaults" and (not env or env == place.env):
        return entry.startswith(f"{folder}/".lstrip("/"))
    return folder in (f"{place.folder}/schemas", f"{place.folder}/{place.env}/schemas")


def wrong_sources(catalog: Catalog, env: str) -> Iterator[SourceEntry]:
    """The entries of an environment that have mistakes, as source entries whose topics wait. Includes stray files,
    which may have been meant as entries."""
    known = {entry.place.path: entry for entry in catalog.entries}
    for path, problems in sorted(catalog.faults.items()):
        place, entry = place_of(path), known.get(path)
        if place is not None and place.env != env:
            continue
        keys = {problem.where.partition(".")[0] for problem in problems}
        is_read = entry is None or entry.archived or not keys <= _ABOUT_OTHERS
        if not is_read:
            continue
        hides_name = path not in catalog.names or any(_hides_name(problem, path) for problem in problems)
        yield _waiting(catalog.names.get(path, path), problems, hides_name=hides_name)
    counted = {*chain.from_iterable(catalog.faults.values()), *catalog.unusable}
    strays: dict[str, list[CatalogProblem]] = {}
    for problem in catalog.problems:
        if problem not in counted:
            strays.setdefault(problem.path, []).append(problem)
    for path, found in strays.items():
        yield _waiting(path, found, hides_name=True)


def _hides_name(problem: CatalogProblem, path: str) -> bool:
    """Whether a mistake may affect the topic's name. A mistake in a schema does not."""
    if problem.path != path and "/schemas/" in problem.path:
        return False
    key = problem.where.partition(".")[0]
    return key in _NAMING or key not in ENTRY


def _waiting(pattern: str, problems: Iterable[CatalogProblem], *, hides_name: bool) -> SourceEntry:
    found = list(problems)
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    message = "; ".join(map(str, found[:_NAMED])) + more
    return SourceEntry(pattern, TopicSettings(), EntryMistake(message, _FIX, hides_name))
