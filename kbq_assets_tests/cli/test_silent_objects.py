"""`kbq status` and `kbq check` name an object that the store does not give now, and show everything else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from unittest.mock import patch

import pytest

from kbq_assets.cli.context import ExitCode
from kbq_assets.core.errors import Unavailable
from kbq_assets.core.protocol.names import TableReference, commit_path, table_state_path
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.ports.object_store import StoredObject
from kbq_assets_tests.cli.conftest import Shell, cycle
from kbq_assets_tests.fakes.notifier import FakeNotifier
from kbq_assets_tests.fakes.platform import GOOD, POISON, TOPIC, FakePlatform

ORDERS = TableReference("shop", "orders")
OTHER = "shop.items.v1"
COMMIT, STATE = commit_path(TOPIC, 0), table_state_path(ORDERS)
Silence = Callable[[str], AbstractContextManager[None]]


@pytest.fixture
def silent(world: FakePlatform, run: Shell) -> Silence:
    """Two topics, each with a loaded, a pending and an unread record. The store gives no answer for an object."""
    lines = f"{TOPIC} dataset=shop table=orders\n{OTHER} dataset=shop table=items\n"
    world.settings.catalog.source_topics.write_text(lines)
    world.kafka.create_topic(OTHER, 1)

    def one_more() -> None:
        for topic in (TOPIC, OTHER):
            world.kafka.produce(TopicPartition(topic, 0), GOOD, timestamp=world.clock.now_ms())

    one_more()
    cycle(run)
    one_more()
    run.done("extract")
    one_more()
    read = world.store.get

    @contextmanager
    def silence(silent_path: str) -> Iterator[None]:
        def get(path: str) -> StoredObject:
            if path == silent_path:
                raise Unavailable("no answer")
            return read(path)

        with patch.object(world.store, "get", get):
            yield

    return silence


@pytest.mark.parametrize("path", [COMMIT, STATE])
def test_a_status_names_a_silent_object_and_shows_the_rest(run: Shell, silent: Silence, path: str) -> None:
    before = run.json("status")
    with silent(path):
        shown = run("status")
        result = run("status", "--json")
    assert (shown.exit_code, result.exit_code) == (ExitCode.TRY_AGAIN, ExitCode.TRY_AGAIN)
    assert f"unknown: {path}: no answer" in shown.stdout
    assert f"{OTHER}[0]" in shown.stdout
    found = json.loads(result.stdout)
    assert (found["unavailable"], found["stops"], found["broker_error"]) == ({path: "no answer"}, [], None)
    assert found["new_partitions"] == 0
    topics = {p["topic"] for p in found["partitions"]}
    assert topics == ({OTHER} if path == COMMIT else {OTHER, TOPIC})
    tables = {t["table"]: t for t in found["tables"]}
    assert tables["shop.items"] == next(t for t in before["tables"] if t["table"] == "shop.items")
    assert tables["shop.orders"]["state"] == ("ready" if path == COMMIT else "unknown")


@pytest.mark.parametrize("path", [COMMIT, STATE])
def test_without_a_broker_a_status_names_a_silent_object_too(
    world: FakePlatform, run: Shell, silent: Silence, path: str
) -> None:
    world.kafka.down = True
    with silent(path):
        shown = run("status")
    assert shown.exit_code == ExitCode.TRY_AGAIN
    assert f"unknown: {path}: no answer" in shown.stdout
    assert "the broker is down" in shown.stderr
    assert f"{OTHER}[0]" in shown.stdout


@pytest.mark.parametrize("path", [COMMIT, STATE])
def test_a_check_names_a_silent_object_and_judges_the_rest(run: Shell, silent: Silence, path: str) -> None:
    before = run.json("check")
    with silent(path):
        shown = run("check")
        result = run("check", "--json")
    assert (shown.exit_code, result.exit_code) == (ExitCode.TRY_AGAIN, ExitCode.TRY_AGAIN), shown.output
    assert f"unknown: {path}: no answer" in shown.stdout
    found = json.loads(result.stdout)
    assert (found["failed"], found["unknown"], found["unavailable"]) == (0, {}, {path: "no answer"})
    judged = {(c["check"], c["subject"]) for c in found["checks"]}
    unjudged = {"shop.orders", *([TOPIC] if path == COMMIT else [])}
    assert judged == {(c["check"], c["subject"]) for c in before["checks"] if c["subject"] not in unjudged}


@pytest.mark.parametrize("path", [COMMIT, STATE])
def test_a_check_fails_for_another_problem_than_the_silent_object(
    world: FakePlatform, run: Shell, silent: Silence, path: str
) -> None:
    world.settings.catalog.source_topics.write_text(
        f"{TOPIC} dataset=shop table=orders\n{OTHER} dataset=shop table=items errors=fail\n"
    )
    world.produce(value=POISON, topic=OTHER)
    assert run("extract").exit_code == ExitCode.FAILED
    with silent(path):
        shown = run("check")
    assert shown.exit_code == ExitCode.FAILED
    assert f"no_partition_is_stopped: {OTHER}" in shown.stdout
    assert f"unknown: {path}: no answer" in shown.stdout


def test_a_silent_backlog_leaves_its_table_unknown(world: FakePlatform, run: Shell, silent: Silence) -> None:
    run.done("park", "--table", "shop.orders", "--yes")
    run.done("extract")
    run.done("extract")  # moves the files of a parked table
    chunk = next(path for path in world.objects() if path.startswith("backlog/shop.orders/"))
    with silent(chunk):
        checked, found = run("check"), json.loads(run("status", "--json").stdout)
    assert checked.exit_code == ExitCode.TRY_AGAIN, checked.output
    assert "unknown: backlog/shop.orders/: no answer" in checked.stdout
    assert found["unavailable"] == {"backlog/shop.orders/": "no answer"}
    assert {t["table"]: t["state"] for t in found["tables"]} == {
        "shop.items": "ready",
        "shop.orders": "unknown",
    }


def test_a_silent_commit_of_a_topic_that_is_not_selected_any_more_is_no_stop(
    world: FakePlatform, run: Shell, silent: Silence
) -> None:
    world.settings.catalog.source_topics.write_text(f"{OTHER} dataset=shop table=items\n")
    with silent(COMMIT):
        found = json.loads(run("status", "--json").stdout)
        assert run("check").exit_code == ExitCode.TRY_AGAIN
    assert (found["stops"], found["unavailable"]) == ([], {COMMIT: "no answer"})


def test_notices_take_a_silent_table_neither_for_resolved_nor_for_failed(
    world: FakePlatform, run: Shell, silent: Silence
) -> None:
    notifier = FakeNotifier("chat")
    world.notifiers = [notifier.port]
    run.done("park", "--table", "shop.orders", "--yes")
    run.done("notify")
    told = len(notifier.taken)
    assert told
    with silent(STATE):
        assert run("notify").exit_code == ExitCode.TRY_AGAIN
    run.done("notify")
    assert len(notifier.taken) == told
