"""A batch of files that waits for a person is shown everywhere: checks, status, notices, metrics."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kbq_assets.core.errors import Unavailable
from kbq_assets.core.filebatches import table_batches
from kbq_assets.core.filebatches.prefix_registry import file_registry_path, file_state_path
from kbq_assets.core.filebatches.table_batches import BatchInFlight, FileTarget
from kbq_assets.core.observation.arrivals import Arrivals, PrefixArrivals
from kbq_assets.extras.filebatches.observe import arrivals_reader
from kbq_assets.extras.metrics.families import MAX_LABEL_VALUES, OTHER
from kbq_assets.extras.metrics.kbq_metrics import arrival_families
from kbq_assets.extras.notices.send import send_changes
from kbq_assets.pipelines.filebatches.states import FileStates
from kbq_assets.ports.warehouse import JobError
from kbq_assets_tests.cli.conftest import Shell
from kbq_assets_tests.extras.metrics.http import site
from kbq_assets_tests.extras.metrics.scrape import polled, values
from kbq_assets_tests.fakes.faults import Outcome
from kbq_assets_tests.fakes.notifier import FakeNotifier
from kbq_assets_tests.fakes.platform import FakePlatform
from kbq_assets_tests.pipelines.filebatches.world import FilesWorld

PREFIX = "shop/orders"
RETRY = f"kbq files retry {PREFIX} --batch {PREFIX}/1"
SKIP = f"kbq files skip {PREFIX} --batch {PREFIX}/1 --reason TEXT"
PROBLEM = f"{PREFIX}/1 failed: bad row"


def arrivals_in(world: FilesWorld, process: str = "") -> Arrivals:
    return arrivals_reader(lambda: world.batches(process))()


def bad(world: FilesWorld, word: str) -> None:
    world.warehouse.bad[word] = JobError("invalid", "bad row", transient=False)


def test_a_failed_batch_and_those_behind_it_are_counted_with_the_two_ways_on() -> None:
    world = FilesWorld(order_per_table=True)
    world.batch("shop/orders/1")
    bad(world, "shop/orders/1")
    world.run()
    world.batch("shop/orders/2")
    world.batch("shop/orders/3")
    [found] = arrivals_in(world).prefixes
    oldest = world.source.objects["shop/orders/2/_SUCCESS"].updated_ms
    assert (found.prefix, found.failed, found.parked, found.waiting) == (PREFIX, 1, 0, 2)
    assert found.oldest_ms == oldest
    assert found.message.startswith("shop/orders/1 failed: ")
    assert found.commands == (RETRY, SKIP)
    world.warehouse.bad.clear()
    world.batches().retry(PREFIX, "shop/orders/1", "", "ann")
    world.run()
    assert arrivals_in(world) == Arrivals((PrefixArrivals(PREFIX),))


def test_a_batch_that_a_rule_or_its_configuration_keeps_back_is_parked() -> None:
    world = FilesWorld(order_per_table=True, on_late="park")
    world.batch("shop/orders/2")
    world.run()
    world.batch("shop/orders/1")
    world.batch("shop/items/1")
    world.put("shop/items/_config/load.json", '{"unsupported": 1}')
    items, orders = arrivals_in(world).prefixes
    for found, why in ((items, "unsupported"), (orders, "KBQ_FILES_ON_LATE=park")):
        assert (found.failed, found.parked, found.waiting) == (0, 1, 0)
        assert why in found.message


def test_a_batch_that_waits_for_a_persons_validation_is_reported_at_once() -> None:
    world = FilesWorld(order_per_table=True, wait_for_validation=True)
    world.batch("shop/orders/1")
    world.run()
    assert not list(arrivals_in(world).problems)
    world.batch("shop/orders/2")
    world.batch("shop/orders/3")
    [found] = arrivals_in(world).problems
    assert (found.failed, found.parked, found.waiting) == (0, 0, 2)
    assert "shop/orders/2 waits: the last batch waits for its validation" in found.message
    assert found.commands == (f"kbq files status {PREFIX}",)
    world.put("shop/orders/_BACKFILL", "")
    world.run()
    [found] = arrivals_in(world).problems
    assert "shop/orders/3 waits" in found.message


@pytest.mark.parametrize(
    ("held", "settings", "why"),
    [
        ("shop/orders/_bqlock", {}, "_bqlock is another program's lock"),
        ("", {"start_backfill": "_HISTORYDONE"}, "there is no shop/orders/_HISTORYDONE yet"),
        ("", {}, "no run of kbq files applied it"),
    ],
)
def test_a_batch_that_waits_too_long_is_reported_with_what_it_waits_for(
    held: str, settings: dict[str, Any], why: str
) -> None:
    world = FilesWorld(order_per_table=True, max_wait_seconds=600, **settings)
    if held:
        world.put(held, "another tool")
    world.batch("shop/orders/0")
    if held or settings:
        world.run()
    assert not list(arrivals_in(world).problems)
    world.store.time_ms = world.source.objects["shop/orders/0/_SUCCESS"].updated_ms + 600_001
    [found] = arrivals_in(world).problems
    assert why in found.message
    assert "longer than 600 seconds" in found.message
    assert not found.result.passed
    world.settings = replace(world.settings, max_wait_seconds=0)
    assert not list(arrivals_in(world).problems)


def test_a_batch_behind_one_that_a_person_decides_about_sends_no_notice_of_its_own() -> None:
    world = FilesWorld(order_per_table=True, max_wait_seconds=600)
    world.batch("shop/orders/1")
    bad(world, "shop/orders/1")
    world.batch("shop/orders/2")
    world.run()
    world.store.time_ms += 10_000_000
    [found] = arrivals_in(world).problems
    assert found.problems == ("shop/orders/1 failed: invalid: bad row",)


def test_many_batches_without_a_table_are_one_entry() -> None:
    world = FilesWorld(destination_regex=r"(?P<dataset>a)/(?P<table>b)")
    for number in range(30):
        world.batch(f"elsewhere/{number}")
    [found] = arrivals_in(world).prefixes
    assert (found.prefix, found.parked, found.commands) == ("KBQ_FILES", 30, ("kbq files status",))
    assert found.message.endswith("and 25 more")


def test_a_path_with_a_decorator_is_quoted_in_commands() -> None:
    world = FilesWorld()
    world.batch("shop/orders/$20260105")
    bad(world, "20260105")
    world.run()
    [found] = arrivals_in(world).prefixes
    assert found.commands[0] == f"kbq files retry {PREFIX} --batch 'shop/orders/$20260105'"


def test_a_source_that_is_away_is_unknown_and_a_damaged_state_is_a_problem_of_its_prefix() -> None:
    world = FilesWorld()
    for path in ("shop/orders/1", "shop/items/1"):
        world.batch(path)
    world.run()
    world.source.faults = lambda call: Outcome.UNAVAILABLE
    away = arrivals_in(world, "checker")
    assert away.prefixes == () and away.unknown_checks
    world.source.faults = None
    del world.store.objects[file_state_path(PREFIX)]
    items, orders = arrivals_in(world).prefixes
    assert not items.problems and "is missing" in orders.message and orders.parked == 1
    assert orders.commands == (f"kbq files status {PREFIX}",)
    del world.store.objects[file_registry_path()]
    [found] = arrivals_in(world).prefixes
    assert (found.prefix, found.parked) == ("KBQ_FILES", 1) and "is missing" in found.message


# A whole platform -----------------------------------------------------------------------------------------------------


def fail(world: FakePlatform, name: str) -> None:
    """A batch's job that fails."""
    states, path = FileStates(world.store, world.settings.warehouse_area), f"{PREFIX}/{name}"
    states.register(PREFIX, "u1")
    running = BatchInFlight(path, 1, f"j{name}", "p", "US", FileTarget("shop", "orders"), (), ordered=True)
    states.change(PREFIX, lambda now: table_batches.enter(now, running, 0))
    states.change(PREFIX, lambda now: table_batches.fail(now, running, "bad row", 1))


@pytest.fixture
def world(tmp_path: Path) -> FakePlatform:
    """A platform with a batch of files that failed, and one behind it."""
    arrivals = tmp_path / "arrivals"
    world = FakePlatform(tmp_path, environ={"KBQ_FILES": str(arrivals), "KBQ_FILES_ORDER_PER_TABLE": "true"})
    for name in ("1", "2"):
        folder = arrivals / "shop" / "orders" / name
        folder.mkdir(parents=True)
        (folder / "_SUCCESS").touch()
    fail(world, "1")
    return world


def settle(run: Shell, *names: str) -> None:
    """A person applies batches by hand."""
    for name in names or ("1", "2"):
        run.done("files", "skip", PREFIX, "--batch", f"{PREFIX}/{name}", "--reason", "by hand", "--yes")


def found_by_check(run: Shell) -> dict[str, Any]:
    checks = json.loads(run("check", "--json").stdout)["checks"]
    [result] = [each for each in checks if each["check"] == "no_batch_waits_for_a_person"]
    return {name: result[name] for name in ("subject", "passed", "message", "commands")}


def test_check_and_status_name_it_with_its_commands_until_somebody_decides(world: FakePlatform) -> None:
    run = Shell(world)
    assert run("check").exit_code == 1
    assert found_by_check(run) == {
        "subject": PREFIX,
        "passed": False,
        "message": PROBLEM,
        "commands": [RETRY, SKIP],
    }
    shown = run.done("status")
    assert f"batches of files: {PREFIX}: {PROBLEM}" in shown.replace("\n", " ")
    [prefix] = run.json("status")["file_batches"]
    assert (prefix["failed"], prefix["waiting"], prefix["problems"]) == (1, 1, [PROBLEM])
    settle(run)
    assert run("check").exit_code == 0 and found_by_check(run)["passed"]
    assert "batches of files" not in run.done("status")


def test_a_source_that_is_away_is_an_unknown_check(world: FakePlatform) -> None:
    def away() -> Arrivals:
        return Arrivals(unknown=str(Unavailable("the bucket is away")))

    parts = world.reopened()
    object.__setattr__(parts.observer, "arrivals", away)
    report = parts.observer.checks()
    assert (report.failures, dict(report.unknown)) == (
        (),
        {"no_batch_waits_for_a_person": "the bucket is away"},
    )
    notifier = FakeNotifier()
    world.notifiers = [notifier.port]
    send_changes(parts.notices)
    [item] = [item for message in notifier.taken for item in message.items]
    assert (item.kind, item.subject, item.commands) == ("unreachable", "KBQ_FILES", ("kbq files status",))


def test_a_notice_is_sent_once_again_if_there_are_more_and_when_it_has_ended(world: FakePlatform) -> None:
    def titles() -> list[str]:
        notifier = FakeNotifier()
        world.notifiers = [notifier.port]
        send_changes(world.reopened().notices)
        return [item.title for message in notifier.taken for item in message.items]

    named = f"no_batch_waits_for_a_person: {PREFIX}"
    assert [titles(), titles()] == [[f"error: {named}"], []]
    (Path(world.settings.extras.files.location) / "shop" / "orders" / "_config").mkdir()
    broken = Path(world.settings.extras.files.location) / "shop" / "orders" / "_config" / "load.json"
    broken.write_text("{")
    assert titles() == [f"error: {named}"]
    broken.unlink()
    assert titles() == []
    settle(Shell(world), "1")
    fail(world, "2")
    assert titles() == [f"error: {named}"], "the next batch"
    settle(Shell(world), "2")
    assert [titles(), titles()] == [[f"resolved: {named}"], []]


def test_metrics_and_the_status_page_show_it(world: FakePlatform) -> None:
    shown = polled(world.reopened())
    assert shown["kbq_failed_file_batches"] == {(PREFIX,): 1}
    assert shown["kbq_parked_file_batches"] == {(PREFIX,): 0}
    assert shown["kbq_waiting_file_batches"] == {(PREFIX,): 1}
    assert (PREFIX,) in shown["kbq_oldest_file_batch_age_seconds"]
    assert shown["kbq_up"][("files",)] == 1
    with site(world.reopened()) as running:
        running.watches.poll()
        problems = running.json("/status")["problems"]
    assert {
        "what": f"batches of files of {PREFIX}",
        "message": PROBLEM,
        "commands": [RETRY, SKIP],
    } in problems


def test_ages_are_those_of_the_oldest_and_labels_are_bounded() -> None:
    many = tuple(
        PrefixArrivals(f"d/t{number:04}", failed=1, waiting=1, oldest_ms=1_000 + number)
        for number in range(1_500)
    )
    found = values(arrival_families(Arrivals((*many, PrefixArrivals("d/done"))), 61_000))
    assert len(found["kbq_failed_file_batches"]) == MAX_LABEL_VALUES + 1
    ages = found["kbq_oldest_file_batch_age_seconds"]
    assert ("d/done",) not in ages and ages[("d/t0000",)] == 60.0 and ages[(OTHER,)] == 59.0
