"""Manifests in the store. A manifest is written before the swap that names it and never changes (PROTOCOL M1 to M4)."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from kbq_assets.core.errors import CorruptState, KbqError, NotFound, UnsupportedFormat
from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol import manifests as core
from kbq_assets.core.protocol.commits import Commit
from kbq_assets.core.protocol.manifest_entries import ManifestEntry
from kbq_assets.core.protocol.manifests import CommitParts, HeadDraft, Limits, Manifest, Piece
from kbq_assets.core.protocol.names import ManifestName, manifest_prefix
from kbq_assets.pipelines.threads import parallel
from kbq_assets.ports.object_store import ObjectStore

LOGGER: Final = logging.getLogger("kbq.staging")
#: Size limits of heads and manifests. Tests make them tiny.
LIMITS: Limits = core.LIMITS
#: Bytes of manifests that a process keeps in parsed form.
_KEPT_BYTES: Final = 64 * 1024 * 1024
_RESTORE: Final = (
    "restore the object, and no other, from the bucket's soft-deleted objects or a backup: "
    "docs/operations.md#a-state-object-is-lost-or-damaged"
)


class LostManifest(CorruptState):
    """A manifest is missing or is not the one that the head names. ``manifest`` is its name."""

    def __init__(self, message: str, *, next_step: str = _RESTORE, manifest: str = "") -> None:
        super().__init__(message, next_step=next_step)
        self.manifest = manifest

    def names(self, head: Commit) -> bool:
        return any(entry.name == self.manifest for entry in head.manifests)


def _lost(path: str, why: str, entry: ManifestEntry) -> LostManifest:
    return LostManifest(f"{path} {why}", manifest=entry.name)


class ManifestCache:
    """An LRU cache of parsed manifests by path and checksum, limited in bytes. Threads may share it."""

    def __init__(self, kept_bytes: int = _KEPT_BYTES) -> None:
        self._room = kept_bytes
        self._kept: dict[tuple[str, str], tuple[int, Manifest]] = {}
        self._lock = threading.Lock()

    def find(self, path: str, entry: ManifestEntry) -> Manifest | None:
        with self._lock:
            found = self._kept.pop((path, entry.checksum), None)
            if found is None:
                return None
            self._kept[path, entry.checksum] = found
            return found[1]

    def keep(self, path: str, entry: ManifestEntry, manifest: Manifest) -> None:
        """Keep a manifest. The least recently used ones leave if there is no room."""
        with self._lock:
            self._room += self._kept.pop((path, entry.checksum), (0, None))[0]
            self._kept[path, entry.checksum] = entry.bytes, manifest
            self._room -= entry.bytes
            while self._room < 0:
                self._room += self._kept.pop(next(iter(self._kept)))[0]


def path_of(commit: Commit, entry: ManifestEntry) -> str:
    return f"{manifest_prefix(commit.topic, commit.shard)}{entry.name}.json"


def read_parts(
    store: ObjectStore, head: Commit, entries: Iterable[ManifestEntry], kept: ManifestCache | None = None
) -> CommitParts:
    """A head with some of its manifests. Raises LostManifest: read the head again."""
    entries = list(entries)
    found = parallel(lambda entry: read_manifest(store, head, entry, kept), entries)
    return CommitParts(head, {entry.name: manifest for entry, manifest in zip(entries, found, strict=True)})


def read_manifest(
    store: ObjectStore, head: Commit, entry: ManifestEntry, kept: ManifestCache | None = None
) -> Manifest:
    """A manifest that a head names. Raises LostManifest: read the head again."""
    path = path_of(head, entry)
    if kept is not None and (found := kept.find(path, entry)) is not None:
        return found
    try:
        data = store.get(path).data
        manifest = codec.loads(Manifest, data, path, keep=False)
    except NotFound:
        raise _lost(path, "is missing, but the commit names it", entry) from None
    except (CorruptState, UnsupportedFormat) as error:
        raise _lost(path, error.message.removeprefix(path).strip(), entry) from error
    if codec.checksum_of(data) != entry.checksum:
        raise _lost(path, "cannot be read: it is not the manifest that the commit names", entry)
    if kept is not None:
        kept.keep(path, entry, manifest)
    return manifest


def missing(store: ObjectStore, head: Commit) -> Iterator[LostManifest]:
    """Errors for a head's manifests that a listing does not have, or has with another size."""
    if head.manifests:
        sizes = {entry.path: entry.size for entry in store.list(manifest_prefix(head.topic, head.shard))}
        for entry in head.manifests:
            if sizes.get(path := path_of(head, entry)) != entry.bytes:
                yield _lost(path, "is missing or truncated, but the commit names it", entry)


def write(store: ObjectStore, draft: HeadDraft, generation: int) -> tuple[Commit, dict[str, Manifest]]:
    """Write the manifests of a draft (M1) before the head of this generation is swapped (M2). Return the head and the
    new manifests by name. Raises PreconditionFailed, UnknownOutcome: read the head again."""
    tail, pieces = draft
    written: dict[str, Manifest] = {}

    def entry_of(piece: Piece) -> ManifestEntry:
        if isinstance(piece, ManifestEntry):
            return piece
        entry = _create(store, tail, piece, generation)
        written[entry.name] = piece
        return entry

    entries = [entry_of(piece) for piece in pieces]
    while run := core.merge_run(entries, LIMITS):
        merged = _merged(store, tail, run, written)
        if merged is None:
            break
        at = entries.index(run[0])
        names = {entry.name for entry in run}
        entries = [entry for entry in entries if entry.name not in names]
        entries.insert(at, replace(entry_of(merged), done=all(entry.done for entry in run)))
    return replace(tail, manifests=tuple(entries)), written


def _merged(
    store: ObjectStore, head: Commit, run: Sequence[ManifestEntry], written: dict[str, Manifest]
) -> Manifest | None:
    """One manifest with the contents of adjacent ones; None if one cannot be read. Merging can wait, and readers
    report the error."""
    try:
        found = [written.get(entry.name) or read_manifest(store, head, entry) for entry in run]
        return core.combined(found)
    except KbqError as error:
        LOGGER.warning("%s: manifests are not merged: %s", head.topic, error.message)
        return None


def _create(store: ObjectStore, head: Commit, manifest: Manifest, generation: int) -> ManifestEntry:
    data = codec.dumps(manifest)
    name = ManifestName(head.topic, head.shard, generation, new_random())
    store.create(name.format(), data)
    windows = sum(len(each) for each in manifest.windows.values())
    return ManifestEntry(name.base, codec.checksum_of(data), len(data), windows)


def new_random() -> str:
    """The random part of a manifest's name: unique to each attempt (M2)."""
    return secrets.token_hex(6)


def names_of(paths: Iterable[str]) -> Iterator[ManifestName]:
    """Names of the manifests among listed paths. Other paths are skipped."""
    for path in paths:
        with suppress(KbqError):
            yield ManifestName.parse(path)
