"""Finds reasons to start a run within a sensor's tick: Dagster ends a tick after a minute, however much is staged.

New done files are the quick reason for a load, because one listing finds them. Polls find everything else, page by
page. They use the run's own plan, so load blocks, quotas and parked tables count here too. The run itself is not
limited to the reason that was found: it plans again, with everything.
"""

from __future__ import annotations

import base64
import zlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from kbq_assets.core.extraction.planning import ExtractionPlan
from kbq_assets.core.protocol.names import BACKLOG, COMMITS, DONE, MANIFESTS, commit_topic
from kbq_assets.ports.object_store import ObjectStore

T = TypeVar("T")
#: Bytes of commits and backlogs in a page: about 50,000 files. One core parses them in 2 to 4 s.
PAGE_BYTES: Final = 32 * 1024 * 1024
#: No page starts later than this many seconds into a poll, because Dagster ends a tick after 60.
POLL_SECONDS: Final = 20.0
#: A listing of done files ends after this many seconds. The poll then finds the rest.
LIST_SECONDS: Final = 15.0
#: Size of the bitmap that stores a listing: 4 KB of a cursor. With 10,000 done files, every fourth new one shares its
#: bit with an old one and waits for the next poll.
_SEEN_BITS: Final = 32 * 1024


@dataclass(frozen=True)
class Poll(Generic[T]):
    """Answers for the polled pages. Only the last one may have work.

    The next poll begins at ``start``; "" means anywhere. ``complete``: whether all pages were polled.
    """

    answers: tuple[T, ...]
    start: str
    complete: bool


def is_quick(store: ObjectStore) -> bool:
    """Whether everything staged fits in one page."""
    return (
        sum(entry.size for prefix in (COMMITS, MANIFESTS, BACKLOG) for entry in store.list(prefix))
        <= PAGE_BYTES
    )


@dataclass(frozen=True)
class NewDoneFiles:
    """``names`` that the last listing did not have. ``seen`` stores this listing for the next call."""

    names: tuple[str, ...]
    seen: str


def find_done_files(store: ObjectStore, seen: str, monotonic: Callable[[], float]) -> NewDoneFiles:
    """Done files that are new since the listing in ``seen``, whichever process wrote them.

    Names are not in order of time, and old files are deleted, so ``seen`` is a bitmap of names and generations. If
    ``seen`` is lost or wrong, nothing is new, and a poll finds what is pending.
    """
    deadline = monotonic() + LIST_SECONDS
    listed = []
    for entry in store.list(DONE):
        if monotonic() > deadline:
            return NewDoneFiles((), seen)
        if entry.path.endswith(".done"):
            listed.append(f"{entry.path}#{entry.generation}")
    known = _parse_seen(seen)
    bits = 0
    for name in listed:
        bits |= 1 << _bit(name)
    new = () if known is None else tuple(sorted(name for name in listed if not known >> _bit(name) & 1))
    return NewDoneFiles(new, _format_seen(bits))


def _bit(name: str) -> int:
    return zlib.crc32(name.encode()) % _SEEN_BITS


def _format_seen(bits: int) -> str:
    return base64.b64encode(zlib.compress(bits.to_bytes(_SEEN_BITS // 8, "big"), 9)).decode()


def _parse_seen(text: str) -> int | None:
    try:
        packed = base64.b64decode(text, validate=True)
        found = zlib.decompressobj().decompress(packed, _SEEN_BITS // 8 + 1)
    except (ValueError, zlib.error):
        return None
    return int.from_bytes(found, "big") if len(found) == _SEEN_BITS // 8 else None


def pages(
    sizes: Mapping[str, int], start: str = "", page_bytes: int = PAGE_BYTES
) -> Iterator[tuple[str, ...]]:
    """Names in order, from ``start`` to the end and then from the beginning, in pages of at most ``page_bytes``.

    Any ``start`` is valid: it affects only the order.
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


def poll_pages(
    found: Sequence[tuple[str, ...]],
    ask: Callable[[frozenset[str] | None], T],
    has_work: Callable[[T], bool],
    monotonic: Callable[[], float],
) -> Poll[T]:
    """Poll pages until one has work or the time limit is reached. A single page is polled as None, for everything."""
    if len(found) <= 1:
        return Poll((ask(None),), "", True)
    deadline = monotonic() + POLL_SECONDS
    answers: list[T] = []
    for number, page in enumerate(found):
        if answers and monotonic() > deadline:
            return Poll(tuple(answers), page[0], False)
        answers.append(ask(frozenset(page)))
        if has_work(answers[-1]):
            return Poll(tuple(answers), page[0], number == len(found) - 1)
    return Poll(tuple(answers), "", True)


def poll_records(
    store: ObjectStore,
    topics: Iterable[str],
    plan: Callable[[frozenset[str] | None], ExtractionPlan],
    monotonic: Callable[[], float],
    *,
    start: str = "",
    page_bytes: int = PAGE_BYTES,
) -> Poll[ExtractionPlan]:
    """The work of the next extraction of the broker's ``topics``. Each page is planned by the extraction's ``plan``."""
    held: Counter[str] = Counter()
    for entry in store.list(COMMITS):
        held[commit_topic(entry.path)] += entry.size
    sizes = {topic: held[topic] for topic in topics}
    return poll_pages(list(pages(sizes, start, page_bytes)), plan, has_work, monotonic)


def has_work(plan: ExtractionPlan) -> bool:
    """Whether an extraction would do anything."""
    own = plan.units or plan.creations or plan.announced or plan.additions or plan.gaps
    return bool(own) or any(map(has_work, plan.backups.values()))
