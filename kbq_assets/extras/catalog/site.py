"""The catalog as web pages: an index with search in the browser, and a page per topic. They need no server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import ChainableUndefined, Environment, PackageLoader

from kbq_assets.core.catalog import CatalogEntry, CatalogFiles
from kbq_assets.core.catalog.datasets import Dataset, dataset_of_entry, sample_query, with_real_columns
from kbq_assets.core.config.locations import WarehousePlace
from kbq_assets.core.loading.completeness import HOUR_MS, moment
from kbq_assets.core.loading.tables import Column
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.pipelines.catalog.datasets import value_schema
from kbq_assets.pipelines.observation.status import TableStatus


@dataclass(frozen=True)
class TableSummary:
    """The state of a table. ``loaded`` and ``complete_until`` are times as text, "" for never."""

    rows: int
    pending_rows: int
    state: str
    loaded: str = ""
    complete_until: str = ""


@dataclass(frozen=True)
class SiteTopic:
    """A topic of the site. ``query`` is "" if its table is unknown; ``standing`` is None if no state was read."""

    entry: CatalogEntry
    dataset: Dataset
    query: str = ""
    standing: TableSummary | None = None

    @property
    def words(self) -> str:
        """The searched text, in lower case."""
        return self.dataset.words


def site_topics(
    entries: Iterable[CatalogEntry],
    files: CatalogFiles,
    warehouse: WarehousePlace,
    statuses: Iterable[TableStatus] = (),
    stored: Callable[[TableReference], tuple[Column, ...] | None] = lambda _: None,
) -> list[SiteTopic]:
    """The topics of an environment, in order. ``statuses`` have rows and times if the state was read. ``stored``
    returns the columns of an existing table, or None."""
    known = {status.table: _standing(status) for status in statuses}
    found = []
    for entry in sorted(entries, key=lambda entry: entry.topic):
        dataset = dataset_of_entry(entry, value_schema(entry, files))
        table = dataset.table
        if table is not None and (columns := stored(table)) is not None:
            dataset = with_real_columns(dataset, columns)
        query = sample_query(table, warehouse) if table else ""
        found.append(SiteTopic(entry, dataset, query, known.get(table) if table else None))
    return found


def _standing(status: TableStatus) -> TableSummary:
    return TableSummary(
        status.loaded_rows,
        status.pending_rows,
        status.state,
        moment(status.loaded_ms) if status.loaded_ms else "",
        moment(status.complete_until * HOUR_MS) if status.complete_until else "",
    )


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
