"""Which entries a mistake stops: those that have it, by themselves or by what they inherit, and nobody else."""

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
#: Keys of an entry that its topic's name depends on.
_NAMING: Final = frozenset({"kafka", "scope", "encoding", "typology", "throughput"})
#: Keys with which nobody can have meant `consumers`.
_ABOUT_OTHERS: Final = ENTRY.keys() - {"consumers"}
#: Mistakes of an entry that a stop names; the command shows all.
_NAMED: Final = 3


def is_root(path: str) -> bool:
    """Whether a file is the catalog's own, which says what all others mean."""
    return "/" not in path and path.rpartition(".")[0] == ROOT_FILE


def faults_of_files(
    problems: Iterable[CatalogProblem], entries: Iterable[str]
) -> Iterator[tuple[str, CatalogProblem]]:
    """Files that cannot be read, with the paths of the entries that need them."""
    paths = sorted(entries)
    for problem in problems:
        for path in paths:
            if _needs(path, problem.path):
                yield path, problem


def _needs(entry: str, path: str) -> bool:
    """Whether an entry is, or inherits, a file, or takes its schema from it. SQL is missing where it is named."""
    folder, _, name = path.rpartition("/")
    stem, _, env = name.rpartition(".")[0].partition(".")
    place = place_of(entry)
    if path == entry or place is None:
        return path == entry
    if stem == "defaults" and (not env or env == place.env):
        return entry.startswith(f"{folder}/".lstrip("/"))
    return folder in (f"{place.folder}/schemas", f"{place.folder}/{place.env}/schemas")


def wrong_sources(catalog: Catalog, env: str) -> Iterator[SourceEntry]:
    """The entries of an environment that have mistakes, as extraction knows them: topics that wait. A file that is no
    entry may have been meant as one."""
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
    """Whether a mistake of a document may be about the topic's name; one of a schema is not."""
    if problem.path != path and "/schemas/" in problem.path:
        return False
    key = problem.where.partition(".")[0]
    return key in _NAMING or key not in ENTRY


def _waiting(pattern: str, problems: Iterable[CatalogProblem], *, hides_name: bool) -> SourceEntry:
    found = list(problems)
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    message = "; ".join(map(str, found[:_NAMED])) + more
    return SourceEntry(pattern, TopicSettings(), EntryMistake(message, _FIX, hides_name))
