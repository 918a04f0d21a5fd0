"""Resumes an erasure by processes that are killed, each at a later change, until one ends: ``FOLDER NUMBER POINT``.
Prints how many were killed. It needs no broker."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kbq_assets.adapters.duckdb.erasure import DuckDbErasureTables
from kbq_assets.adapters.iceberg import erasure as lake
from kbq_assets.adapters.iceberg import rewrites
from kbq_assets_tests.cli.test_erase_everywhere import Everywhere


def kill_at(point: int) -> None:
    """Let the process die before or after its nth change of a file or a warehouse."""
    left = point

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def calling(*args: Any, **kwargs: Any) -> Any:
            step()
            found = call(*args, **kwargs)
            step()
            return found

        return calling

    def step() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    for owner, names in (
        (os, ("replace", "link", "unlink", "rename")),
        (DuckDbErasureTables, ("erase",)),
        (rewrites, ("rewrite",)),
        (lake, ("commit_once",)),
    ):
        for name in names:
            setattr(owner, name, counted(getattr(owner, name)))


def resume(folder: str, number: int, point: int) -> None:
    """What a child does."""
    erasures = Everywhere(Path(folder)).world.reopened().erasures
    kill_at(point)
    erasures.resume(number)


def main(folder: str, number: int, point: int) -> None:
    """Fork children, which have everything imported and no thread, until one ends."""
    for kills in itertools.count():
        child = os.fork()
        if not child:
            resume(folder, number, point + kills)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
            assert not status, status
            print(kills)
            return


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
