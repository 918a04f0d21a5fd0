"""Processes of a test's own, forked from one that has imported what they need and has no threads.

To import it again costs each process one to two CPU seconds.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.context import ForkServerContext


def forked_from(module: str) -> ForkServerContext:
    """A context whose processes have imported a test's module, unless an earlier test has chosen another one."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([module])
    return context


def forked_pool(processes: int, module: str) -> ProcessPoolExecutor:
    """A pool of such processes."""
    return ProcessPoolExecutor(processes, forked_from(module))
