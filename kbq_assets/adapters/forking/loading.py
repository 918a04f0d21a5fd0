"""Loads the workers' code."""

from __future__ import annotations

import gc
from collections.abc import Callable


def load_for_workers(load: Callable[[], None]) -> None:
    """Load the workers' code once, before forking. ``load`` must leave no threads: they do not survive a fork."""
    gc.disable()  # imports create long-lived objects
    load()
    gc.freeze()  # workers neither scan these objects nor copy their pages
    gc.enable()
