"""A store that does not answer: if it is silent for one object, that object waits; if for all, nothing waits for it.

A call that gets no answer takes half a minute or more, because the adapter retries it. A run that asks for thousands of
objects must not wait that long for each of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, TypeVar

from kbq_assets.core.errors import KbqError, TransientError, Unavailable
from kbq_assets.pipelines.protocol.mapped_store import MappedStore
from kbq_assets.pipelines.protocol.warehouse_store import WarehouseStore
from kbq_assets.ports.object_store import ObjectEntry, ObjectStore, StoredFile, StoredObject

T = TypeVar("T")
#: After this many calls in a row without an answer, the cause is the store and not their objects.
SILENT_CALLS: Final = 3
#: The same is true once it was silent for this many objects and seconds, even if it answered other calls in between.
#: Silence for fewer objects is about them, and holds up no other.
SILENT_OBJECTS: Final = 10
SILENT_SECONDS: Final = 300.0
#: Seconds until a single call asks the store again.
PAUSE_SECONDS: Final = 30.0


def guarded(store: ObjectStore, monotonic: Callable[[], float] = time.monotonic) -> ObjectStore:
    """The store, for one step of a run. Threads may share it.

    After SILENT_CALLS calls in a row without an answer, calls raise Unavailable at once, except one in PAUSE_SECONDS.
    The first answer ends this. After silence for SILENT_OBJECTS objects and SILENT_SECONDS, a single call without an
    answer is enough. So a store that answers some calls and not others delays a step by a few calls, however many it
    makes.
    """
    if isinstance(store, WarehouseStore):
        return WarehouseStore(guarded(store.shared, monotonic), store.warehouse)
    return store if isinstance(store, _GuardedStore) else _GuardedStore(store, monotonic)


@contextmanager
def everything_waits_for(registry: str) -> Iterator[None]:
    """Say so in the error of a registry that the store does not give now. Raises Unavailable."""
    try:
        yield
    except TransientError as error:
        why = f"without {registry}, a lost object would look like a new one, so everything waits for it"
        raise Unavailable(f"{error.message}; {why}", next_step=error.next_step) from error


class _GuardedStore(MappedStore):
    """An ObjectStore that stops asking ``shared`` while it is silent. Streams and the time are not guarded."""

    def __init__(self, shared: ObjectStore, monotonic: Callable[[], float]) -> None:
        super().__init__(shared)
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._silence = _Silence()

    def _path(self, path: str) -> str:
        return path

    def _own(self, path: str) -> str | None:
        return path

    def get(self, path: str) -> StoredObject:
        return self._ask(path, lambda: self.shared.get(path))

    def create(self, path: str, data: bytes) -> int:
        return self._ask(path, lambda: self.shared.create(path, data))

    def create_empty(self, paths: Iterable[str]) -> Mapping[str, Exception]:
        return self._ask_for_each(self.shared.create_empty, list(paths))

    def swap(self, path: str, data: bytes, generation: int) -> int:
        return self._ask(path, lambda: self.shared.swap(path, data, generation))

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectEntry]:
        return self._ask_for_all(prefix, lambda: self.shared.list(prefix, start_after))

    def paths(self, prefix: str, start_after: str = "") -> Iterator[str]:
        return self._ask_for_all(prefix, lambda: self.shared.paths(prefix, start_after))

    def checksums(self, prefix: str) -> Iterator[StoredFile]:
        return self._ask_for_all(prefix, lambda: self.shared.checksums(prefix))

    def delete(self, path: str) -> None:
        self._ask(path, lambda: self.shared.delete(path))

    def delete_many(self, paths: Iterable[str]) -> Mapping[str, Exception]:
        return self._ask_for_each(self.shared.delete_many, list(paths))

    def copy(self, source: str, target: str) -> None:
        self._ask(source, lambda: self.shared.copy(source, target))

    def _ask(self, path: str, call: Callable[[], T]) -> T:
        started = self._check()
        try:
            found = call()
        except KbqError as error:
            self._note(path, error, started)
            raise
        self._note(path, None, started)
        return found

    def _ask_for_each(
        self, call: Callable[[Iterable[str]], Mapping[str, Exception]], paths: Collection[str]
    ) -> Mapping[str, Exception]:
        try:
            started = self._check()
        except Unavailable as error:
            return dict.fromkeys(paths, error)
        failed = call(paths)
        silent = {path: error for path, error in failed.items() if isinstance(error, TransientError)}
        path = next(iter(paths), "")
        if paths:
            self._note(path, silent[path] if len(silent) == len(paths) else None, started)
        return failed

    def _ask_for_all(self, prefix: str, begin: Callable[[], Iterator[T]]) -> Iterator[T]:
        """The entries of a listing, which asks for them page by page, and may ask for the first at its beginning."""
        entries: Iterator[T] | None = None

        def following() -> tuple[T, ...]:
            nonlocal entries
            entries = begin() if entries is None else entries
            return tuple(islice(entries, 1))

        while found := self._ask(prefix, following):
            yield from found

    def _check(self) -> float:
        """The time at which a call may start: now. Raises Unavailable if the store is silent, unless this call is the
        one that asks it again."""
        with self._lock:
            now, silence = self._monotonic(), self._silence
            if not silence.is_the_stores:
                return now
            if now - silence.last >= PAUSE_SECONDS:
                silence.last = now
                return now
            reason = silence.reason
        raise Unavailable(
            f"the store does not answer: {reason}",
            next_step="the next run tries again; kbq doctor tests the store",
        )

    def _note(self, path: str, error: Exception | None, started: float) -> None:
        """Note whether a call for a path was answered. Every result but a TransientError is an answer."""
        with self._lock:
            if isinstance(error, TransientError):
                self._silence.add(path, error.message, started, self._monotonic())
            else:
                self._silence.calls = 0


@dataclass
class _Silence:
    """The calls of a step that got no answer."""

    #: those since the last answer
    calls: int = 0
    #: seconds in which at least one call waited in vain
    seconds: float = 0.0
    objects: set[str] = field(default_factory=set)
    last: float = 0.0
    reason: str = ""

    @property
    def is_the_stores(self) -> bool:
        """Whether the store is silent, and not only for some objects."""
        is_long = self.seconds >= SILENT_SECONDS and len(self.objects) >= SILENT_OBJECTS
        return self.calls >= (1 if is_long else SILENT_CALLS)

    def add(self, path: str, reason: str, started: float, ended: float) -> None:
        self.calls += 1
        self.seconds += max(0.0, ended - max(started, self.last))
        if len(self.objects) < SILENT_OBJECTS:
            self.objects.add(path)
        self.last, self.reason = ended, reason
