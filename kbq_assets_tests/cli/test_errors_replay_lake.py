"""`kbq errors replay` in an Iceberg lake: error rows become rows exactly once, whatever dies, replaces or erases."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kbq_assets.adapters.iceberg.errors_replay import LakeErrorReplays
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.ports.warehouse import ErrorQuery
from kbq_assets_tests.cli.conftest import Shell
from kbq_assets_tests.cli.test_replay_lake import LakeWorld, is_whole
from kbq_assets_tests.fakes.faults import Crash
from kbq_assets_tests.fakes.platform import GOOD, POISON, SCHEMAS, SOURCES, TOPIC, UNKNOWN_SCHEMA

pytestmark = pytest.mark.thorough

ORDERS, ERRORS = TableReference("shop", "orders"), TableReference("shop", "kbq_errors")
ANNA = b"anna"
ALL = [(0, 0), (0, 1), (0, 2)]
REPLAY = ("errors", "replay", "--yes")


@pytest.fixture
def world(tmp_path: Path) -> LakeWorld:
    """One row, and two error rows: one of an unknown schema, which is Anna's, and one that is no Confluent value."""
    made = LakeWorld(
        tmp_path, f"iceberg:{tmp_path / 'lake'}", SOURCES.strip() + " error_share=1 tombstones=skip\n"
    )
    for key, value in ((b"b", GOOD), (ANNA, UNKNOWN_SCHEMA), (b"c", POISON)):
        made.kafka.produce(TopicPartition(TOPIC, 0), value, key=key, timestamp=1000)
    return made


@pytest.fixture
def run(world: LakeWorld) -> Shell:
    shell = Shell(world)
    shell("extract")
    shell.done("resume", "--topic", TOPIC, "--as-errors", "--yes")
    shell.done("extract")
    shell.done("load")
    world.registry.schemas[99] = SCHEMAS[1]
    return shell


def waiting(world: LakeWorld) -> list[tuple[int, int]]:
    """Partition and offset of the error rows that were not replayed."""
    return world.offsets(ERRORS)


def dies(run: Shell, operation: str, *, before: bool) -> Callable[[], Any]:
    """A replay dies before or after a step; return the step, to be done late."""
    late: list[Callable[[], Any]] = []
    step = getattr(LakeErrorReplays, operation)

    def die(*args: Any) -> None:
        late.append(lambda: step(*args))
        if not before:
            step(*args)
        raise Crash

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Crash):
        patch.setattr(LakeErrorReplays, operation, die)
        run(*REPLAY)
    return late[0]


def test_a_schema_that_was_registered_and_a_function_that_repairs_bring_error_rows_back(
    world: LakeWorld, run: Shell, current_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(*REPLAY)
    assert first.exit_code == 1
    assert f"shop.kbq_errors: {TOPIC}[0] epoch 1: 2 error rows" in first.output
    assert "shop.orders: 1 row added" in first.output
    assert f"1 error row stays: today's parser refuses them too ({TOPIC}[0] offset 2" in first.output
    assert (world.offsets(ORDERS), waiting(world)) == (ALL[:2], ALL[2:])
    is_whole(run)
    (current_folder / "lake_mending.py").write_text(
        f"def good(row):\n    assert row.reason\n    return {GOOD!r} if row.value == {POISON!r} else None\n"
    )
    monkeypatch.syspath_prepend(current_folder)
    second = run(*REPLAY, "--with", "lake_mending:good", "--json")
    assert (second.exit_code, json.loads(second.stdout)["rows"]) == (0, {"shop.orders": 1})
    assert "no error row waits for a replay" in run.done(*REPLAY)
    assert "no bad records" in run.done("errors", "list")
    assert "offset 2" in run.done("errors", "show", TOPIC, "0", "2")
    assert (world.offsets(ORDERS), waiting(world)) == (ALL, [])
    is_whole(run)
    world.produce(2)
    run.done("extract")
    run.done("load")
    is_whole(run)
    found = {row.offset: row for row in world.lake.error_rows(ERRORS, ErrorQuery(replayed=True))}
    assert (found[1].value, found[2].value, found[1].key) == (UNKNOWN_SCHEMA, POISON, ANNA)


@pytest.mark.slow
def test_ten_thousand_error_rows_replayed_twice_land_once(world: LakeWorld, run: Shell) -> None:
    for _ in range(9_999):
        world.kafka.produce(TopicPartition(TOPIC, 1), UNKNOWN_SCHEMA, timestamp=1000)
    del world.registry.schemas[99]
    run("extract")
    run.done("resume", "--topic", TOPIC, "--as-errors", "--yes")
    run.done("extract")
    run.done("load")
    world.registry.schemas[99] = SCHEMAS[1]
    before = json.loads(run.done("reconcile", "--json"))["totals"]
    for _ in range(2):
        assert run(*REPLAY).exit_code == 1  # the poison stays
        after = json.loads(run.done("reconcile", "--json"))["totals"]
        assert (before["errors"], after["errors"]) == (10_001, 1)
        assert after["loaded"] - before["loaded"] == 10_000
        assert len(world.offsets(ORDERS)) == len(set(world.offsets(ORDERS))) == 10_001
    run.done("reconcile", "--counts")


@pytest.mark.parametrize("operation", ["land", "mark"])
@pytest.mark.parametrize("before", [True, False])
def test_who_dies_is_continued_and_comes_too_late(
    world: LakeWorld, run: Shell, operation: str, before: bool
) -> None:
    late = dies(run, operation, before=before)
    assert "a replay of error rows into shop.orders has not ended" in run.done("status")
    assert run(*REPLAY).exit_code == 1  # the poison stays
    assert (world.offsets(ORDERS), waiting(world)) == (ALL[:2], ALL[2:])
    with pytest.raises(Exception, match="exists"):
        late()
    assert (world.offsets(ORDERS), waiting(world)) == (ALL[:2], ALL[2:])
    is_whole(run)


def test_a_promotion_gives_up_what_has_not_landed(world: LakeWorld, run: Shell) -> None:
    """The range's rows come only from the replay, whoever comes late."""
    late = dies(run, "land", before=True)
    run.done("replay", "start", TOPIC, "--from", "earliest", "--until", "latest", "--yes")
    run.done("replay", "promote", "1", "--yes")
    assert (world.offsets(ORDERS), waiting(world)) == (ALL[:2], ALL[2:])
    with pytest.raises(Exception, match="exists"):
        late()
    assert run(*REPLAY).exit_code == 1
    assert (world.offsets(ORDERS), waiting(world)) == (ALL[:2], ALL[2:])
    is_whole(run)


@pytest.mark.parametrize("kind", ["iceberg", "duckdb"])
def test_error_rows_wait_until_a_promotion_is_accepted(tmp_path: Path, kind: str) -> None:
    """A rollback would take their rows away, and count them as rows of a load."""
    home = tmp_path / kind
    home.mkdir()
    world = LakeWorld(
        home, f"{kind}:{home / 'warehouse'}", SOURCES.strip() + " error_share=1 tombstones=skip\n"
    )
    for value in (GOOD, UNKNOWN_SCHEMA, None):  # a skipped record must not hide the row that comes back
        world.kafka.produce(TopicPartition(TOPIC, 0), value, timestamp=1000)
    run = Shell(world)
    run("extract")
    run.done("resume", "--topic", TOPIC, "--as-errors", "--yes")
    run.done("extract")
    run.done("load")
    run("replay", "start", TOPIC, "--from", "earliest", "--until", "latest", "--yes")
    run.done("replay", "resume", "1", "--as-errors")
    run.done("replay", "promote", "1", "--yes")
    world.registry.schemas[99] = SCHEMAS[1]
    refused = run(*REPLAY)
    assert (refused.exit_code, "kbq replay accept 1" in refused.output) == (1, True)
    run.done("replay", "rollback", "1", "--yes")
    assert (world.offsets(ORDERS), waiting(world)) == (ALL[:1], ALL[1:2])
    is_whole(run)
    run.done(*REPLAY)
    assert (world.offsets(ORDERS), waiting(world)) == (ALL[:2], [])
    is_whole(run)
    promoted = run("replay", "promote", "1", "--yes")
    assert (promoted.exit_code, "1 replayed error row in the range:" in promoted.output) == (3, True)
    is_whole(run)


@pytest.mark.parametrize(("operation", "before"), [("land", True), ("mark", True), ("mark", False)])
def test_an_erasure_ends_the_replay_first_and_nothing_brings_the_person_back(
    world: LakeWorld, run: Shell, operation: str, before: bool
) -> None:
    late = dies(run, operation, before=before)
    run.done("erase", "start", TOPIC, "--key", ANNA.decode(), "--yes")
    with pytest.raises(Exception, match="exists"):
        late()
    assert run(*REPLAY).exit_code == 1
    assert (world.offsets(ORDERS), waiting(world)) == (ALL[:1], ALL[2:])
    is_whole(run)
