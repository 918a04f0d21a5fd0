"""Metrics with the names of Kafka BigQuery Express, so its dashboards and alerts keep working (docs/monitoring.md).

Its counters are in the memory of its processes. These are computed from state, so they outlive short runs and never
decrease.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import reduce
from operator import add

from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.observation.run_totals import CLEANING, EXTRACTION, LOADING
from kbq_assets.core.protocol.commits import Commit
from kbq_assets.core.protocol.totals import BATCH_ROWS, LATENCY_SECONDS, Histogram
from kbq_assets.extras.metrics.families import COUNTER, GAUGE, Family, histogram, labelled, single
from kbq_assets.extras.metrics.observe import StateReading
from kbq_assets.pipelines.loading.view import LoadView
from kbq_assets.pipelines.protocol.state import Versioned


def kbe_families(state: StateReading) -> Iterator[Family]:
    """All of Kafka BigQuery Express's metrics."""
    yield from _gcs_writer(state)
    yield from _bq_writer(state)


def table_states(view: LoadView) -> list[TableState]:
    return [found.value for found in view.states.values() if isinstance(found, Versioned)]


def merged(commits: Iterable[Commit], of: Callable[[Commit], Histogram]) -> Histogram:
    return reduce(add, map(of, commits), Histogram())


def _gcs_writer(state: StateReading) -> Iterator[Family]:
    commits, runs = state.view.commits, state.totals
    closed = sum(commit.published.files for commit in commits)
    opened = closed + runs[EXTRACTION].lost_files
    consumed = sum(commit.totals.records for commit in commits)
    yield single("gcswriter_filecount", COUNTER, "Number of Avro files opened", opened)
    yield single("gcswriter_closedfilecount", COUNTER, "Number of Avro files closed and published", closed)
    yield single(
        "gcswriter_avrofilesdeletedcounter",
        COUNTER,
        "Number of Avro files deleted because no published window has them",
        runs[CLEANING].orphans,
    )
    yield single("gcswriter_consumedmessages", COUNTER, "Number of messages read from Kafka", consumed)
    yield labelled(
        "gcswriter_bytes_written",
        COUNTER,
        "Bytes of Avro files written to the staging area, per dataset, before compression",
        "dataset",
        _bytes_per_dataset(commits),
    )
    yield from _windows(commits)


def _bytes_per_dataset(commits: Iterable[Commit]) -> dict[str, float]:
    sizes: Counter[str] = Counter()
    for commit in commits:
        sizes.update(commit.published.bytes)
    return {dataset: float(size) for dataset, size in sorted(sizes.items())}


def _windows(commits: Collection[Commit]) -> Iterator[Family]:
    yield histogram(
        "gcswriter_publishbatchsize",
        "Rows per published window",
        BATCH_ROWS,
        [({}, merged(commits, lambda commit: commit.published.rows))],
    )
    yield histogram(
        "gcswriter_latency",
        "Seconds from a window's first message to its publication",
        LATENCY_SECONDS,
        [({}, merged(commits, lambda commit: commit.published.latency))],
    )


def _bq_writer(state: StateReading) -> Iterator[Family]:
    tables, runs = table_states(state.view), state.totals
    deleted = sum(table.jobs.ended.files for table in tables) + sum(
        runs[kind].done_files for kind in (LOADING, CLEANING)
    )
    submitted, failed = (
        sum(table.sequence for table in tables),
        sum(table.jobs.ended.failed for table in tables),
    )
    yield single("bqwriter_submittedjobstobq", COUNTER, "Number of load jobs submitted", submitted)
    yield single("bqwriter_failed_bqjobs", COUNTER, "Number of load jobs that failed", failed)
    running = sum(table.in_flight is not None for table in tables)
    yield single("bqwriter_bqjobs_count", GAUGE, "Number of running load jobs", running)
    yield single(
        "bqwriter_stagingfiles",
        GAUGE,
        "Number of files in the staging area, both .avro and .done files",
        state.staged_files + state.done_files,
    )
    yield single(
        "bqwriter_stagingfilesdeleted",
        COUNTER,
        "Number of loaded files deleted from the staging area, both .avro and .done files",
        deleted,
    )
