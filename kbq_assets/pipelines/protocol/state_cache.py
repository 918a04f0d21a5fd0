"""Parsed state objects, cached by generation. One listing shows which objects must be read again.

A generation is never reused (ports/object_store.py). So the value parsed at a listed generation is the object's value
at the time of the listing. An object that changes after the listing may be read in its new state, but never in a state
older than the listing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar, cast

from kbq_assets.core.errors import KbqError, TransientError
from kbq_assets.core.loading.table_registry import TableRegistry
from kbq_assets.core.protocol.topic_registry import TopicRegistry
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.manifests import ManifestCache
from kbq_assets.pipelines.protocol.outages import guarded
from kbq_assets.pipelines.protocol.state import Versioned
from kbq_assets.pipelines.threads import parallel
from kbq_assets.ports.object_store import ObjectEntry, ObjectStore

T = TypeVar("T")
#: Bytes of objects kept in parsed form: about 200,000 pending files. Parsed, they take six times as much memory.
_KEPT_BYTES: Final = 64 * 1024 * 1024
#: A read that took this long and failed is not repeated in a run.
_LONG_SECONDS: Final = 5.0


class StateCache:
    """Parsed state objects of one store. The values are frozen, and threads may share the cache."""

    def __init__(self, store: ObjectStore, kept_bytes: int = _KEPT_BYTES) -> None:
        self.store = store
        self._room = kept_bytes
        self._kept: dict[str, tuple[int, Versioned[Any]]] = {}
        self._lock = threading.Lock()
        self._manifests = ManifestCache(kept_bytes)
        self._derived: dict[str, tuple[object, Any]] = {}

    def listing(self, prefix: str) -> Mapping[str, ObjectEntry]:
        """List the objects below a prefix. Objects that no longer exist leave the cache."""
        listed = {entry.path: entry for entry in self.store.list(prefix)}
        with self._lock:
            gone = [path for path in self._kept if path.startswith(prefix) and path not in listed]
            for path in gone:
                self._forget(path)
        return listed

    def derived(self, name: str, basis: object, compute: Callable[[], T]) -> T:
        """A result that depends only on ``basis``. It is computed again if ``basis`` differs from the last call's."""
        known = self._derived.get(name)
        if known is None or known[0] != basis:
            known = self._derived[name] = basis, compute()
        return cast("T", known[1])

    def read(
        self, cls: type[T], paths: Iterable[str], listed: Mapping[str, ObjectEntry]
    ) -> list[Versioned[T] | KbqError]:
        """The object of each path, or its error. ``listed`` is an earlier `listing`. A store that answers for none of
        the objects is asked for a few of them."""
        paths, store = list(paths), guarded(self.store)
        found = {path: self._find(path, listed) for path in paths}
        missing = [path for path, value in found.items() if value is None]
        found.update(zip(missing, parallel(lambda p: self._attempt(store, cls, p), missing), strict=True))
        with self._lock:
            for path in missing:
                self._keep(path, found[path], listed)
        return [cast("Versioned[T] | KbqError", found[path]) for path in paths]

    def _find(self, path: str, listed: Mapping[str, ObjectEntry]) -> Versioned[Any] | KbqError | None:
        entry, kept = listed.get(path), self._kept.get(path)
        return kept[1] if entry and kept and kept[1].generation == entry.generation else None

    def _keep(
        self, path: str, value: Versioned[Any] | KbqError | None, listed: Mapping[str, ObjectEntry]
    ) -> None:
        """Keep a value if there is room."""
        self._forget(path)
        if not isinstance(value, Versioned) or path not in listed:
            return
        manifests = value.parts.head.manifests if value.parts else ()
        size = listed[path].size + sum(entry.bytes for entry in manifests)
        if size <= self._room:
            self._kept[path] = size, value
            self._room -= size

    def _forget(self, path: str) -> None:
        size, _ = self._kept.pop(path, (0, None))
        self._room += size

    def _attempt(self, store: ObjectStore, cls: type[T], path: str) -> Versioned[T] | KbqError:
        try:
            return state.read(store, cls, path, self._manifests)
        except KbqError as error:
            return error


class RunCache(StateCache):
    """The ``shared`` cache in one run. If the store is long silent for an object, the run does not ask for it again:
    each such call takes half a minute or more, and a load reads a view per batch. It asks again for registries, for
    which everything waits."""

    def __init__(self, shared: StateCache, monotonic: Callable[[], float]) -> None:
        super().__init__(shared.store)
        self._shared = shared
        self._monotonic = monotonic
        self._silent: dict[str, KbqError] = {}

    def listing(self, prefix: str) -> Mapping[str, ObjectEntry]:
        return self._shared.listing(prefix)

    def derived(self, name: str, basis: object, compute: Callable[[], T]) -> T:
        return self._shared.derived(name, basis, compute)

    def read(
        self, cls: type[T], paths: Iterable[str], listed: Mapping[str, ObjectEntry]
    ) -> list[Versioned[T] | KbqError]:
        if cls in (TableRegistry, TopicRegistry):
            return self._shared.read(cls, paths, listed)
        paths = list(paths)
        wanted = [path for path in paths if path not in self._silent]
        started = self._monotonic()
        found = dict(zip(wanted, self._shared.read(cls, wanted, listed), strict=True))
        if self._monotonic() - started >= _LONG_SECONDS:
            self._silent |= {path: e for path, e in found.items() if isinstance(e, TransientError)}
        return [found[path] if path in found else self._silent[path] for path in paths]
