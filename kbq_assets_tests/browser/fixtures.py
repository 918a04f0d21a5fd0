"""`kbq ui` on the demo's state, and a window on it for each test.

Set KBQ_TEST_SCREENSHOTS to a folder to get the pictures that the documents show.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kbq_assets_tests.fixtures.local_stack import REPOSITORY, free_ports

# Every test run loads this module: Playwright and Dagster wait until a test wants a browser.
if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from kbq_assets_tests.browser.person import Person
    from kbq_assets_tests.integration.demo_home import Demo

#: What a failing test shows: the ends of these logs, in characters.
LOG_CHARACTERS = 6_000
FAILURES = REPOSITORY / ".kbq" / "test-failures"


@dataclass(frozen=True)
class Served:
    """A demo's home whose UI and daemon run."""

    demo: Demo
    url: str

    def logs(self) -> str:
        """What UI and daemon wrote last."""
        paths = sorted((self.demo.home / "logs").glob("dagster-*.log"))
        return "\n".join(f"== {path.name}\n{path.read_text()[-LOG_CHARACTERS:]}" for path in paths)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """For one file: Playwright can be started once at a time."""
    from kbq_assets_tests.browser.window import INSTALL, find_chromium, opened_browser

    program = find_chromium()
    if program is None:
        pytest.skip(INSTALL)
    with opened_browser(program) as opened:
        yield opened


@pytest.fixture(scope="class")
def served(browser: Browser, demo: Demo) -> Iterator[Served]:
    """`kbq ui` on the file's demo: the browser first, since without one there is nothing to do."""
    from kbq_assets_tests.browser.window import LOOPBACK
    from kbq_assets_tests.integration.demo_home import PATIENCE_SECONDS, wait_until

    [port] = free_ports(1)
    with demo.started("ui", "--port", str(port), KBQ_EXTRACT_SECONDS="15", KBQ_LOAD_SECONDS="15") as ui:
        url = f"http://{LOOPBACK}:{port}"
        wait_until(lambda: url in str(ui.stdout and ui.stdout.readline()), pause=0)
        yield Served(demo, url)
        ui.send_signal(signal.SIGINT)
        ui.send_signal(signal.SIGINT)  # an impatient user's second Ctrl-C
        assert ui.wait(PATIENCE_SECONDS) == 0
    assert demo.dagster_processes() == []


@pytest.fixture
def me(request: pytest.FixtureRequest, browser: Browser, served: Served) -> Iterator[Person]:
    """A person with a separate window, without access to the outside world."""
    from kbq_assets_tests.browser.person import Person
    from kbq_assets_tests.browser.window import opened_window

    album = os.environ.get("KBQ_TEST_SCREENSHOTS")
    with opened_window(browser, served.url) as window:
        yield Person(window.page, Path(album) if album else None)
        if request.node.stash.get(FAILED, False):
            seen = window.leave(FAILURES / request.node.name)
            (FAILURES / request.node.name / "logs.txt").write_text(served.logs(), encoding="utf-8")
            print(f"{FAILURES / request.node.name}/page.png shows:\n{seen}\n{served.logs()}")
        assert window.foreign == []


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.stash[FAILED] = report.failed
    return report
