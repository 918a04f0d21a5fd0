"""`kbq plan load` shows the next statements and their bytes without changing anything."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kbq_assets.core.protocol.names import TableReference
from kbq_assets_tests.cli.conftest import Shell
from kbq_assets_tests.fakes.platform import POISON, TOPIC, FakePlatform

OPTIONS = "table=orders load=upsert key=_kafka_key keys=true"


@pytest.fixture
def staged(world: FakePlatform, run: Shell) -> Shell:
    """A table with a batch, and another one staged."""
    options(world, OPTIONS)
    world.produce(3)
    run.done("extract")
    run.done("load")
    world.produce(2)
    run.done("extract")
    world.warehouse.statements.price = 1_000
    return run


def options(world: FakePlatform, text: str) -> None:
    world.source_topics.write_text(f"{TOPIC} dataset=shop {text}\n")


def test_the_plan_shows_the_statement_and_its_bytes_and_changes_nothing(
    staged: Shell, unchanged: Callable[[], bool], world: FakePlatform
) -> None:
    before = sorted(world.warehouse.stored)
    [found] = staged.json("plan", "load")["statements"]
    assert {k: found[k] for k in ("table", "kind", "batch", "bytes", "limit", "excess")} == {
        "table": "shop.orders", "kind": "upsert", "batch": 2, "bytes": 1_000, "limit": 0, "excess": "",
    }  # fmt: skip
    assert 'MERGE INTO "shop"."orders"' in found["sql"]
    shown = staged.done("plan", "load")
    assert "statement: shop.orders: load=upsert, batch 2: 1,000 bytes billed" in shown
    assert "MERGE" not in shown
    assert "MERGE" in staged.done("plan", "load", "shop.orders")
    assert unchanged()
    assert sorted(world.warehouse.stored) == before


def test_a_topic_that_leaves_the_list_before_its_first_load_is_loaded_as_it_asked_to_be(
    world: FakePlatform, run: Shell
) -> None:
    options(world, f"{OPTIONS} errors=error_table")
    world.produce(3)
    world.produce(1, value=POISON)
    run.done("extract")
    world.source_topics.write_text("")
    assert [found["kind"] for found in run.json("plan", "load")["statements"]] == ["upsert"]
    run.done("load")
    table = TableReference("shop", "orders")
    assert len(world.warehouse.statements.rows[table]) == 3
    assert {str(each.table): each.loaded_rows for each in world.reopened().observer.tables()} == {
        "shop.kbq_errors": 1,
        "shop.orders": 3,
    }


def test_a_plan_beyond_the_limit_of_a_day_exits_with_1_and_names_the_option(
    staged: Shell, world: FakePlatform
) -> None:
    options(world, f"{OPTIONS} bytes_per_day=999")
    found = staged("plan", "load", "shop.orders")
    assert found.exit_code == 1
    assert "would wait: its statement would be billed 1,000 bytes; bytes_per_day=999" in found.output
    assert "raise bytes_per_day" in found.output
    assert staged("load").exit_code == 1
    assert "bytes_limit" in staged("status").output
    assert staged("plan", "load", "shop.orders").exit_code == 1  # the statement in flight
    options(world, f"{OPTIONS} bytes_per_day=1000")
    staged.done("resume", "--table", "shop.orders", "--yes")
    staged.done("load")
    assert "shop.orders: billed 1,000 bytes for the last statement" in staged.done("order", "status")
    [status] = staged.json("order", "status")
    assert (status["bytes_billed"], status["bytes_billed_that_day"]) == (1_000, 1_000)


def test_a_change_of_load_is_shown_until_it_takes_effect(staged: Shell, world: FakePlatform) -> None:
    options(world, "table=orders keys=true")
    assert [each["kind"] for each in staged.json("plan", "load")["statements"]] == ["upsert"]
    [planned] = staged.json("plan", "load")["load"]["changes"]
    assert planned["switch"].endswith("load=upsert before; to load first: 2 rows of 1 file")
    staged.done("load")
    places = f"load=append from {TOPIC}/0 5, {TOPIC}/1 0 on, load=upsert before"
    words = f"{places}; the next batch is the first one"
    [status] = staged.json("order", "status")
    assert status["switch"] == words
    assert staged.json("plan", "load")["load"]["changes"] == [{"table": "shop.orders", "switch": words}]
    assert [each["switch"] for each in staged.json("status")["tables"]] == [words]
    for command in (("order", "status"), ("status",), ("plan", "load")):
        assert words in " ".join(staged.done(*command).split())
    options(world, OPTIONS)
    [planned] = staged.json("plan", "load")["load"]["changes"]
    assert planned["switch"] == "load=upsert as before: the next load withdraws the change"
    options(world, "table=orders keys=true")
    world.produce(1)
    staged.done("extract")
    assert "statements" not in staged.json("plan", "load")
    staged.done("load")
    assert staged.json("plan", "load")["load"]["changes"] == []
    shown = " ".join(staged.done("order", "status", "--audit").split())
    assert f"load: {places}" in shown
    assert "first one" not in shown


def test_a_table_that_does_not_exist_yet_is_billed_nothing(world: FakePlatform, run: Shell) -> None:
    options(world, OPTIONS)
    world.produce(3)
    run.done("extract")
    [found] = run.json("plan", "load", "shop.orders")["statements"]
    assert (found["bytes"], found["unknown"]) == (0, "the table does not exist yet")
    assert world.warehouse.find_table(TableReference("shop", "orders")) is None


def test_appended_tables_have_no_statement_and_unknown_tables_are_refused(
    world: FakePlatform, run: Shell
) -> None:
    options(world, "table=orders")
    world.produce(3)
    run.done("extract")
    assert "statements" not in run.json("plan", "load")
    assert run("plan", "load", "shop.nothing").exit_code != 0
    assert "takes tables" in run("plan", "extract", "shop.orders").output


def test_options_that_contradict_a_table_are_shown_with_it(staged: Shell, world: FakePlatform) -> None:
    options(world, "table=orders load=insert_new key=_kafka_key keys=true")
    [found] = staged.json("plan", "load")["statements"]
    assert (found["bytes"], found["sql"]) == (None, "")
    assert "has rows from load=upsert" in found["unknown"]
    assert "statement: shop.orders: unknown (shop.orders has rows from" in " ".join(
        staged.done("plan", "load").split()
    )
