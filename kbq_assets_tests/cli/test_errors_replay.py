"""`kbq errors replay`: error rows become rows, and those that stay are reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kbq_assets.core.protocol.names import TableReference
from kbq_assets_tests.cli.conftest import Shell
from kbq_assets_tests.fakes.platform import GOOD, POISON, SCHEMAS, TOPIC, UNKNOWN_SCHEMA, FakePlatform


@pytest.fixture
def broken(world: FakePlatform, run: Shell) -> FakePlatform:
    """One row, and two error rows: one of an unknown schema, and one that is no Confluent value."""
    world.produce(value=GOOD)
    world.produce(value=UNKNOWN_SCHEMA)
    world.produce(value=POISON)
    run("extract")
    run.done("resume", "--topic", TOPIC, "--as-errors", "--yes")
    run.done("extract")
    run.done("load")
    return world


def test_a_schema_that_was_registered_and_a_function_that_repairs_bring_error_rows_back(
    broken: FakePlatform, run: Shell, current_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken.registry.schemas[99] = SCHEMAS[1]
    first = run("errors", "replay", "--yes")
    assert first.exit_code == 1
    assert f"shop.kbq_errors: {TOPIC}[0] epoch 1: 2 error rows" in first.output
    assert "shop.orders: 1 row added" in first.output
    assert f"1 error row stays: today's parser refuses them too ({TOPIC}[0] offset 2" in first.output
    (current_folder / "mending.py").write_text(
        f"def good(row):\n    assert row.reason\n    return {GOOD!r} if row.value == {POISON!r} else None\n"
    )
    monkeypatch.syspath_prepend(current_folder)
    second = run("errors", "replay", "--with", "mending:good", "--yes", "--json")
    assert second.exit_code == 0
    assert json.loads(second.stdout) == {
        "rows": {"shop.orders": 1},
        "superseded": {},
        "left": {},
        "examples": {},
    }
    assert "no error row waits for a replay" in run.done("errors", "replay", "--yes")
    assert "no bad records" in run.done("errors", "list")
    assert "offset 2" in run.done("errors", "show", TOPIC, "0", "2")
    assert "every record accounted for: yes" in run.done("reconcile")
    assert run("reconcile", "--counts").exit_code == 0


def test_nothing_is_replayed_without_a_yes(broken: FakePlatform, run: Shell) -> None:
    broken.registry.schemas[99] = SCHEMAS[1]
    assert run("errors", "replay", answer="n\n").exit_code == 1
    assert "2" in run.done("errors", "list")
    assert len(run.done("errors", "list", "--json").split('"offset"')) == 3


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nowhere:good", "No module named 'nowhere'"),
        ("json", "ValueError|AttributeError"),
        ("json:__name__", "not a function"),
    ],
)
def test_a_function_that_cannot_be_used_is_refused(run: Shell, name: str, why: str) -> None:
    result = run("errors", "replay", "--with", name, "--yes")
    assert result.exit_code == 1
    assert any(each in result.output for each in why.split("|"))


@pytest.mark.parametrize("order", ["offset", "hour"])
def test_rows_of_an_ordered_table_come_out_of_order_only_by_a_decision(
    world: FakePlatform, run: Shell, order: str
) -> None:
    world.source_topics.write_text(f"{TOPIC} dataset=shop table=orders order={order}\n")
    for value in (GOOD, UNKNOWN_SCHEMA, GOOD):
        world.produce(value=value)
    run("extract")
    run.done("resume", "--topic", TOPIC, "--as-errors", "--yes")
    for command in ("extract", "load"):
        run.done(command)
    world.registry.schemas[99] = SCHEMAS[1]
    refused = run("errors", "replay", "--yes")
    assert refused.exit_code == 1
    assert "shop.orders shows its rows in order" in refused.output
    assert "kbq reset reads the range again" in refused.output
    run.done("order", "hold", "shop.orders", "--reason", "later", "--yes")
    held = run("errors", "replay", "--out-of-order", "ticket 12", "--yes")
    assert (held.exit_code, "an operator holds it: later; kbq order release" in held.output) == (1, True)
    run.done("order", "release", "shop.orders", "--yes")
    assert "shop.orders: 1 row added" in run.done("errors", "replay", "--out-of-order", "ticket 12", "--yes")
    [found] = [each for each in run.json("order", "status", "--audit") if each["table"] == "shop.orders"]
    [entry] = [each for each in found["audit"] if each["action"] == "out_of_order"]
    assert (entry["reason"], entry["rows"]) == (f"{TOPIC}[0] offsets 1 to 1: ticket 12", 1)
    assert entry["at_ms"] and entry["by"]
    assert "no error row waits for a replay" in run.done("errors", "replay", "--yes")
    assert run("reconcile", "--counts").exit_code == 0
    world.produce()
    for command in ("extract", "load", "check"):
        run.done(command)


def test_the_way_back_that_a_refusal_names_shows_the_row_in_its_place(
    world: FakePlatform, run: Shell
) -> None:
    world.source_topics.write_text(f"{TOPIC} dataset=shop table=orders order=offset\n")
    for value in (GOOD, UNKNOWN_SCHEMA, GOOD):
        world.produce(value=value)
    run("extract")
    run.done("resume", "--topic", TOPIC, "--as-errors", "--yes")
    for command in ("extract", "load"):
        run.done(command)
    world.registry.schemas[99] = SCHEMAS[1]
    assert "kbq reset reads the range again, in order" in run("errors", "replay", "--yes").output
    run.done("reset", "--topic", TOPIC, "--at", "earliest", "--yes")
    for command in ("extract", "load"):
        run.done(command)
    rows = world.warehouse.rows(TableReference("shop", "orders"))
    newest = max(row.epoch for row in rows)
    assert sorted(row.offset for row in rows if row.epoch == newest) == [0, 1, 2], (
        "one job shows them at once"
    )


@pytest.mark.parametrize("command", [("list",), ("replay",), ("replay", "--yes")])
def test_a_topic_that_kbq_never_read_has_no_bad_records_because_its_name_is_wrong(
    broken: FakePlatform, run: Shell, command: tuple[str, ...]
) -> None:
    result = run("errors", *command, "--topic", f"{TOPIC}s")
    assert result.exit_code == 1
    assert f"nothing was extracted from {TOPIC}s" in result.output


def test_a_reason_that_does_not_exist_is_refused(broken: FakePlatform, run: Shell) -> None:
    result = run("errors", "replay", "--reason", "UNKNOWN_SCHMA", "--yes")
    assert result.exit_code == 1
    assert "did you mean 'UNKNOWN_SCHEMA'?" in result.output


def test_only_the_error_rows_of_the_chosen_reason_are_counted_before_the_question(
    broken: FakePlatform, run: Shell
) -> None:
    everything = run("errors", "replay", answer="n\n").output
    assert "2 error rows" in everything
    chosen = run("errors", "replay", "--reason", "UNKNOWN_SCHEMA", answer="n\n").output
    assert f"shop.kbq_errors: {TOPIC}[0] epoch 1: 1 error row\n" in chosen
    nothing = run.done("errors", "replay", "--reason", "TOO_LARGE", "--topic", TOPIC)
    assert nothing == "no error row waits for a replay\n"


def test_a_replay_of_nothing_asks_nothing(world: FakePlatform, run: Shell) -> None:
    world.produce(value=GOOD)
    run.done("extract")
    assert run.done("errors", "replay", "--topic", TOPIC) == "no error row waits for a replay\n"
    assert "no bad records" in run.done("errors", "list", "--topic", TOPIC)
