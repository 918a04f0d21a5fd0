"""The time from a record to its table, and from an hour to its tag, with a simulated clock and default cadences."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from kbq_assets.core.config.settings import parse_settings
from kbq_assets.core.loading.batches import LoadLimits
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.pipelines.loading.completeness_table import publish_hours
from kbq_assets.pipelines.loading.load import LoadPorts
from kbq_assets.pipelines.loading.view import read_view
from kbq_assets.pipelines.protocol.state_cache import StateCache
from kbq_assets_tests.fakes.warehouse import FakeWarehouse
from kbq_assets_tests.pipelines.bench import A
from kbq_assets_tests.pipelines.loading.test_completeness import HOUR, TIMED, Replay, Times, _timed
from kbq_assets_tests.sizes import thinned

#: Minutes that a run of extraction, and one of loading, takes: a load job of BigQuery ends within one.
RUN = 1
HOURS = 3


class TaggingWarehouse(FakeWarehouse):
    """Notes in ``tagged`` when each complete hour was named, in milliseconds."""

    tagged: dict[int, int]

    def mark_complete(self, table: TableReference, until_hour: int) -> bool:
        """Name it."""
        if table == A:
            for hour in range(HOUR + 1, until_hour + 1):
                self.tagged.setdefault(hour, self.now_ms())
        return True


class Line:
    """A record a minute, and runs as Dagster's sensors request them: minutes between the beginnings of two runs."""

    def __init__(self, extract: int, load: int, first_hours: int = 0, **options: Any) -> None:
        self.bench = Times(TopicSettings.of(dataset="d", route="record_name", **options))
        store = self.bench.store
        self.warehouse = TaggingWarehouse(store, store.path_of)
        self.warehouse.now_ms, self.warehouse.tagged = store.now_ms, {}
        self.bench.warehouse = self.warehouse
        #: the minute from which loads write the table of hours, which has its own pause
        self.first_hours = first_hours
        self.every = {"extract": extract, "load": load}
        self.visible: dict[int, int] = {}
        self.loads = self.reads = 0

    def run(self, minutes: int) -> None:
        """From `HOUR` on. A load sees what an extraction committed before the minute in which it begins."""
        for now in range(minutes):
            bench = self.bench.at(now)
            bench.record(now)
            if now % self.every["load"] == 0 and now:
                report = bench.load()
                self.loads += bool(report.rows)
                ports = LoadPorts(bench.store, self.warehouse, bench.clock)
                if now >= self.first_hours:
                    publish_hours(ports, read_view(StateCache(bench.store)))
                for offset in bench.offsets(A)[len(self.visible) :]:
                    self.visible[offset] = now + RUN
            if now % self.every["extract"] == 0:
                self.reads += bool(bench.extract().totals.records)

    def latencies(self) -> list[int]:
        """Minutes from each record to its visible row."""
        return [minute - offset for offset, minute in self.visible.items()]

    def tag_delays(self) -> list[int]:
        """Minutes from the end of each hour to its tag."""
        ends = {hour: (hour - HOUR) * 60 for hour in self.warehouse.tagged}
        start = self.bench.at(0).store.now_ms()
        return [(at - start) // 60_000 + RUN - ends[hour] for hour, at in self.warehouse.tagged.items()]


def line_of(folder: Path, options: Mapping[str, Any] = MappingProxyType({}), /, **environ: str) -> Line:
    """The line with the intervals from the settings, after `HOURS` hours."""
    settings = parse_settings({"KBQ_HOME": str(folder), **environ})
    run, quiet = settings.run, settings.catalog.quiet_seconds
    line = Line(run.extract_seconds // 60, run.load_seconds // 60, quiet_seconds=quiet, **options)
    line.run(HOURS * 60)
    return line


def test_with_the_defaults_of_a_lake_rows_and_the_tag_take_less_than_half_an_hour(tmp_path: Path) -> None:
    line = line_of(tmp_path, KBQ_WAREHOUSE="iceberg:lake")
    assert len(line.visible) > (HOURS - 1) * 60
    assert max(line.latencies()) <= 15
    assert len(line.tag_delays()) == HOURS - 1
    assert max(line.tag_delays()) <= 30


@pytest.mark.parametrize("first_hours", [1, 4, 7])
def test_a_tag_does_not_wait_for_the_table_of_hours(tmp_path: Path, first_hours: int) -> None:
    """Which is written every ten minutes."""
    line = line_of(tmp_path, {"first_hours": first_hours}, KBQ_WAREHOUSE="iceberg:lake")
    assert max(line.tag_delays()) <= 20


#: What `flush: {}` means.
FLUSH = {"min_records": 500_000, "max_wait_seconds": 1200, "close_hours": True}


def test_the_bounds_of_flush_delay_neither_rows_nor_tags_for_long(tmp_path: Path) -> None:
    line = line_of(tmp_path, FLUSH, KBQ_WAREHOUSE="iceberg:lake")
    assert (max(line.latencies()) <= 30, max(line.tag_delays()) <= 20) == (True, True)
    without = line_of(tmp_path, {**FLUSH, "close_hours": False}, KBQ_WAREHOUSE="iceberg:lake")
    assert max(without.tag_delays()) > 30


def test_the_data_clock_needs_one_read_an_hour(tmp_path: Path) -> None:
    line = line_of(tmp_path, {**FLUSH, "max_wait_seconds": 86_400}, KBQ_WAREHOUSE="iceberg:lake")
    assert (len(line.tag_delays()), max(line.tag_delays()) <= 20) == (HOURS - 1, True)
    assert line.reads == 1 + HOURS


@pytest.mark.parametrize(("minute", "most"), thinned([(20, 600 // 20), (14, 600 // 5)]))
def test_a_data_clock_that_stands_still_holds_nothing_back(minute: int, most: int) -> None:
    """A topic whose records all have one business time, for hours: they wait as long as they may by age, no longer.
    An hour that is expected to end soon and never does costs reads, and no more than without waiting."""
    bench = Replay(settings=TIMED.with_options(**FLUSH))
    waited, reads, oldest = [0], 0, 0
    for now in range(300, 900):
        bench.at(now).tell(_timed(minute))
        if now % 5 == 0 and bench.extract().totals.records:
            waited, reads, oldest = [*waited, now - (oldest or now)], reads + 1, now + 1
    assert max(waited) <= 25
    assert reads <= most


@pytest.mark.parametrize("quiet", ["0", None])
def test_with_the_defaults_of_bigquery_rows_take_less_than_half_an_hour(
    tmp_path: Path, quiet: str | None
) -> None:
    """A topic with few records waits for more of them on top, by default."""
    place = {"KBQ_WAREHOUSE": "bigquery://my-project?location=EU", "KBQ_STAGING": "gs://my-bucket/staging"}
    line = line_of(tmp_path, **place, **({"KBQ_QUIET_SECONDS": quiet} if quiet else {}))
    assert max(line.latencies()) <= (20 if quiet else 30)


def test_the_fastest_cadence_within_the_quotas_shows_a_row_within_ten_minutes(tmp_path: Path) -> None:
    line = line_of(tmp_path, KBQ_EXTRACT_SECONDS="60", KBQ_LOAD_SECONDS="120")
    assert max(line.latencies()) <= 10
    assert line.loads * 24 // HOURS <= LoadLimits().jobs_per_day // 2  # KBQ spends half without pauses
