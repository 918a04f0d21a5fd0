"""A browser window that can reach only 127.0.0.1, and its artifacts if a test fails."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, sync_playwright

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
INSTALL = "no Chromium on this machine: sudo apt-get install chromium"
LOOPBACK = "127.0.0.1"
#: Only loopback resolves, for the page, its workers and the browser itself.
FLAGS = (
    f"--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE {LOOPBACK}",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
#: How long what is to be seen is waited for. The suite shares two cores with itself.
LOOK_MS = 180_000


def find_chromium() -> str | None:
    """The path of a Chromium, if there is one."""
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)


@contextmanager
def opened_browser(program: str) -> Iterator[Browser]:
    """A browser without a screen."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=[*FLAGS], timeout=LOOK_MS)
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Window:
    """One page with its own cache and storage. ``foreign`` has the requested addresses beyond loopback."""

    page: Page
    foreign: list[str] = field(default_factory=list)

    def note(self, url: str) -> None:
        """Remember an address that is not ours."""
        if urlsplit(url).hostname not in (None, LOOPBACK):  # data, blobs and files have no host
            self.foreign.append(url)

    def leave(self, folder: Path) -> str:
        """Save what is shown; return its text."""
        folder.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=folder / "page.png")
        text = f"{self.page.url}\n{self.page.inner_text('body')}"
        (folder / "page.txt").write_text(text, encoding="utf-8")
        return text


@contextmanager
def opened_window(browser: Browser, url: str) -> Iterator[Window]:
    """A window of a person who was never here before."""
    context = browser.new_context(base_url=url, viewport={"width": 1280, "height": 900})
    context.set_default_timeout(LOOK_MS)
    window = Window(context.new_page())
    context.on("request", lambda request: window.note(request.url))
    window.page.on("websocket", lambda socket: window.note(socket.url))
    try:
        yield window
    finally:
        context.close()
