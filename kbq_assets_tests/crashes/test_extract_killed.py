"""kill -9 of extractions and clean-ups, at every kind of point: every record arrives exactly once."""

from __future__ import annotations

import random
import signal

import pytest

from kbq_assets_tests.crashes.forks import Forks
from kbq_assets_tests.crashes.killed import kill_at_every_kind_of_point
from kbq_assets_tests.crashes.probes import Point
from kbq_assets_tests.crashes.scenes import Scenes, order
from kbq_assets_tests.sizes import DEATHS

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize(
    ("run", "of", "at_least"),
    [("extract", "fresh", 25), ("extract", "grown", 20), ("clean", "littered", 10)],
)
def test_a_killed_run_loses_and_doubles_nothing(
    scenes: Scenes, forks: Forks, run: str, of: str, at_least: int
) -> None:
    kill_at_every_kind_of_point(scenes, forks, run, of, at_least)


@pytest.mark.parametrize(
    ("run", "of", "about", "at_least"),
    [
        ("extract", "parked", "backlog", 2),
        ("extract", "parked", "store.swap commits", 2),
        ("load", "backlog", "backlog", 3),
        ("extract", "fresh", "manifests", 2),
        ("extract", "parked", "manifests", 2),
    ],
)
def test_files_in_backlogs_and_manifests_are_never_lost_or_loaded_twice(
    scenes: Scenes, forks: Forks, run: str, of: str, about: str, at_least: int
) -> None:
    kill_at_every_kind_of_point(scenes, forks, run, of, at_least, about)


@pytest.mark.parametrize("seed", range(DEATHS))
def test_dying_again_and_again_loses_and_doubles_nothing(scenes: Scenes, forks: Forks, seed: int) -> None:
    chance = random.Random(seed)
    runs = {"extract": scenes.points("extract", "fresh"), "load": scenes.points("load", "extracted")}
    world, killed = scenes.copy("fresh"), 0
    for _ in range(12):
        run = chance.choice(list(runs))
        kind = chance.choice(sorted(runs[run]))
        point = Point(kind, chance.randint(1, max(1, runs[run][kind] // 2)))
        killed += forks.run(order(world, run, point, signal.SIGKILL)).code == -signal.SIGKILL
    assert killed >= 4
    scenes.check(world)
