"""`/status` in its first second: nothing looks healthy before it was read, and stops show their commands at once."""

from __future__ import annotations

from typing import Any

from kbq_assets.extras.metrics.service.watches import Watches
from kbq_assets_tests.cli.conftest import Shell, run, world
from kbq_assets_tests.fakes.platform import TOPIC, UNKNOWN_SCHEMA, FakePlatform

__all__ = ["run", "world"]


def problems(watches: Watches) -> list[Any]:
    found = watches.document()["problems"]
    assert isinstance(found, list)
    return found


def test_a_stop_has_its_commands_before_the_broker_was_polled(world: FakePlatform, run: Shell) -> None:
    world.produce(value=UNKNOWN_SCHEMA)
    run("extract")
    watches = Watches(world.reopened().deployment)
    assert [each["message"] for each in problems(watches)] == ["not read yet: problems are unknown"]
    watches.store.poll()
    [stop] = problems(watches)
    assert stop["commands"][0] == f"kbq resume --topic {TOPIC} --partition 0"
