"""A pipeline's thread pool. With one thread, every call runs in the thread that submits it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")
#: For fewer reads than this, threads cost more than they save.
_PARALLEL_FROM = 32
#: The same is true if a read takes less time than this, as on a local disk.
_WAITING_SECONDS = 0.010


class SameThread(Executor):
    """Runs each call immediately, in the calling thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run the call. The future has its result or its exception; KeyboardInterrupt and SystemExit propagate."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def pool_of(threads: int, name: str) -> Executor:
    """A pool of ``threads`` threads whose names begin with ``name``. One thread means the calling thread."""
    return ThreadPoolExecutor(threads, name) if threads > 1 else SameThread()


def parallel(function: Callable[[R], T], items: Iterable[R]) -> list[T]:
    """Results of a function that reads the store, in the order of the items. Threads help if there are many items and
    a read is slow."""
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
