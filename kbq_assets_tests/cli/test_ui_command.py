"""`kbq ui` prints where the UI is, and what to do if there is nothing to see."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from click.testing import CliRunner

from kbq_assets.cli.ui import NOTHING_YET
from kbq_assets.core.errors import Unavailable
from kbq_assets.definitions import command_line
from kbq_assets.ports.orchestrator import Orchestrator
from kbq_assets_tests.cli.conftest import Shell
from kbq_assets_tests.fakes.platform import FakePlatform


class ServedOnce:
    """An orchestrator whose user looks once and leaves."""

    def serve(self, port: int, on_ready: Callable[[str], None], *, read_only: bool = False) -> None:
        on_ready(f"http://127.0.0.1:{port}")
        raise KeyboardInterrupt


@pytest.fixture
def own_signals() -> Iterator[None]:
    """The command takes the signals of its process, which here is the test run's."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def look(world: FakePlatform, *arguments: str, **ports: Any) -> str:
    """What `kbq ui` prints."""
    served = {"orchestrator": lambda definitions: cast(Orchestrator, ServedOnce()), **ports}
    parts = world.reopened(**served)
    return CliRunner().invoke(command_line(), ["ui", *arguments], obj=lambda: parts).output


@pytest.mark.usefixtures("own_signals")
def test_a_ui_without_anything_to_see_says_how_to_get_it(world: FakePlatform, run: Shell) -> None:
    first = look(world, "--port", "3001")
    assert first.startswith("Dagster is at http://127.0.0.1:3001;")
    assert NOTHING_YET in first
    world.produce(1)
    run.done("extract")
    assert NOTHING_YET not in look(world)


@pytest.mark.usefixtures("own_signals")
def test_a_store_that_does_not_answer_is_no_reason_not_to_serve(world: FakePlatform) -> None:
    def away() -> Any:
        raise Unavailable("the bucket does not answer", next_step="wait")

    shown = look(world, "--read-only", store=away, load_store=away)
    assert shown == "Dagster is at http://127.0.0.1:3000, read-only; Ctrl-C stops it\nstopped\n"
