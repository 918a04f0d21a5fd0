"""What waits, a page at a time: for sensors, whose ticks have a minute however much is staged.

Each page is asked with the plan of the run itself, so holds, quotas and parked tables count here as they do there.
What is found is a reason to start a run, never what the run works on: the run plans again, from everything.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from kbq_assets.core.errors import KbqError, NotFound
from kbq_assets.core.extraction.planning import BacklogChunk, ExtractionPlan
from kbq_assets.core.extraction.restarts import MayRestart
from kbq_assets.core.loading.table_state import LoadLimits, TableState
from kbq_assets.core.protocol.commits import Commit
from kbq_assets.core.protocol.names import BACKLOG, COMMITS, TABLE_REGISTRY, TABLES
from kbq_assets.pipelines.loading import load
from kbq_assets.pipelines.loading.view import FindHolds
from kbq_assets.pipelines.protocol.state import Versioned
from kbq_assets.pipelines.protocol.state_cache import StateCache
from kbq_assets.ports.object_store import ObjectEntry, ObjectStore

T = TypeVar("T")
#: Bytes of commits and backlogs in a page: some 50,000 files, which take 2 to 4 s of a core to parse.
PAGE_BYTES: Final = 32 * 1024 * 1024
#: No page is begun after this many seconds of a look: Dagster ends a tick after 60.
LOOK_SECONDS: Final = 20.0


@dataclass(frozen=True)
class Poll(Generic[T]):
    """Answers of the pages that were asked, the last of which may have work. ``start`` is where the next look
    begins, "" for anywhere; ``complete``: every page was asked."""

    answers: tuple[T, ...]
    start: str
    complete: bool


def is_quick(store: ObjectStore) -> bool:
    """Whether all that is staged is no more than a page."""
    return sum(entry.size for prefix in (COMMITS, BACKLOG) for entry in store.list(prefix)) <= PAGE_BYTES


@dataclass(frozen=True)
class PendingLoads:
    """``names`` of files to load and of flights that a dead run left; the rest as in `Poll`."""

    names: tuple[str, ...]
    start: str
    complete: bool


def pages(
    sizes: Mapping[str, int], start: str = "", page_bytes: int = PAGE_BYTES
) -> Iterator[tuple[str, ...]]:
    """Names in order, from ``start`` on and then from the front, in groups that are not too large together.

    Any start will do: it says what comes first, not what there is.
    """
    names = sorted(sizes)
    first = bisect_left(names, start)
    page: list[str] = []
    room = page_bytes
    for name in [*names[first:], *names[:first]]:
        if page and sizes[name] > room:
            yield tuple(page)
            page, room = [], page_bytes
        page.append(name)
        room -= sizes[name]
    if page:
        yield tuple(page)


def look(
    found: Sequence[tuple[str, ...]],
    ask: Callable[[frozenset[str] | None], T],
    has_work: Callable[[T], bool],
    monotonic: Callable[[], float],
) -> Poll[T]:
    """Ask page after page until one has work, all were asked or time is up. A single page is asked as None: all."""
    if len(found) <= 1:
        return Poll((ask(None),), "", True)
    deadline = monotonic() + LOOK_SECONDS
    answers: list[T] = []
    for number, page in enumerate(found):
        if answers and monotonic() > deadline:
            return Poll(tuple(answers), page[0], False)
        answers.append(ask(frozenset(page)))
        if has_work(answers[-1]):
            return Poll(tuple(answers), page[0], number == len(found) - 1)
    return Poll(tuple(answers), "", True)


def poll_loads(
    cache: StateCache,
    limits: LoadLimits,
    monotonic: Callable[[], float],
    *,
    start: str = "",
    page_bytes: int = PAGE_BYTES,
    restarts: MayRestart = lambda topics: True,
    holds: FindHolds | None = None,
) -> PendingLoads:
    """What a load would work on. ``start`` is where to look first: any will do; the rest as in `load.plan`."""
    flights = tuple(_flights(cache))
    sizes = {
        path: entry.size for prefix in (COMMITS, BACKLOG) for path, entry in cache.listing(prefix).items()
    }

    def ask(page: frozenset[str] | None) -> tuple[str, ...]:
        seen = cache if page is None else _Page(cache, page)
        batches = load.plan(cache.store, limits, seen, restarts, holds)
        return tuple(sorted(file.path for batch in batches for file in batch.files))

    looked = look(list(pages(sizes, start, page_bytes)), ask, bool, monotonic)
    return PendingLoads((*flights, *looked.answers[-1]), looked.start, looked.complete)


def poll_records(
    store: ObjectStore,
    topics: Iterable[str],
    plan: Callable[[frozenset[str] | None], ExtractionPlan],
    monotonic: Callable[[], float],
    *,
    start: str = "",
    page_bytes: int = PAGE_BYTES,
) -> Poll[ExtractionPlan]:
    """What an extraction would do. ``topics`` are those of the broker; ``plan`` is asked for some of them."""
    held: Counter[str] = Counter()
    for entry in store.list(COMMITS):
        held[_topic(entry.path)] += entry.size
    sizes = {topic: held[topic] for topic in topics}
    return look(list(pages(sizes, start, page_bytes)), plan, has_work, monotonic)


def has_work(plan: ExtractionPlan) -> bool:
    """Whether an extraction would do anything."""
    return bool(plan.units or plan.creations or plan.additions or plan.gaps)


def _flights(cache: StateCache) -> Iterator[str]:
    """Job ids that tables wait for. A table that is parked waits for an operator first."""
    listed = cache.listing(TABLES)
    paths = sorted(listed.keys() - {TABLE_REGISTRY})
    for found in cache.read(TableState, paths, listed):
        if isinstance(found, Versioned) and found.value.in_flight and not found.value.parked:
            yield f"flight {found.value.in_flight.job_id}"


def _topic(path: str) -> str:
    """The topic of `commits/<topic>@<shard>.json`."""
    return path.removeprefix(COMMITS).removesuffix(".json").partition("@")[0]


class _Page(StateCache):
    """Another cache's objects, without the commits and backlog chunks that are not on a page."""

    def __init__(self, cache: StateCache, page: frozenset[str]) -> None:
        super().__init__(cache.store)
        self._cache = cache
        self._page = page

    def listing(self, prefix: str) -> Mapping[str, ObjectEntry]:
        return self._cache.listing(prefix)

    def read(
        self, cls: type[T], paths: Iterable[str], listed: Mapping[str, ObjectEntry]
    ) -> list[Versioned[T] | KbqError]:
        paths = list(paths)
        wanted = [path for path in paths if cls not in (Commit, BacklogChunk) or path in self._page]
        found: dict[str, Any] = dict(zip(wanted, self._cache.read(cls, wanted, listed), strict=True))
        return [found.get(path) or NotFound(path) for path in paths]
