"""Forks workers, and reaps them."""

from __future__ import annotations

import contextlib
import os
import sys


def is_child(what: str) -> bool:
    """Fork. If that fails, print the error. The caller then closes the connection of the one that needs the child, so
    only that one fails."""
    try:
        return os.fork() == 0
    except OSError as error:  # no memory, or too many processes
        print(f"{what} did not start: {error}", file=sys.stderr, flush=True)
        return False


def reap(options: int) -> None:
    """Reap the children that have ended (``os.WNOHANG``), or wait for all (0)."""
    with contextlib.suppress(ChildProcessError):  # no children are left
        while os.waitpid(-1, options)[0]:
            pass
