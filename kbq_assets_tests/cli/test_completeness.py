"""kbq completeness: the complete hours, and what holds back the next one."""

from __future__ import annotations

import pytest

from kbq_assets.core.loading.completeness import HOUR_MS, hour_text, moment
from kbq_assets.core.protocol.names import COMPLETENESS_TABLE, TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets_tests.cli.conftest import Shell
from kbq_assets_tests.fakes.platform import GOOD, TOPIC, FakePlatform

TABLE = "shop.orders"


@pytest.fixture
def loaded(world: FakePlatform, run: Shell) -> Shell:
    """One row of two hours ago by Kafka's time, and one of now."""
    now_ms = world.clock.now_ms()
    for ago in (2 * HOUR_MS, 0):
        world.kafka.produce(TopicPartition(TOPIC, 0), GOOD, timestamp=now_ms - ago)
    run.done("extract")
    run.done("load")
    return run


def test_every_table_says_until_when_and_why(world: FakePlatform, loaded: Shell) -> None:
    now_ms = world.clock.now_ms()
    until = hour_text((now_ms - 900_000) // HOUR_MS)
    [table] = loaded.json("completeness")["tables"]
    assert (table["table"], table["complete_until"], table["late_rows"]) == (TABLE, until, 0)
    assert table["held_back_by"] in (f"{TOPIC}[0]", f"{TOPIC}[1]")
    assert until in loaded.done("completeness")
    assert until in loaded.done("status")
    assert loaded.json("status")["tables"][0]["complete_until"] == until


def test_a_table_lists_its_latest_hours(world: FakePlatform, loaded: Shell) -> None:
    now_ms = world.clock.now_ms()
    [table] = loaded.json("completeness", TABLE)["tables"]
    first = table["hours"][0]
    assert (first["hour"], first["rows"], first["complete"]) == (
        moment((now_ms // HOUR_MS - 2) * HOUR_MS),
        1,
        True,
    )
    assert len(loaded.json("completeness", TABLE, "--hours", "1")["tables"][0]["hours"]) == 1
    assert loaded("completeness", TABLE, "--hours", "-1").exit_code == 2
    assert first["hour"] in loaded.done("completeness", TABLE)


def test_a_load_writes_the_table_for_queries(world: FakePlatform, loaded: Shell) -> None:
    rows = world.warehouse.records(TableReference("shop", COMPLETENESS_TABLE))
    assert sum(row["row_count"] for row in rows) == 2
    assert {row["table_name"] for row in rows} == {"orders"}


def test_a_table_that_nobody_knows_is_an_error(loaded: Shell) -> None:
    result = loaded("completeness", "shop.nothing")
    assert result.exit_code == 1
    assert "nothing is staged or loaded for shop.nothing" in result.output
