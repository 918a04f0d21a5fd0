"""The stored form of a commit: a small head that is swapped, and immutable manifests (PROTOCOL, Manifests).

    whole(parts)            the complete commit: the contents of the manifests, then the head's own
    packed(parts, commit)   the reverse: entries of unchanged manifests, contents of changed ones, and a tail
    sealed(draft)           the draft with the contents of a tail that is too long moved to new manifests
    merge_run(pieces)       the pieces to merge into one manifest, if there are too many

All functions are pure. `kbq_assets/pipelines/protocol/manifests.py` reads and writes the objects.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from kbq_assets.core.backup.backup_names import BACKUP, BackupFileName
from kbq_assets.core.protocol.codec import Stored, encode
from kbq_assets.core.protocol.commits import (
    MOST_GAPS,
    AcceptedGap,
    Commit,
    PartitionCommit,
    StagedFile,
    Window,
)
from kbq_assets.core.protocol.manifest_entries import ManifestEntry

T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    """Sizes in bytes, and counts, that keep a swap below 256 KB. The counts of 64 partitions and 50 tables alone take
    up to 180 KB."""

    #: windows in the head
    tail: int = 24 * 1024
    #: accepted gaps and given-up paths in the head
    records: int = 8 * 1024
    #: a newly written manifest, unless that would make more than ten at once
    manifest: int = 256 * 1024
    #: most manifests of windows, and of gaps and paths
    windows_manifests: int = 180
    records_manifests: int = 20
    #: manifests that are merged into one
    merged: int = 10


LIMITS: Final = Limits()
_MOST_AT_ONCE: Final = 10


@dataclass(frozen=True)
class Manifest(Stored):
    """`manifests/<topic>[@<n>]/<generation>-<random>.json`: windows, or accepted gaps and given-up paths."""

    windows: Mapping[int, tuple[Window, ...]] = field(default_factory=dict)
    accepted_gaps: Mapping[int, tuple[AcceptedGap, ...]] = field(default_factory=dict)
    given_up: tuple[str, ...] = ()

    @property
    def files(self) -> Iterable[StagedFile]:
        return (file for windows in self.windows.values() for window in windows for file in window.files)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left of it."""
        return not (self.windows or self.accepted_gaps or self.given_up)


class CommitParts(NamedTuple):
    """A head, and the manifests read so far, by name."""

    head: Commit
    manifests: Mapping[str, Manifest]


Piece: TypeAlias = ManifestEntry | Manifest


class HeadDraft(NamedTuple):
    """A head to write: its own contents, and its manifests in order. A manifest that is already written is an entry."""

    tail: Commit
    pieces: tuple[Piece, ...]


def whole(parts: CommitParts) -> Commit:
    """The commit including the contents of all manifests that were read."""
    if not parts.head.manifests:
        return parts.head
    head, manifests = (
        parts.head,
        [parts.manifests[e.name] for e in parts.head.manifests if e.name in parts.manifests],
    )
    partitions = dict(head.partitions)
    for number in sorted({n for m in manifests for n in (*m.windows, *m.accepted_gaps)} & partitions.keys()):
        state = partitions[number]
        partitions[number] = dataclasses.replace(
            state,
            windows=(*_of(number, (m.windows for m in manifests)), *state.windows),
            accepted_gaps=(*_of(number, (m.accepted_gaps for m in manifests)), *state.accepted_gaps),
        )
    given_up = (*(path for m in manifests for path in m.given_up), *head.given_up)
    return dataclasses.replace(head, partitions=partitions, given_up=given_up, manifests=())


def _of(number: int, held: Iterable[Mapping[int, tuple[T, ...]]]) -> Iterable[T]:
    return (item for each in held for item in each.get(number, ()))


def packed(
    parts: CommitParts, commit: Commit, *, rewrite: bool = True, done: Collection[str] = frozenset()
) -> HeadDraft:
    """The head of a changed `whole` commit. Manifests that were not read or did not change keep their entries. Without
    ``rewrite``, a manifest keeps all of its windows as long as the commit has one of them. Entries in ``done`` are
    marked.
    """
    if not parts.head.manifests:
        return HeadDraft(commit, ())
    pieces: list[Piece] = []
    held = _Contents(commit)
    for entry in parts.head.manifests:
        manifest = parts.manifests.get(entry.name)
        left = None if manifest is None else held.left_of(manifest)
        if left is None or left == manifest or (left.windows and not rewrite):
            pieces.append(dataclasses.replace(entry, done=True) if entry.name in done else entry)
        elif not left.is_empty:
            pieces.append(left)
        if manifest is not None:
            held.take(manifest)
    return HeadDraft(held.rest(), tuple(pieces))


class _Contents:
    """The windows, gaps and given-up paths of a commit that no manifest has taken yet."""

    def __init__(self, commit: Commit) -> None:
        self._commit = commit
        self._windows = {_key(n, w): w for n, state in commit.partitions.items() for w in state.windows}
        self._gaps = {(n, gap): gap for n, state in commit.partitions.items() for gap in state.accepted_gaps}
        self._given_up = dict.fromkeys(commit.given_up)

    def left_of(self, manifest: Manifest) -> Manifest:
        """The part of a manifest that the commit still has, in the commit's version."""
        windows = {n: tuple(self._windows.get(_key(n, w)) for w in ws) for n, ws in manifest.windows.items()}
        gaps = {n: tuple(self._gaps.get((n, g)) for g in gs) for n, gs in manifest.accepted_gaps.items()}
        given_up = tuple(path for path in manifest.given_up if path in self._given_up)
        return dataclasses.replace(
            manifest, windows=_present(windows), accepted_gaps=_present(gaps), given_up=given_up
        )

    def take(self, manifest: Manifest) -> None:
        """Remove a manifest's contents, so that they do not stay in the head."""
        for number, windows in manifest.windows.items():
            for window in windows:
                self._windows.pop(_key(number, window), None)
        for number, gaps in manifest.accepted_gaps.items():
            for gap in gaps:
                self._gaps.pop((number, gap), None)
        for path in manifest.given_up:
            self._given_up.pop(path, None)

    def rest(self) -> Commit:
        partitions = {
            n: _changed(
                state,
                windows=tuple(w for w in state.windows if _key(n, w) in self._windows),
                accepted_gaps=tuple(g for g in state.accepted_gaps if (n, g) in self._gaps),
            )
            for n, state in self._commit.partitions.items()
        }
        return dataclasses.replace(
            self._commit, partitions=partitions, given_up=tuple(self._given_up), manifests=()
        )


def _key(number: int, window: Window) -> tuple[int, int, int]:
    """The identity of a window in a commit. In a backup, windows of different epochs may begin at the same position
    (B5)."""
    path = window.files[0].path if window.files else ""
    return number, window.first, BackupFileName.parse(path).epoch if path.startswith(BACKUP) else 0


def _present(items: Mapping[int, tuple[T | None, ...]]) -> dict[int, tuple[T, ...]]:
    found = {number: tuple(item for item in each if item is not None) for number, each in items.items()}
    return {number: each for number, each in found.items() if each}


def sealed(draft: HeadDraft, limits: Limits) -> HeadDraft:
    """The draft with a bounded tail: if it has too many windows, or gaps and paths, they move to new manifests."""
    tail, pieces = draft
    windows = [(n, w) for n, state in tail.partitions.items() for w in state.windows]
    if (size := _size(w for _, w in windows)) > limits.tail:
        # Interleave partitions, so that a manifest's windows are loaded at about the same time.
        ranks = {n: len(state.windows) for n, state in tail.partitions.items()}
        seen: dict[int, int] = {}
        ordered = []
        for number, window in windows:
            seen[number] = seen.get(number, 0) + 1
            ordered.append((seen[number] / ranks[number], number, window))
        ordered.sort(key=lambda item: item[:2])
        cut = [_windows_of(part) for part in _cut(ordered, size, limits)]
        tail = _without(tail, windows=())
        pieces = (*pieces, *cut)
    gaps = {n: s.accepted_gaps for n, s in tail.partitions.items() if s.accepted_gaps}
    if (size := _size((gaps, tail.given_up))) > limits.records:
        paths = [Manifest(given_up=tuple(part)) for part in _cut(tail.given_up, size, limits)]
        pieces = (*pieces, *([Manifest(accepted_gaps=gaps)] if gaps else ()), *paths)
        tail = dataclasses.replace(_without(tail, accepted_gaps=()), given_up=())
    return HeadDraft(tail, pieces)


def _size(values: Iterable[Any]) -> int:
    return len(json.dumps(encode(tuple(values)), separators=(",", ":")))


def _cut(items: Sequence[T], size: int, limits: Limits) -> list[Sequence[T]]:
    number = min(_MOST_AT_ONCE, -(-size // limits.manifest), len(items))
    bounds = [len(items) * n // number for n in range(number + 1)] if number else []
    return [items[a:b] for a, b in itertools.pairwise(bounds)]


def _windows_of(part: Sequence[tuple[float, int, Window]]) -> Manifest:
    windows: dict[int, list[Window]] = {}
    for _, number, window in part:
        windows.setdefault(number, []).append(window)
    return Manifest({number: tuple(each) for number, each in sorted(windows.items())})


def _without(commit: Commit, **fields: Any) -> Commit:
    partitions = {n: _changed(state, **fields) for n, state in commit.partitions.items()}
    return dataclasses.replace(commit, partitions=partitions)


def _changed(state: PartitionCommit, **fields: Any) -> PartitionCommit:
    """The state with these of its windows and gaps: itself if these are all, as for most partitions of a swap."""
    is_same = all(len(getattr(state, name)) == len(items) for name, items in fields.items())
    return state if is_same else dataclasses.replace(state, **fields)


def merge_run(pieces: Sequence[ManifestEntry], limits: Limits) -> list[ManifestEntry]:
    """The adjacent entries to merge if there are too many; empty if not.

    The run with the fewest bytes, but if possible none in which one entry has half of them: its bytes would be
    rewritten again and again for a few small ones. So a byte is rewritten as often as the backlog's size has digits.
    """
    for has_windows, most in ((True, limits.windows_manifests), (False, limits.records_manifests)):
        kind = [entry for entry in pieces if bool(entry.windows) == has_windows]
        if len(kind) > most:
            runs = [kind[first : first + limits.merged] for first in range(len(kind) - limits.merged + 1)]
            return min(runs, key=_cost)
    return []


def _cost(run: Sequence[ManifestEntry]) -> tuple[bool, int]:
    sizes = [entry.bytes for entry in run]
    return 2 * max(sizes) >= sum(sizes), sum(sizes)


def combined(manifests: Iterable[Manifest]) -> Manifest:
    """One manifest with the contents of several, in order. Of the accepted gaps it keeps the latest per partition."""
    manifests = list(manifests)
    windows: dict[int, tuple[Window, ...]] = {}
    gaps: dict[int, tuple[AcceptedGap, ...]] = {}
    for number in sorted({n for m in manifests for n in (*m.windows, *m.accepted_gaps)}):
        if found := tuple(_of(number, (m.windows for m in manifests))):
            windows[number] = found
        if kept := tuple(_of(number, (m.accepted_gaps for m in manifests)))[-MOST_GAPS:]:
            gaps[number] = kept
    return Manifest(windows, gaps, tuple(path for m in manifests for path in m.given_up))
