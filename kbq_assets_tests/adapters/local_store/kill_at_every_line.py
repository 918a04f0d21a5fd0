"""Runs each write of a `LocalObjectStore` in processes killed before its first, second, … last line of code.

A program, not a test: it forks, which a process with threads (pytest's) must not. Prints how many died.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from kbq_assets.adapters import local_store
from kbq_assets.adapters.local_store import LocalObjectStore
from kbq_assets.core.errors import NotFound

OLD, NEW = b"old" * 1000, b"new" * 1000
_PACKAGE = str(Path(local_store.__file__).parent)


def create(store: LocalObjectStore) -> None:
    store.create("x/new", NEW)


def swap(store: LocalObjectStore) -> None:
    store.swap("a/old", NEW, store.get("a/old").generation)


def stream(store: LocalObjectStore) -> None:
    writer = store.open_write("x/new")
    writer.write(NEW[:1500])
    writer.write(NEW[1500:])
    writer.close()


def give_up(store: LocalObjectStore) -> None:
    writer = store.open_write("x/new")
    writer.write(NEW)
    writer.abort()


def copy(store: LocalObjectStore) -> None:
    store.copy("a/old", "x/copy")


def delete(store: LocalObjectStore) -> None:
    store.delete("a/old")


#: Each write's object: its path, its contents before and after, None where it is absent.
WRITES: dict[Callable[[LocalObjectStore], None], tuple[str, bytes | None, bytes | None]] = {
    create: ("x/new", None, NEW),
    swap: ("a/old", OLD, NEW),
    stream: ("x/new", None, NEW),
    give_up: ("x/new", None, None),
    copy: ("x/copy", None, OLD),
    delete: ("a/old", OLD, None),
}


def main(root: Path) -> None:
    for write in WRITES:
        line = 1
        while dies(root / f"{write.__name__}-{line}", write, line):
            line += 1
        print(write.__name__, line)


def dies(root: Path, write: Callable[[LocalObjectStore], None], line: int) -> bool:
    """Make a store, run the write in a process killed before this line, look at the store."""
    store = LocalObjectStore(root, lock_seconds=60, durable=False)
    store.create("a/old", OLD)
    child = os.fork()
    if not child:
        writer = LocalObjectStore(root)
        sys.settrace(partial(_kill_at, [line]))
        write(writer)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    _check(store, write, finished=status == 0)
    return os.WIFSIGNALED(status)


def _check(store: LocalObjectStore, write: Callable[[LocalObjectStore], None], *, finished: bool) -> None:
    path, before, after = WRITES[write]
    seen = _content(store, path)
    assert seen == after or (seen == before and not finished), f"{path}: {seen!r}"
    listed = {entry.path: entry.size for entry in store.list("")}
    assert listed.get(path) == (None if seen is None else len(seen))
    assert set(listed) <= {"a/old", path}
    # Only one file is left to sweep, and nothing blocks it.
    assert store.sweep_temporary() <= (0 if finished else 1)
    assert not os.listdir(store_folder(store))
    if seen is None:
        store.create(path, b"again")
    else:
        store.swap(path, b"again", store.get(path).generation)
    store.delete(path)


def store_folder(store: LocalObjectStore) -> Path:
    """Where files are while they are written."""
    return Path(store.uri("a").removeprefix("file://")).parent / ".tmp"


def _content(store: LocalObjectStore, path: str) -> bytes | None:
    try:
        return store.get(path).data
    except NotFound:
        return None


def _kill_at(left: list[int], frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
    if not frame.f_code.co_filename.startswith(_PACKAGE):
        return None
    if event == "line":
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
    return partial(_kill_at, left)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
