"""Points of a run: before and after each call of a port, each write of a staged file, each statement of DuckDB.

A point is a kind of call and a number, such as `store.swap commits, before` the second time. The same run passes
the same points again, so a first run lists them and the next ones die there.
"""

from __future__ import annotations

import math
import os
import threading
import traceback
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self

import duckdb

from kbq_assets.adapters.duckdb import database

#: Calls that change something: there is a point before and one after. Other calls have one before: dying after them is
#: dying before the next one.
_WRITES = (
    *("create", "swap", "delete", "create_empty", "delete_many", "copy", "open_write", "write", "close"),
    *("sweep_temporary", "insert_job", "burn_job", "create_table", "update_columns"),
)
#: Calls that are not points: they send no request.
_LOCAL = ("uri", "now_ms")
#: Statements that change nothing.
_QUIET = ("SET", "SELECT", "ATTACH", "USE")


def in_child(action: Callable[[], None]) -> int:
    """The exit code of a process that does it, or the negative number of the signal that killed it."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            action()
            code = 0
        except BaseException:
            traceback.print_exc()
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Point(NamedTuple):
    """The ``nth`` time, from 1, that a run passes ``kind``."""

    kind: str
    nth: int

    def __str__(self) -> str:
        return f"{self.kind} #{self.nth}"


class Probe:
    """Counts points, and sends this process ``signal`` at ``point``."""

    def __init__(self, point: Point | None = None, signal: int = 0) -> None:
        self._point = point
        self._signal = signal
        self.passed: Counter[str] = Counter()
        self._counting = threading.Lock()

    def __call__(self, kind: str) -> None:
        """Pass a point."""
        if self._point == (kind, self._count(kind)):
            os.kill(os.getpid(), self._signal)

    def _count(self, kind: str) -> int:
        """How often the kind was passed, this time included; threads may pass points too."""
        with self._counting:
            self.passed[kind] += 1
            return self.passed[kind]

    def around(self, kind: str, call: Callable[[], Any]) -> Any:
        """Make a call between two points. One that raises has no point after it."""
        self(f"{kind}, before")
        result = call()
        self(f"{kind}, after")
        return result


class ProbedPort:
    """A port whose calls are points."""

    def __init__(self, port: Any, name: str, probe: Probe) -> None:
        self._port = port
        self._name = name
        self._probe = probe

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(self._port, attribute)
        if not callable(value) or attribute in _LOCAL:
            return value
        return lambda *args, **options: self._call(attribute, value, args, options)

    def _call(
        self, method: str, function: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any]
    ) -> Any:
        kind = f"{self._name}.{method}{_target(args)}"
        if method in ("create_empty", "delete_many"):
            args = (self._each(f"{kind}, next", args[0]),)
        if method in _WRITES:
            result = self._probe.around(kind, lambda: function(*args, **options))
        else:
            self._probe(f"{kind}, before")
            result = function(*args, **options)
        if method == "open_write":
            return ProbedPort(result, f"writer{_target(args)}", self._probe)
        if method == "read":
            return self._each(f"{kind}, batch", result)
        return result

    def _each(self, kind: str, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self._probe(kind)
            yield item


def _target(args: tuple[Any, ...]) -> str:
    """What a call is about, by kind: the folder of a path, and the name of a registry."""
    if not args or not isinstance(args[0], str):
        return ""
    folder, slash, base = args[0].partition("/")
    if not slash:
        return ""
    return f" {folder}/{base}" if base.startswith("_") else f" {folder}"


class ProbedConnection:
    """A DuckDB connection whose statements are points, and its end."""

    def __init__(self, connection: Any, probe: Probe) -> None:
        self._connection = connection
        self._probe = probe

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._connection, attribute)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def execute(self, statement: Any, *args: Any) -> Any:
        """Execute a statement, a text or one that DuckDB has parsed, between two points, unless it only reads."""
        text = str(getattr(statement, "query", statement))
        verb = text.split(maxsplit=1)[0].upper()
        if verb in _QUIET:
            return self._connection.execute(statement, *args)
        job = " job" if "kbq_jobs" in text and verb != "CREATE" else ""
        return self._probe.around(f"duckdb {verb}{job}", lambda: self._connection.execute(statement, *args))

    def cursor(self) -> ProbedConnection:
        """Another connection of the same engine, probed too."""
        return ProbedConnection(self._connection.cursor(), self._probe)

    def close(self) -> None:
        self._connection.close()


def probe_duckdb(probe: Probe) -> None:
    """Make the statements of this process's DuckDB connections points.

    A slow run must pass the same points as a quick one, so sessions do not close their file when a second has passed.
    """
    connect = duckdb.connect

    def probed(*args: Any, **options: Any) -> Any:
        return ProbedConnection(connect(*args, **options), probe)

    setattr(duckdb, "connect", probed)  # noqa: B010 - the process ends after this run
    setattr(database, "_MOST_SECONDS_OPEN", math.inf)  # noqa: B010 - a constant, to the type checker


def every_nth(points: list[Point], step: int, subject: str) -> list[Point]:
    """At least one of some points: every ``step``-th, from a place that depends on what they are points of."""
    return points[zlib.crc32(subject.encode()) % min(step, len(points)) :: step]


def chosen(passed: Mapping[str, int]) -> list[Point]:
    """A point of each kind: the first before a call, the last after one, one from the middle of several items."""
    return [
        Point(kind, 1 if kind.endswith("before") else count if kind.endswith("after") else (count + 1) // 2)
        for kind, count in sorted(passed.items())
    ]
