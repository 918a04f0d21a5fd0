"""`kbq notify` sends, tests, and previews notices. `kbq settings` shows none of its secrets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kbq_assets.adapters import http
from kbq_assets.core.errors import Unavailable
from kbq_assets.extras.notices.senders import open_notifiers
from kbq_assets_tests.cli.conftest import Shell
from kbq_assets_tests.fakes.hook_server import hook_server
from kbq_assets_tests.fakes.notifier import FakeNotifier
from kbq_assets_tests.fakes.platform import TOPIC, UNKNOWN_SCHEMA, FakePlatform

SECRET = "s3cr3t"
STOPPED = f"error: no_partition_is_stopped: {TOPIC}"


@pytest.fixture
def stopped(world: FakePlatform) -> FakePlatform:
    """A platform with a stopped partition and a notifier."""
    world.produce(value=UNKNOWN_SCHEMA)
    world.parts.extractor.extract()
    world.notifiers = [FakeNotifier().port]
    return world


def test_what_is_wrong_is_sent_once(stopped: FakePlatform, run: Shell) -> None:
    assert f"fake:fake-1: {STOPPED}" in run.done("notify")
    assert run.done("notify") == "fake:fake-1: nothing new\n"


def test_a_dry_run_shows_it_and_sends_nothing(stopped: FakePlatform, run: Shell) -> None:
    shown = run.done("notify", "--dry-run")
    assert f"{STOPPED}: " in shown
    assert f"  next: kbq resume --topic {TOPIC} --partition 0\n" in shown
    [condition] = run.json("notify", "--dry-run")
    assert (condition["kind"], condition["subject"]) == ("no_partition_is_stopped", TOPIC)
    assert STOPPED in run.done("notify")


def test_a_stopped_backup_is_sent_with_its_own_command(world: FakePlatform, run: Shell) -> None:
    world.source_topics.write_text(f"{TOPIC} dataset=shop table=orders backup=only\n")
    run.done("extract")
    world.kafka.recreate_topic(TOPIC)
    assert f"error: no_backup_is_stopped: {TOPIC}: " in run.done("notify", "--dry-run")
    [condition] = run.json("notify", "--dry-run")
    assert condition["commands"] == [f"kbq backup reset --topic {TOPIC}"]


def test_nothing_wrong_is_shown(world: FakePlatform, run: Shell) -> None:
    assert run.done("notify", "--dry-run") == "no problems, no news\n"


def test_a_notifier_that_fails_is_named_and_gives_the_exit_code(stopped: FakePlatform, run: Shell) -> None:
    stopped.notifiers = [FakeNotifier("broken", Unavailable("busy")).port, FakeNotifier("other").port]
    result = run("notify")
    assert (result.exit_code, "fake:broken: not sent: busy" in result.stderr) == (75, True)
    [broken, other] = json.loads(run("notify", "--test", "--json").stdout)
    assert (broken["failure"], other["sent"]) == ("busy", "info: test: kbq")


def test_no_notifier_is_an_error_with_the_variable(run: Shell) -> None:
    result = run("notify", "--test")
    assert (result.exit_code, "set KBQ_NOTIFY" in result.stderr) == (1, True)


def test_test_and_dry_run_exclude_each_other(run: Shell) -> None:
    assert run("notify", "--test", "--dry-run").exit_code == 2


def test_a_test_arrives_at_a_real_server_and_no_output_shows_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "POST_SECONDS", 300.0)  # the server answers, however busy the machine is
    with hook_server() as server:
        environ = {"KBQ_NOTIFY": f"webhook:{server.url}/{SECRET}", "KBQ_WEBHOOK_SECRET": SECRET}
        world = FakePlatform(tmp_path, environ=environ)
        shell = Shell(world, notifiers=lambda: open_notifiers(world.settings.extras.notify, world.clock))
        output = shell.done("notify", "--test") + shell.done("settings")
        shown = {v["name"]: v["value"] for v in shell.json("settings")}
        assert len(server.posted) == 1
    assert SECRET not in output
    assert shown["KBQ_NOTIFY"] == "webhook:http://127.0.0.1/***"
    assert shown["KBQ_WEBHOOK_SECRET"] == "set"
