"""PySpark's daemon, which forks the Python workers, with the tasks' code preloaded."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable

from kbq_assets.adapters.forking import load_for_workers


def serve(load: Callable[[], None]) -> None:
    """Load once (`load_for_workers`), then fork workers as PySpark does."""
    # Spark reads the port from standard output, so nothing else may print there.
    with contextlib.redirect_stdout(sys.stderr):
        load_for_workers(load)

    from pyspark.daemon import manager

    manager()
