"""The shared test of the files next to it: kill a run at each of its points, then run everything to its end."""

from __future__ import annotations

import signal

from kbq_assets.core.errors import KbqError
from kbq_assets_tests.crashes.forks import Event, Forks
from kbq_assets_tests.crashes.probes import Point, chosen, every_nth
from kbq_assets_tests.crashes.scenes import Homes, log, order
from kbq_assets_tests.sizes import EVERY_NTH_POINT

_FAILURES_SHOWN = 3


def kill_at_every_kind_of_point(
    scenes: Homes, forks: Forks, run: str, of: str, at_least: int, about: str = ""
) -> None:
    """Kill a run at a point of each kind that is about something, each time in a new home.

    Raises AssertionError with the points that fail.
    """
    points = [point for point in chosen(scenes.points(run, of)) if about in point.kind]
    assert len(points) >= at_least, f"only {len(points)} kinds of points: {points}"
    failures: dict[str, str] = {}
    for point in every_nth(points, EVERY_NTH_POINT, f"{run} {of} {about}"):
        try:
            _kill(scenes, forks, run, of, point)
        except (AssertionError, KbqError) as error:
            failures[str(point)] = f"{type(error).__name__}: {error}"
        if len(failures) == _FAILURES_SHOWN:
            break
    assert not failures, "\n".join(f"{point}: {message}" for point, message in failures.items())


def _kill(scenes: Homes, forks: Forks, run: str, of: str, point: Point) -> None:
    world = scenes.copy(of)
    pid = forks.fork(order(world, run, point, signal.SIGKILL))
    assert forks.wait(pid, "ended") == Event(pid, "ended", -signal.SIGKILL), log(world, run)
    scenes.check(world)
    scenes.remove(world)
