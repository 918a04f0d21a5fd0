"""Finds the work of the next load within a sensor's tick (see `pending`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from kbq_assets.core.errors import KbqError, NotFound
from kbq_assets.core.extraction.pruning import BacklogChunk
from kbq_assets.core.extraction.restarts import MayRestart
from kbq_assets.core.loading.batches import LoadLimits
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.protocol.commits import Commit
from kbq_assets.core.protocol.names import AUDIT, BACKLOG, COMMITS, MANIFESTS, TABLE_REGISTRY, TABLES
from kbq_assets.pipelines.loading import load
from kbq_assets.pipelines.loading.load_blocks import TopicOptions, default_options
from kbq_assets.pipelines.loading.view import FindBlocks
from kbq_assets.pipelines.observation.pending import PAGE_BYTES, pages, poll_pages
from kbq_assets.pipelines.protocol.state import Versioned
from kbq_assets.pipelines.protocol.state_cache import StateCache
from kbq_assets.ports.object_store import ObjectEntry

T = TypeVar("T")


@dataclass(frozen=True)
class PendingLoads:
    """``names`` of files to load, and of load jobs that a dead run left in flight. For the other fields, see `Poll`."""

    names: tuple[str, ...]
    start: str
    complete: bool


def poll_loads(
    cache: StateCache,
    limits: LoadLimits,
    monotonic: Callable[[], float],
    *,
    start: str = "",
    page_bytes: int = PAGE_BYTES,
    restarts: MayRestart = lambda topics: True,
    blocks: FindBlocks | None = None,
    topics: TopicOptions = default_options,
) -> PendingLoads:
    """The work of the next load. ``start`` is the beginning of the first page. For other arguments, see `load.plan`."""
    in_flight = tuple(_jobs_in_flight(cache))
    sizes = Counter(
        {path: entry.size for prefix in (COMMITS, BACKLOG) for path, entry in cache.listing(prefix).items()}
    )
    for entry in cache.store.list(MANIFESTS):
        sizes[COMMITS + entry.path.removeprefix(MANIFESTS).partition("/")[0] + ".json"] += entry.size

    def ask(page: frozenset[str] | None) -> tuple[str, ...]:
        seen = cache if page is None else _Page(cache, page)
        batches = load.plan(cache.store, limits, seen, restarts, blocks, topics).batches
        return tuple(sorted(file.path for batch in batches for file in batch.files))

    polled = poll_pages(list(pages(sizes, start, page_bytes)), ask, bool, monotonic)
    return PendingLoads((*in_flight, *polled.answers[-1]), polled.start, polled.complete)


def _jobs_in_flight(cache: StateCache) -> Iterator[str]:
    """Ids of jobs in flight. Parked tables are skipped: they first wait for an operator."""
    listed = cache.listing(TABLES)
    paths = sorted(path for path in listed.keys() - {TABLE_REGISTRY} if not path.startswith(AUDIT))
    for found in cache.read(TableState, paths, listed):
        if isinstance(found, Versioned) and found.value.in_flight and not found.value.parked:
            yield f"flight {found.value.in_flight.job_id}"


class _Page(StateCache):
    """A cache limited to the commits and backlog chunks of one page."""

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
