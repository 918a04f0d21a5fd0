"""kill -9 of loaders, at every kind of point and inside DuckDB's transactions: every record arrives exactly once."""

from __future__ import annotations

import pytest

from kbq_assets_tests.crashes.forks import Forks
from kbq_assets_tests.crashes.killed import kill_at_every_kind_of_point
from kbq_assets_tests.crashes.scenes import Scenes

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize(("of", "at_least"), [("extracted", 35), ("staged", 30)])
def test_a_killed_load_loses_and_doubles_nothing(
    scenes: Scenes, forks: Forks, of: str, at_least: int
) -> None:
    kill_at_every_kind_of_point(scenes, forks, "load", of, at_least)
