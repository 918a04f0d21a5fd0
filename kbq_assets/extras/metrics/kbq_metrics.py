"""Metrics with KBQ's own names: backlogs, problems, cost, runs (docs/monitoring.md)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from kbq_assets.core.loading.batches import LoadLimits
from kbq_assets.core.loading.mismatches import jobs_of
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.observation.arrivals import Arrivals
from kbq_assets.core.observation.run_totals import EXTRACTION, KINDS, RunTotals, WorkerUse, skew
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.protocol.totals import READY_SECONDS, Histogram
from kbq_assets.extras.metrics.express_metrics import merged, table_states
from kbq_assets.extras.metrics.families import (
    COUNTER,
    GAUGE,
    MAX_LABEL_VALUES,
    Family,
    Sample,
    bounded,
    histogram,
    labelled,
    single,
)
from kbq_assets.extras.metrics.observe import BrokerReading, StateReading
from kbq_assets.pipelines.backup.status import BackupsStatus
from kbq_assets.pipelines.loading.load import LoadPlan
from kbq_assets.pipelines.loading.view import LoadView
from kbq_assets.pipelines.observation.checks import waiting_files
from kbq_assets.pipelines.observation.status import Status
from kbq_assets.pipelines.protocol.state import Versioned

#: Maximum number of workers that are shown, the busiest first.
_MAX_WORKERS = 64


@dataclass(frozen=True)
class Measured:
    """The readings behind the metrics.

    ``planned`` is the plan of a load that starts now. ``jobs_per_day`` is a table's quota, 0 for none. ``by_partition``
    labels lag by partition instead of topic. Without ``broker``, there is no lag.
    """

    state: StateReading
    status: Status
    planned: LoadPlan
    broker: BrokerReading | None = None
    jobs_per_day: int = 0
    by_partition: bool = False


def kbq_families(measured: Measured) -> Iterator[Family]:
    view = measured.state.view
    yield from _counts(view)
    yield from _lag(measured)
    yield from _waiting(measured.status)
    yield from _backups(measured.status.backups)
    yield from _tables(measured)
    yield _ready(view)
    yield from _runs(measured.state.totals)
    yield from _costs(measured.state.totals[EXTRACTION])
    yield from _running(measured.state)


def _counts(view: LoadView) -> Iterator[Family]:
    totals: dict[str, Counts] = defaultdict(Counts)
    published: dict[str, float] = {}
    for commit in view.commits:
        totals[commit.topic] += commit.totals
        at = commit.published.last_ms / 1000
        published[commit.topic] = max(published.get(commit.topic, 0.0), at)
    for name, text, attribute in (
        ("kbq_records_total", "Records read from Kafka and accounted for", "records"),
        ("kbq_error_rows_total", "Records that became rows of error tables", "errors"),
        ("kbq_skipped_records_total", "Records skipped by a policy", "skipped"),
        (
            "kbq_event_time_fallbacks_total",
            "Rows that use the Kafka time because they have no usable business time",
            "event_time_fallbacks",
        ),
        (
            "kbq_dropped_values_total",
            "Values of JSON documents dropped by the rules for personal data",
            "dropped_values",
        ),
        (
            "kbq_lost_positions_total",
            "Positions lost because Kafka deleted their records before KBQ read them",
            "lost",
        ),
    ):
        values = {topic: float(getattr(counts, attribute)) for topic, counts in totals.items()}
        yield labelled(name, COUNTER, text, "topic", bounded(values))
    yield labelled(
        "kbq_topic_last_publish_timestamp_seconds",
        GAUGE,
        "Time of the topic's last publication, in seconds since 1970; 0 if unknown",
        "topic",
        bounded(published, max),
    )


def _lag(measured: Measured) -> Iterator[Family]:
    broker, positions = measured.broker, measured.state.positions
    if broker is None:
        return
    # A partition without a position is new, so all of its records are unread.
    records = {tp: max(0, at.latest - positions.get(tp, at.earliest)) for tp, at in broker.offsets.items()}
    ages = {tp: broker.ages.get(tp, 0) if count else 0 for tp, count in records.items()}
    per = "partition" if measured.by_partition else "topic"
    yield _by_topic("kbq_lag_records", f"Unread positions on the broker, per {per}", records, measured)
    yield _by_topic(
        "kbq_lag_seconds", f"Age of the oldest unread record on the broker, per {per}; a lower bound",
        ages, measured, worst=True,
    )  # fmt: skip
    stopped = {stop.topic_partition for stop in measured.status.stops}
    running = [n for tp, n in records.items() if stopped.isdisjoint((tp, TopicPartition(tp.topic, -1)))]
    text = "Unread positions on the broker, except those of stopped partitions and topics"
    yield single("kbq_extractable_records", GAUGE, text, sum(running))


def _by_topic(
    name: str,
    text: str,
    values: Mapping[TopicPartition, int],
    measured: Measured,
    *,
    worst: bool = False,
) -> Family:
    join = max if worst else sum
    if measured.by_partition and len(values) <= MAX_LABEL_VALUES:
        samples = [
            Sample(v, {"topic": tp.topic, "partition": str(tp.partition)}) for tp, v in sorted(values.items())
        ]
        return Family(name, GAUGE, text, tuple(samples))
    topics: dict[str, list[int]] = defaultdict(list)
    for tp, value in values.items():
        topics[tp.topic].append(value)
    joined = {topic: float(join(found)) for topic, found in topics.items()}
    return labelled(name, GAUGE, text, "topic", bounded(joined, join))


def _waiting(status: Status) -> Iterator[Family]:
    stopped = Counter(stop.reason for stop in status.stops)
    yield labelled(
        "kbq_stopped_partitions", GAUGE, "Partitions and topics that wait for an operator", "reason", stopped
    )
    yield single("kbq_stopped", GAUGE, "Sum of kbq_stopped_partitions over all reasons", stopped.total())
    states = Counter(table.state for table in status.tables)
    for name, state, text in (
        ("kbq_parked_tables", "parked", "Tables that KBQ does not load until an operator resumes them"),
        ("kbq_held_tables", "blocked", "Tables that a failed check blocks"),
        ("kbq_failed_tables", "failed", "Tables whose state cannot be read"),
    ):
        yield single(name, GAUGE, text, states[state])
    parked = {str(table.table): 1.0 for table in status.tables if table.state == "parked"}
    yield labelled("kbq_table_parked", GAUGE, "1 for each parked table", "table", bounded(parked, max))
    yield single(
        "kbq_new_partitions", GAUGE, "Partitions that no extraction has seen yet", status.new_partitions
    )


def _backups(backups: BackupsStatus) -> Iterator[Family]:
    lags: Counter[str] = Counter()
    for each in backups.partitions:
        lags[each.topic_partition.topic] += each.lag
    text = "Positions on the broker that the backup does not have"
    yield labelled("kbq_backup_lag_records", GAUGE, text, "topic", bounded(lags))
    stopped = Counter(stop.reason for stop in backups.stops)
    text = "Backups of partitions and topics that wait for an operator"
    yield labelled("kbq_stopped_backups", GAUGE, text, "reason", stopped)


def _tables(measured: Measured) -> Iterator[Family]:
    for name, kind, text, attribute in (
        ("kbq_loaded_rows_total", COUNTER, "Rows loaded", "loaded_rows"),
        ("kbq_backlog_rows", GAUGE, "Committed rows that are not loaded yet", "pending_rows"),
        ("kbq_backlog_files", GAUGE, "Committed files that are not loaded yet", "pending_files"),
    ):
        values = {str(table.table): float(getattr(table, attribute)) for table in measured.status.tables}
        yield labelled(name, kind, text, "table", bounded(values))
    text = "Rows that a load would submit now, and pending rows of tables with a job in flight"
    yield single("kbq_loadable_rows", GAUGE, text, _loadable_rows(measured))
    yield from _states(measured)


def _loadable_rows(measured: Measured) -> int:
    """Rows for which only a load run is missing. Rows that wait on purpose are in no planned batch."""
    found = {t: v.value for t, v in measured.state.view.states.items() if isinstance(v, Versioned)}
    running = {t for t, state in found.items() if state.in_flight or state.definition.replacing}
    rows = {batch.table: batch.rows for batch in measured.planned.batches}
    rows |= {t.table: t.pending_rows for t in measured.status.tables if t.table in running}
    return sum(count for table, count in rows.items() if table not in found or not found[table].parked)


def _states(measured: Measured) -> Iterator[Family]:
    state = measured.state
    found = {str(t): v.value for t, v in state.view.states.items() if isinstance(v, Versioned)}
    yield labelled(
        "kbq_oldest_window_age_seconds",
        GAUGE,
        "Age of the oldest committed record that is not loaded yet; 0 if there is none",
        "table",
        bounded(_window_ages(state), max),
    )
    yield labelled(
        "kbq_table_last_load_timestamp_seconds",
        GAUGE,
        "Time at which KBQ last recorded a job as loaded, in seconds since 1970; 0 if unknown",
        "table",
        bounded({table: value.jobs.ended.last_ms / 1000 for table, value in found.items()}, max),
    )
    yield from _hours(found)
    yield labelled(
        "kbq_quarantined_files",
        GAUGE,
        "Files in quarantine that no operator has decided about, because the warehouse rejected them",
        "table",
        bounded({table: float(len(v.new_quarantined)) for table, v in found.items()}),
    )
    yield labelled(
        "kbq_row_mismatches",
        GAUGE,
        "Jobs that loaded a different number of rows than their files hold, until an operator accepts it",
        "table",
        bounded({table: float(jobs_of(v.new_mismatches)) for table, v in found.items()}),
    )
    if measured.jobs_per_day:
        yield from _quotas(found, state.now_ms)
        yield single(
            "kbq_table_jobs_limit",
            GAUGE,
            "Maximum number of load jobs per table and day",
            measured.jobs_per_day,
        )


def _hours(found: Mapping[str, TableState]) -> Iterator[Family]:
    yield labelled(
        "kbq_table_complete_until_timestamp_seconds",
        GAUGE,
        "Time up to which the table is complete by business time, in seconds since 1970; 0 if unknown",
        "table",
        bounded({table: float(value.hours.until * 3600) for table, value in found.items()}, min),
    )
    yield labelled(
        "kbq_late_rows_total",
        COUNTER,
        "Rows loaded into hours that were already complete",
        "table",
        bounded({table: float(value.hours.late_rows) for table, value in found.items()}),
    )


def _quotas(found: Mapping[str, TableState], now_ms: int) -> Iterator[Family]:
    """Use of BigQuery's quotas, including those of partitions."""
    limits = LoadLimits()
    jobs = {table: value.jobs.submitted for table, value in found.items()}
    for name, text, counts in (
        ("jobs_used", "Load jobs of the last day", [each.used(now_ms) for each in jobs.values()]),
        ("changes_used", "Changes of partitions in the last day", [j.changed(now_ms) for j in jobs.values()]),
        (
            "partitions",
            "Partitions that loads of this release gave the table, also expired ones",
            [each.partitions for each in jobs.values()],
        ),
    ):
        values = dict(zip(jobs, map(float, counts), strict=True))
        yield labelled(f"kbq_table_{name}", GAUGE, text, "table", bounded(values, max))
    text = "Maximum number of changes of partitions per table and day"
    yield single("kbq_table_changes_limit", GAUGE, text, limits.changes_per_day)
    yield single(
        "kbq_table_partitions_limit", GAUGE, "Maximum number of partitions per table", limits.partitions
    )


def _window_ages(state: StateReading) -> dict[str, float]:
    ages = {}
    for table, files in waiting_files(state.view).items():
        oldest = min((f.oldest_ms for f in files if f.oldest_ms > 0), default=0)
        ages[str(table)] = max(0.0, (state.now_ms - oldest) / 1000) if oldest else 0.0
    return ages


def _ready(view: LoadView) -> Family:
    staged = merged(view.commits, lambda commit: commit.published.staged)
    loaded = sum((table.jobs.ended.loaded for table in table_states(view)), Histogram())
    return histogram(
        "kbq_log_to_ready_seconds",
        "staged: age of a window's oldest record at its publication; loaded: age of a job's oldest record when KBQ"
        " recorded the job as loaded",
        READY_SECONDS,
        [({"stage": "staged"}, staged), ({"stage": "loaded"}, loaded)],
    )


def _runs(totals: Mapping[str, RunTotals]) -> Iterator[Family]:
    for name, kind, text, attribute, scale in (
        ("kbq_runs_total", COUNTER, "Runs that ended", "runs", 1),
        ("kbq_successful_runs_total", COUNTER, "Runs in which nothing failed", "succeeded", 1),
        ("kbq_run_seconds_total", COUNTER, "Total duration of runs in seconds", "seconds", 1),
        (
            "kbq_last_success_timestamp_seconds",
            GAUGE,
            "End of the last run in which nothing failed, in seconds since 1970; 0 if there was none",
            "succeeded_ms",
            1000,
        ),
    ):
        values = {run: getattr(totals[run], attribute) / scale for run in KINDS}
        yield labelled(name, kind, text, "kind", values)
    yield single(
        "kbq_advisory_failures_total",
        COUNTER,
        "Failed commits of positions to consumer groups",
        totals[EXTRACTION].advisory_failures,
    )


def _costs(extraction: RunTotals) -> Iterator[Family]:
    """Costs per topic with its owner. Topics beyond the maximum are omitted, because their sum would have no owner."""
    topics = sorted(extraction.costs.items())[:MAX_LABEL_VALUES]
    for name, text, attribute in (
        ("kbq_cost_total", "Cost of reading the topic, in processor seconds", "cost"),
        ("kbq_core_seconds_total", "Processor seconds of the topic's tasks", "core_seconds"),
    ):
        samples = tuple(
            Sample(
                getattr(cost, attribute),
                {"topic": topic, "owner": cost.owner, "cost_center": cost.cost_center},
            )
            for topic, cost in topics
        )
        yield Family(name, COUNTER, text, samples)


def _running(state: StateReading) -> Iterator[Family]:
    """Live runs; if there are none, the workers of the last run."""
    signs = state.signs
    workers = [worker for sign in signs for worker in sign.workers] or state.totals[EXTRACTION].workers
    yield single(
        "kbq_running_extractions", GAUGE, "Extractions with a heartbeat in the last minute", len(signs)
    )
    yield single(
        "kbq_running_units", GAUGE, "Units that tasks are reading", sum(sign.units for sign in signs)
    )
    yield _workers("kbq_worker_memory_bytes", "Peak memory of a worker", workers, "memory_bytes")
    yield _workers("kbq_worker_busy_seconds", "Busy seconds of a worker", workers, "seconds")
    text = "Busy time of the busiest worker divided by the average; 1 is even"
    yield single("kbq_worker_skew_ratio", GAUGE, text, round(skew(workers), 3))


def _workers(name: str, text: str, workers: Iterable[WorkerUse], attribute: str) -> Family:
    busiest = sorted(workers, key=lambda worker: worker.seconds, reverse=True)[:_MAX_WORKERS]
    values = {str(number): float(getattr(worker, attribute)) for number, worker in enumerate(busiest, 1)}
    return labelled(name, GAUGE, text, "worker", values)


def arrival_families(found: Arrivals, now_ms: int) -> Iterator[Family]:
    """Numbers of failed, parked and waiting batches, and the age of the oldest waiting one."""
    for name, text, attribute in (
        ("kbq_failed_file_batches", "Batches of files whose job failed", "failed"),
        (
            "kbq_parked_file_batches",
            "Batches of files that their configuration blocks or a rule set aside",
            "parked",
        ),
        ("kbq_waiting_file_batches", "Batches of files that wait to be applied", "waiting"),
    ):
        values = {each.prefix: float(getattr(each, attribute)) for each in found.prefixes}
        yield labelled(name, GAUGE, text, "table_prefix", bounded(values))
    ages = {each.prefix: max(0, now_ms - each.oldest_ms) / 1000 for each in found.prefixes if each.oldest_ms}
    text = "Seconds since the upload of the oldest batch of files that waits to be applied"
    yield labelled("kbq_oldest_file_batch_age_seconds", GAUGE, text, "table_prefix", bounded(ages, max))
