"""PySpark's daemon, which forks Python workers, with what tasks need already in memory."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable


def serve(load: Callable[[], None]) -> None:
    """Load once, then fork workers as PySpark does. ``load`` must leave no thread behind: none survives a fork."""
    gc.disable()  # while imports make much that stays
    # Spark tells the port on standard output; nothing else may be said there.
    with contextlib.redirect_stdout(sys.stderr):
        load()
    gc.freeze()  # what is here now stays: workers neither look through it nor copy its pages
    gc.enable()

    from pyspark.daemon import manager

    manager()
