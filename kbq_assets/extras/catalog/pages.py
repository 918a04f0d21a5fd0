"""The catalog as pages: an index with search in the browser, and a page per topic. They need no server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jinja2 import ChainableUndefined, Environment, PackageLoader

from kbq_assets.extras.catalog.site import SiteTopic


def write_site(folder: Path, topics: Sequence[SiteTopic], env: str, written: str, *, with_state: bool) -> int:
    """Write the pages; return their number. ``written`` is the time of the row counts."""
    templates = Environment(
        loader=PackageLoader("kbq_assets.extras.catalog", "templates"),
        autoescape=True,
        undefined=ChainableUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages = {topic.entry.topic: f"topics/{topic.entry.topic}.html" for topic in topics}
    common = {"env": env, "written": written, "with_state": with_state, "pages": pages}
    (folder / "topics").mkdir(parents=True, exist_ok=True)
    index = templates.get_template("index.html").render(topics=topics, **common)
    (folder / "index.html").write_text(index, encoding="utf-8")
    page = templates.get_template("topic.html")
    for topic in topics:
        (folder / pages[topic.entry.topic]).write_text(page.render(topic=topic, **common), encoding="utf-8")
    return len(topics) + 1
