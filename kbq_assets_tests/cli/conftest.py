"""`kbq` over a platform of fakes."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kbq_assets.definitions import command_line
from kbq_assets_tests.fakes.platform import POISON, FakePlatform


class Shell:
    """Runs `kbq` as a separate process would: each command opens its own platform over the same world. ``ports``
    replace those of the world."""

    def __init__(self, world: FakePlatform, **ports: Any) -> None:
        self.world = world
        self._ports = ports

    def __call__(self, *args: str, answer: str | None = None) -> Result:
        """Run a command. An error that is not KBQ's is raised in the test."""
        reopened = partial(self.world.reopened, **self._ports)
        result = CliRunner().invoke(command_line(), args, obj=reopened, input=answer)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    def done(self, *args: str) -> str:
        """Run a command that must succeed; return what it printed."""
        result = self(*args)
        assert result.exit_code == 0, result.output
        return result.stdout

    def json(self, *args: str) -> Any:
        """The document of a command that must succeed."""
        return json.loads(self.done(*args, "--json"))


def cycle(run: Shell) -> None:
    run.done("extract")
    run.done("load")


@pytest.fixture
def world(tmp_path: Path) -> FakePlatform:
    """A topic of two partitions, empty."""
    return FakePlatform(tmp_path)


@pytest.fixture
def run(world: FakePlatform) -> Shell:
    """`kbq` over ``world``."""
    return Shell(world)


@pytest.fixture
def loaded(world: FakePlatform, run: Shell) -> Shell:
    """Three good records and a bad one in partition 0, all loaded."""
    world.produce(3)
    world.produce(value=POISON)
    run.done("extract")
    run.done("load")
    return run


@pytest.fixture
def unchanged(world: FakePlatform) -> Callable[[], bool]:
    """Whether the store is as it was when the test asked for this."""
    before = world.objects()
    return lambda: world.objects() == before
