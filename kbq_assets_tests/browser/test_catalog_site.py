"""The catalog's pages in a browser: searched, opened, and without requests to any host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from kbq_assets.adapters.catalog_files import CatalogFolder
from kbq_assets.core.config.locations import DuckDbFile
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.extras.catalog.site import site_topics, write_site
from kbq_assets.pipelines.catalog.reader import read_catalog
from kbq_assets.pipelines.observation.status import TableStatus
from kbq_assets_tests.browser.window import INSTALL, Window, find_chromium, opened_browser, opened_window

EXAMPLE = Path(__file__).parents[2] / "examples" / "catalog"

pytestmark = pytest.mark.browser


@pytest.fixture
def window(tmp_path: Path) -> Iterator[Window]:
    """The index of the example's pages, as it lies on the disk."""
    files = CatalogFolder(EXAMPLE).read()
    loaded = TableStatus(TableReference("nyc", "flights"), "ready", 1_234, 5, 1, 0, 0, loaded_ms=86_400_000)
    topics = site_topics(
        read_catalog(files).entries, files, DuckDbFile(tmp_path / "warehouse.duckdb"), [loaded]
    )
    write_site(tmp_path, topics, "demo", "today", with_state=True)
    program = find_chromium()
    if program is None:
        pytest.skip(INSTALL)
    with opened_browser(program) as browser, opened_window(browser, tmp_path.as_uri()) as opened:
        opened.page.goto(f"{tmp_path.as_uri()}/index.html")
        yield opened


def test_a_column_s_name_finds_its_topics_and_a_click_shows_them(window: Window) -> None:
    page = window.page
    rows = page.locator("#topics tr:visible")
    expect(rows).to_have_count(6)
    page.get_by_role("searchbox").fill("tailnum operations")
    expect(rows).to_have_count(2)
    expect(page.get_by_role("status")).to_have_text("2 found")
    page.get_by_role("link", name="nyc.flights.v1").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("nyc.flights.v1")
    for fact in (
        "tailnum",
        "STRING",
        "1970-01-02 00:00",
        "1,234, 5 to load, ready (today)",
        "240 minutes, or a check fails",
    ):
        expect(page.get_by_role("cell", name=fact, exact=True).first).to_be_visible()
    team = page.get_by_role("row").filter(has_text="team").get_by_role("cell")
    expect(team.last).to_have_text("flight-operations")
    expect(page.locator("pre")).to_contain_text('FROM "nyc"."flights"')
    page.go_back()
    expect(page.get_by_role("searchbox")).to_have_value("tailnum operations")
    expect(rows).to_have_count(2)
    page.get_by_role("searchbox").fill("no such word")
    expect(rows).to_have_count(0)
    assert [url for url in window.foreign if not url.startswith("file:")] == []
