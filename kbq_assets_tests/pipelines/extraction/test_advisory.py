"""Positions in consumer groups follow what was published, and are only for people."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbq_assets.core.observation.run_totals import EXTRACTION, RunTotals, totals_path
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.pipelines.protocol import state
from kbq_assets_tests.cli.conftest import Shell
from kbq_assets_tests.fakes.platform import TOPIC, FakePlatform


@pytest.mark.parametrize(
    ("option", "installation", "group"),
    [
        ("", "", None),
        (" advisory_group=kbq-orders", "", "kbq-orders"),
        ("", "kbq", "kbq"),
        (" advisory_group=own", "kbq", "own"),
        (" advisory_group=none", "kbq", None),
    ],
)
def test_published_positions_go_to_the_topics_group_or_the_installations(
    tmp_path: Path, option: str, installation: str, group: str | None
) -> None:
    environ = {"KBQ_ADVISORY_GROUP": installation} if installation else {}
    world = FakePlatform(tmp_path, environ=environ, sources=f"{TOPIC} dataset=shop table=orders{option}")
    world.produce(3)
    world.produce(2, partition=1)
    Shell(world).done("extract")
    expected = {TopicPartition(TOPIC, 0): 3, TopicPartition(TOPIC, 1): 2}
    assert world.groups.offsets == ({} if group is None else {group: expected})


def test_a_group_that_refuses_fails_no_run_and_is_counted_and_shown(tmp_path: Path) -> None:
    world = FakePlatform(tmp_path, environ={"KBQ_ADVISORY_GROUP": "kbq"})
    world.groups.problem = "the group has members"
    world.produce(3)
    shown = Shell(world).done("extract")
    assert "advisory group not updated: kbq: the group has members" in shown
    assert state.read(world.store, RunTotals, totals_path(EXTRACTION)).value.advisory_failures == 1
    assert world.parts.observer.tables()
    Shell(world).done("load")
    assert {str(t.table): t.loaded_rows for t in world.reopened().observer.tables()} == {"shop.orders": 3}
