"""`kbq ui`: its requests to the orchestrator, and its output."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import cast

import pytest
from click.testing import CliRunner

from kbq_assets.definitions import Parts, command_line
from kbq_assets.ports.orchestrator import Orchestrator
from kbq_assets_tests.fakes.platform import FakePlatform


class Interrupted:
    """An orchestrator whose UI is interrupted by Ctrl-C immediately."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []

    def serve(self, port: int, on_ready: Callable[[str], None], *, read_only: bool = False) -> None:
        self.asked.append(("serve", port, read_only))
        on_ready(f"http://127.0.0.1:{port}")
        raise KeyboardInterrupt

    def stop(self) -> None:
        self.asked.append(("stop",))


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """The command takes the signals of its process."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("options", "asked", "said"),
    [
        ([], ("serve", 3000, False), "Ctrl-C stops it, and its daemon"),
        (["--read-only", "--port", "3001"], ("serve", 3001, True), "127.0.0.1:3001, read-only"),
        (["--stop"], ("stop",), ""),
    ],
)
def test_the_ui_is_served_as_asked(
    world: FakePlatform, options: list[str], asked: tuple[object, ...], said: str
) -> None:
    interrupted = Interrupted()

    def open_orchestrator(definitions: object) -> Orchestrator:
        return cast("Orchestrator", interrupted)

    def opened() -> Parts:
        return world.reopened(orchestrator=open_orchestrator)

    result = CliRunner().invoke(command_line(), ["ui", *options], obj=opened)
    assert result.exit_code == 0, result.output
    assert interrupted.asked == [asked]
    assert said in result.output
