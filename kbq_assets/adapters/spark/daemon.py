"""PySpark's daemon with the tasks' code preloaded: it forks the Python workers."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable


def serve(load: Callable[[], None]) -> None:
    """Load once, then fork workers as PySpark does. ``load`` must leave no thread: threads do not survive a fork."""
    gc.disable()  # imports create objects that stay
    # Spark reads the port from standard output: print nothing else there.
    with contextlib.redirect_stdout(sys.stderr):
        load()
    gc.freeze()  # workers neither scan these objects nor copy their pages
    gc.enable()

    from pyspark.daemon import manager

    manager()
