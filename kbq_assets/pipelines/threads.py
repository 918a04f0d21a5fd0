"""Threads of a pipeline, or none: with one thread, every call runs where it is submitted."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any


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
