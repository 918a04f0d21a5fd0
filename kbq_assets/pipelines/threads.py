"""Threads of a pipeline, or none: with one thread, every call runs where it is submitted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")
#: Below this many reads threads cost more than they save.
_PARALLEL_FROM = 32
#: So do they for reads that wait less than this: those of a local disk.
_WAITING_SECONDS = 0.010


class SameThread(Executor):
    """Runs each call immediately, in the calling thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run it. The future has its result or its exception; what is no Exception propagates at once."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def pool_of(threads: int, name: str) -> Executor:
    """A pool of ``threads`` threads, whose names begin with ``name``; no thread for one."""
    return ThreadPoolExecutor(threads, name) if threads > 1 else SameThread()


def parallel(function: Callable[[R], T], items: Iterable[R]) -> list[T]:
    """Apply a function that waits for the store to each item; results in order. In threads, if there are many and one
    had to wait."""
    items, found = list(items), list[T]()
    if len(items) < _PARALLEL_FROM:
        return [function(item) for item in items]
    for item in items:
        started, busy = time.monotonic(), time.thread_time()
        found.append(function(item))
        waited = time.monotonic() - started - (time.thread_time() - busy)
        if waited > _WAITING_SECONDS:
            break
    with ThreadPoolExecutor(16) as pool:
        return [*found, *pool.map(function, items[len(found) :])]
