"""Allows one command at a time per folder, with an advisory lock that the kernel drops when its holder dies."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from kbq_assets.adapters.local_store.locks import try_lock
from kbq_assets.core.errors import Unavailable


@contextlib.contextmanager
def exclusive(path: Path, console: Console, wait_seconds: float) -> Iterator[None]:
    """Hold the lock of the file ``path``. After ``wait_seconds``, raises Unavailable with the holder's pid."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        _acquire(file.fileno(), path, console, wait_seconds)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _acquire(descriptor: int, path: Path, console: Console, wait_seconds: float) -> None:
    deadline = time.monotonic() + wait_seconds
    is_announced = False
    while not try_lock(descriptor):
        holder = path.read_text(encoding="utf-8") or "unknown"
        if time.monotonic() > deadline:
            raise Unavailable(
                f"{path} has been held by process {holder} for {wait_seconds:.0f} s",
                next_step=f"wait for that command, or stop it: kill {holder}",
            )
        if not is_announced:
            console.print(f"  waiting for another kbq command (process {holder})")
            is_announced = True
        time.sleep(0.1)
