"""A person's actions in Dagster's UI, by roles and visible text."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import Locator, Page, Response, TimeoutError, expect

from kbq_assets_tests.browser.window import LOOK_MS

#: For what a run, a backfill or a sensor has to do first: Dagster's daemon looks at backfills every 30 s.
PATIENCE_SECONDS = 900.0
#: Wait before a page that may not update itself is loaded again.
GLANCE_MS = 20_000
#: A picture is taken when nothing has moved for this long, or after this many looks: some pages count seconds.
STILL_MS, STILL_LOOKS = 1_500, 4

expect.set_options(timeout=LOOK_MS)


@dataclass(frozen=True)
class Person:
    """Someone before a window. ``album``: where pictures go, if any are wanted."""

    page: Page
    album: Path | None

    def photograph(self, name: str) -> None:
        """Take a screenshot for the documents, once the page is stable."""
        if self.album is None:
            return
        before, shown = b"", self.page.screenshot(animations="disabled")
        for _ in range(STILL_LOOKS):
            if shown == before:
                break
            self.page.wait_for_timeout(STILL_MS)
            before, shown = shown, self.page.screenshot(animations="disabled")
        self.album.mkdir(parents=True, exist_ok=True)
        (self.album / f"{name}.png").write_bytes(shown)

    def until_shown(self, look: Callable[[], None]) -> None:
        """Look repeatedly, as a person who waits: some pages update by themselves, others must be reloaded."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        expect.set_options(timeout=GLANCE_MS)
        try:
            while True:
                try:
                    return look()
                except AssertionError:
                    if time.monotonic() > deadline:
                        raise
                    self.page.reload()
        finally:
            expect.set_options(timeout=LOOK_MS)

    def open_graph(self) -> None:
        """The lineage of all assets, with its groups unfolded."""
        self.page.goto("/")
        self._link("Lineage").click()
        self.node("staging").wait_for()
        self.page.keyboard.press("Alt+KeyE")

    def node(self, name: str) -> Locator:
        """A box of the graph."""
        return self.page.locator("svg foreignObject", has_text=re.compile(rf"^{re.escape(name)}(?![a-z_])"))

    def open_asset(self, asset: str, tab: str = "Overview") -> None:
        """A tab of an asset's page."""
        self.page.goto(f"/assets/{asset}")
        self.page.get_by_role("tab", name=tab).click()

    def find_asset(self, words: str, asset: str) -> None:
        """An asset's page, by way of the search that is on every page."""
        self.page.goto("/")
        self.page.get_by_text("Search", exact=True).click()
        self.page.get_by_placeholder("Search assets, jobs").fill(words)
        self.page.locator(f"a[href$='/assets/{asset}']").click()
        self.page.get_by_role("tab", name="Overview").click()

    def open_partition(self, asset: str, key: str) -> None:
        """The page of one partition."""
        self.page.goto(f"/assets/{asset}?view=partitions&partition={quote(key, safe='')}")
        expect(self.value("rows")).to_be_visible()

    def value(self, entry: str) -> Locator:
        """A metadata entry's value on a partition's page."""
        return self.page.locator(f"xpath=//tr[td[1][normalize-space()='{entry}']]/td[2]").first

    def latest(self, entry: str) -> Locator:
        """A metadata entry's value on an asset's overview, which has the time between name and value."""
        return self.page.locator(f"xpath=//tr[td[1][normalize-space()='{entry}']]/td[last()]").first

    def open_check(self, asset: str, check: str) -> None:
        """The page of one asset check."""
        self.page.goto(f"/assets/{asset}?view=checks&checkDetail={check}")

    def execute_check(self, verdict: str) -> None:
        """Evaluate a check again, and wait for the result."""
        self.page.get_by_role("button", name=re.compile("Execute$")).click()
        self.until_shown(lambda: expect(self.page.get_by_text(verdict, exact=True)).to_be_visible())

    def choose(self, asset: str, *keys: str) -> None:
        """Materialize partitions of an asset; all if none is named."""
        self.open_asset(asset)
        self.page.get_by_role("button", name="Materialize").click()
        dialog = self.page.get_by_role("dialog")
        if not keys:
            dialog.get_by_role("button", name="All", exact=True).click()
            return
        dialog.get_by_text("Select a partition or create one").click()
        for key in keys:
            self.page.get_by_role("menuitem").filter(has_text=key).click()
        self.page.keyboard.press("Escape")
        expect(dialog.get_by_text(f"{len(keys)} partition")).to_be_visible()

    def materialise(self, asset: str) -> None:
        """Materialise an asset without partitions, and look at its run."""
        self.open_asset(asset)
        self._launch(self.page.get_by_role("button", name="Materialize").first)

    def launch(self) -> None:
        """Launch what was chosen, and look at it."""
        self._launch(self.page.get_by_role("dialog").get_by_role("button", name=re.compile("^Launch")))

    def _launch(self, button: Locator) -> None:
        with self.page.expect_response(_is_launch) as answer:
            button.click()
        try:
            self.page.get_by_role("region", name="Notifications").get_by_text("View").click(timeout=GLANCE_MS)
        except TimeoutError:
            # It goes away after four seconds: a machine may be too busy to click.
            self.page.goto(_page_of(answer.value.text()))

    def watch_run(self) -> str:
        """Wait for the end of the run that is shown; how it ended."""
        end = self.page.get_by_text(re.compile("^(Success|Failure|Canceled)$")).first
        self.until_shown(lambda: expect(end).to_be_visible())
        return end.inner_text()

    def watch_backfill(self) -> str:
        """Wait for the end of the backfill that is shown; how it ended."""
        status = self.page.get_by_text("Status", exact=True).locator("xpath=following-sibling::*[1]")
        end = re.compile("^(Succeeded|Completed|Failed|Canceled)")
        self.until_shown(lambda: expect(status).to_have_text(end))
        return status.inner_text()

    def runs_of_backfill(self) -> int:
        """How many runs the backfill that is shown was made of."""
        self.page.get_by_role("tab", name="Runs").click()
        runs = self.page.get_by_role("link", name=re.compile("run [0-9a-f]{8}$"))
        expect(runs.first).to_be_visible()
        return runs.count()

    def _link(self, words: str) -> Locator:
        """A link by its words, among which may be the names of icons."""
        return self.page.get_by_role("link", name=re.compile(rf"\b{re.escape(words)}\b"))

    def open_sensor(self, sensor: str) -> None:
        """A sensor's page, by way of the list of all automation."""
        self.page.goto("/automation")
        self._link(sensor).click()
        expect(self.page.get_by_text("Latest tick")).to_be_visible()

    def switch(self, sensor: str, on: bool) -> None:
        """Turn a sensor on or off."""
        self.open_sensor(sensor)
        switch = self.page.get_by_role("row", name=re.compile("^(Running|Stopped)")).locator("label")
        if switch.get_by_role("checkbox").is_checked() != on:
            switch.click()
        expect(switch.get_by_role("checkbox")).to_be_checked(checked=on)


def _is_launch(response: Response) -> bool:
    return '"operationName":"Launch' in (response.request.post_data or "")


def _page_of(launched: str) -> str:
    """Where the backfill or the run is shown that the answer to a launch names."""
    if backfill := re.search(r'"backfillId": ?"(\w+)"', launched):
        return f"/runs/b/{backfill[1]}"
    run = re.search(r'"id": ?"([0-9a-f]{8}-[0-9a-f-]{27})"', launched)
    assert run is not None, launched
    return f"/runs/{run[1]}"
