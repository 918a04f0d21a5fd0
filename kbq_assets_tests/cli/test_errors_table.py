"""`errors_table`: a topic's own table for bad records, which counts, replays and commands support."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbq_assets.core.protocol.names import TableReference
from kbq_assets_tests.cli.conftest import Shell, cycle
from kbq_assets_tests.cli.test_replay import offsets
from kbq_assets_tests.fakes.platform import SCHEMAS, SOURCES, TOPIC, UNKNOWN_SCHEMA, FakePlatform

SHARED, OWN, ORDERS = (TableReference("shop", name) for name in ("kbq_errors", "kbq_errors__sales", "orders"))
OPTIONS = SOURCES.replace("table=orders", "table=orders error_share=1")


@pytest.fixture
def world(tmp_path: Path) -> FakePlatform:
    """A bad record was loaded into the shared table; the topic has an own one now, with another bad record."""
    made = FakePlatform(tmp_path, keep_records=True, sources=OPTIONS, partitions=1)
    made.produce(2)
    return made


@pytest.fixture
def run(world: FakePlatform) -> Shell:
    shell = Shell(world)
    cycle(shell)
    for options in (OPTIONS, OPTIONS.replace("error_share", "errors_table=kbq_errors__sales error_share")):
        world.source_topics.write_text(options)
        world.produce(1, value=UNKNOWN_SCHEMA)
        shell("extract")
        shell.done("resume", "--topic", TOPIC, "--as-errors", "--yes")
        cycle(shell)
    return shell


def test_bad_records_of_a_topic_go_to_the_table_of_their_owner(world: FakePlatform, run: Shell) -> None:
    assert (offsets(world, SHARED), offsets(world, OWN)) == ([(0, 2)], [(0, 3)])
    for command in (("reconcile",), ("reconcile", "--counts"), ("check",)):
        run.done(*command)
    assert [row["offset"] for row in run.json("errors", "list")["errors"]] == [2, 3]
    assert "kbq_errors__sales" in run.done("where", TOPIC, "0", "3")


def test_error_rows_come_back_from_both_tables(world: FakePlatform, run: Shell) -> None:
    world.registry.schemas[99] = SCHEMAS[1]
    run.done("errors", "replay", "--yes")
    assert offsets(world, ORDERS) == [(0, 0), (0, 1), (0, 2), (0, 3)]
    run.done("reconcile")
    run.done("reconcile", "--counts")
    assert "no error row waits" in run.done("errors", "replay", "--yes")


def test_a_replay_of_the_range_moves_error_rows_of_both_tables(world: FakePlatform, run: Shell) -> None:
    world.registry.schemas[99] = SCHEMAS[1]
    run.done("replay", "start", TOPIC, "--yes")
    run.done("replay", "promote", "1", "--yes")
    assert (offsets(world, SHARED), offsets(world, OWN)) == ([], [])
    assert len(offsets(world, ORDERS)) == 4
    run.done("reconcile")
    run.done("reconcile", "--counts")


@pytest.mark.parametrize("name", ["kbq_errors__sales", "kbq_errors"])
def test_a_type_of_records_has_no_table_of_bad_records(tmp_path: Path, name: str) -> None:
    world = FakePlatform(tmp_path, keep_records=True, partitions=1)
    world.source_topics.write_text(SOURCES.replace("table=orders", "route=record_name error_share=1"))
    world.registry.schemas[1] = world.registry.schemas[1].replace("Order", name)
    world.produce(1)
    stopped = Shell(world)("extract")
    assert (stopped.exit_code, f"shop.{name} is a table of bad records" in stopped.output) == (1, True)
