"""What a process does before it forks workers."""

from __future__ import annotations

import gc
from collections.abc import Callable


def load_for_workers(load: Callable[[], None]) -> None:
    """Load their code once. ``load`` must leave no thread: threads do not survive a fork."""
    gc.disable()  # imports create objects that stay
    load()
    gc.freeze()  # workers neither scan these objects nor copy their pages
    gc.enable()
