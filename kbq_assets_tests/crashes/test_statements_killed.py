"""kill -9 of statement loads, at every kind of point: an upsert table shows the last state of its compacted topic."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kbq_assets.core.protocol.names import TableReference
from kbq_assets_tests.crashes.changes import UPSERT, Changes
from kbq_assets_tests.crashes.forks import Forks
from kbq_assets_tests.crashes.killed import kill_at_every_kind_of_point
from kbq_assets_tests.crashes.scenes import Homes
from kbq_assets_tests.crashes.upsert_campaign import Campaign, Size
from kbq_assets_tests.integration.world import Producers, World

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


class UpsertHomes(Homes):
    """``extracted``: the first changes are staged, and there is no table. ``replayed``: they are loaded; more were
    sent, and all of them read again in a new epoch."""

    environ = {"KBQ_WINDOW_RECORDS": "12"}

    def __init__(self, folder: Path, producers: Producers, forks: Forks) -> None:
        self.changes = Changes(producers, keys=15)
        super().__init__(folder, producers, forks, f"{self.changes.topic} {UPSERT}\n")
        self.changes.send(60)
        self._age("fresh", "", "")
        self._age("extracted", "fresh", "extract")
        self._age("loaded", "extracted", "load")
        self.changes.send(60)
        self.changes.read_again(self._age("reset", "loaded", ""))
        self._age("replayed", "reset", "extract")

    def check(self, world: World) -> None:
        world.finish()
        self.changes.check(world)
        statements = world.parts.deployment.warehouse.statements
        assert statements is not None
        assert len(statements.scratch_tables("shop")) <= 1  # the next batch drops it (S3)
        assert world.parts.deployment.warehouse.tables() == (TableReference("shop", "orders"),)


@pytest.fixture(scope="module")
def homes(producers: Producers, forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> UpsertHomes:
    return UpsertHomes(tmp_path_factory.mktemp("upserts"), producers, forks)


@pytest.mark.parametrize(("of", "at_least"), [("extracted", 35), ("replayed", 30)])
def test_a_killed_load_leaves_an_upsert_table_at_the_last_state(
    homes: UpsertHomes, forks: Forks, of: str, at_least: int
) -> None:
    kill_at_every_kind_of_point(homes, forks, "load", of, at_least)


def test_runs_that_die_all_the_time_leave_an_upsert_table_at_the_last_state(
    producers: Producers, forks: Forks, tmp_path: Path
) -> None:
    size = Size(keys=300, changes=3_000, rounds=10, kills=66, batch_records=40)
    result = Campaign(producers, forks, tmp_path, size, random.Random(1)).run()
    assert result["kills"] >= size.kills
    assert result["kinds of points"] >= 35
