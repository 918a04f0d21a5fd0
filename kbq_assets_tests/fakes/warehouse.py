"""A warehouse in memory whose calls can fail in every way the port allows, and whose jobs run on request.

A job is inserted as PENDING. With ``auto_run`` it runs during the insert. Otherwise the simulator runs it with
`run_pending` or `step`, and may delete its files, crash its loader or insert other jobs before that. Rows are
kept as `Row`, in the order in which they became visible (``log``).

Faults: ``faults`` is asked before each call made through a view that names its process, and returns an `Outcome`.
A late call (`Outcome.LATE`, `Outcome.CRASH_LATE`) waits in ``late`` until `deliver_late` applies it, if ever.
"""

from __future__ import annotations

import functools
import io
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any, BinaryIO, NamedTuple, Protocol, TypeVar

import fastavro

from kbq_assets.core.errors import (
    JobAlreadyExists,
    JobFailed,
    KbqError,
    NotFound,
    Unavailable,
    UnknownOutcome,
    WrongOptions,
)
from kbq_assets.core.errors_replay.intents import ERRORS_JOB
from kbq_assets.core.loading.batches import LoadLimits
from kbq_assets.core.loading.table_notes import StoredTable, TableNotes, has_own_columns_alone
from kbq_assets.core.loading.tables import Column, TableOptions, plan_table_change
from kbq_assets.core.protocol.names import COMPLETENESS_TABLE, TableReference
from kbq_assets.core.replay.model import REPLACEMENT
from kbq_assets.core.statements.side_tables import SCRATCH_PREFIX
from kbq_assets.core.topics.error_tables import ERROR_TABLE, is_error_table
from kbq_assets.ports.erasure import ErasureTables
from kbq_assets.ports.errors_replay import ErrorReplays, ErrorReplaySteps
from kbq_assets.ports.statements import StatementJob, Statements
from kbq_assets.ports.warehouse import (
    EVERYTHING,
    Comparable,
    DifferingRow,
    DoubledOffset,
    ErrorQuery,
    ErrorRow,
    JobError,
    JobStatus,
    KafkaRange,
    LoadJob,
    OffsetSummary,
    RowComparison,
)
from kbq_assets_tests.fakes.erasure import FakeErasureTables
from kbq_assets_tests.fakes.errors_replay import FakeErrorReplays, FakeErrorReplaySteps
from kbq_assets_tests.fakes.faults import Call, Crash, Outcome
from kbq_assets_tests.fakes.statements import FakeStatements, StatementsView

Result = TypeVar("Result")

TRANSIENT = JobError("backendError", "the job was interrupted by the warehouse", transient=True)
BAD_FILE = "the file cannot be loaded: "


class Row(NamedTuple):
    """The identity of one loaded record."""

    epoch: int
    topic: str
    partition: int
    offset: int

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Row:
        """The identity of a record with Kafka's columns."""
        return cls(
            *(record[f"_{name}"] for name in ("kbq_epoch", "kafka_topic", "kafka_partition", "kafka_offset"))
        )


class Reader(Protocol):
    """What the fake needs of an object store."""

    def open_read(self, path: str) -> BinaryIO:
        """Stream an object. Raises NotFound."""


@dataclass
class FakeJob:
    """A job in the fake. Without ``load``, ``statement`` and ``effect``, it is a burned id."""

    status: JobStatus
    load: LoadJob | None
    statement: StatementJob | None = None
    #: what a replacement does when it runs; returns the rows that it added, or why it fails
    effect: Callable[[], int | JobError] | None = None


@dataclass
class FakeTable:
    """A table: its columns, how it was created, its rows in the order they became visible, their event dates."""

    columns: tuple[Column, ...]
    options: TableOptions
    description: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    dates: dict[Row, date] = field(default_factory=dict)
    #: rows that replays added; of an error table: those that were replayed
    replayed: set[Row] = field(default_factory=set)
    expires: bool = False
    partition_expiry_ms: int = 0


@dataclass
class LateCall:
    """A call that was sent and has not arrived yet."""

    call: Call
    apply: Callable[[], object]


class FakeWarehouse:
    """The `Warehouse` port in memory.

    Jobs read their files with ``store`` and ``path_of`` (source URI to the store's path). Loads of files in
    ``bad_paths`` always fail. ``job_errors`` is asked when a job runs, and may end it with an error. ``now_ms`` is when
    jobs are inserted. ``hide_jobs`` is how many calls of `get_job` do not find a job, and ``refuse_jobs`` how many
    inserts are refused. ``keep_records`` keeps whole rows, not only their identity. Without ``one_transaction``, each
    table of a replacement, or of a replay of error rows, has its own job, which runs at once, as in a lake.
    """

    session = nullcontext

    def __init__(
        self,
        store: Reader,
        path_of: Callable[[str], str],
        *,
        auto_run: bool = True,
        keep_records: bool = False,
        faults: Callable[[Call], Outcome] | None = None,
        one_transaction: bool = True,
    ) -> None:
        self.project = "local"
        self.location = "local"
        self.limits = LoadLimits()
        self.verifies = False
        self.compares = True
        self.auto_run = auto_run
        self.keep_records = keep_records
        self.faults = faults
        self.bad_paths: set[str] = set()
        self.job_errors: Callable[[LoadJob], JobError | None] | None = None
        self.now_ms: Callable[[], int] = lambda: 0
        #: what replays are billed for each row
        self.bytes_billed_per_row = 0
        self.one_transaction = one_transaction
        #: why tables can be neither created nor changed
        self.refused_tables: dict[TableReference, str] = {}
        #: what probes return or raise, whatever the files
        self.probe_result: JobError | KbqError | None = None
        self.hide_jobs = 0
        self.refuse_jobs = 0
        self.late: list[LateCall] = []
        self.log: list[tuple[TableReference, Row]] = []
        #: rows that erasures deleted; the log lacks them
        self.erased: list[tuple[TableReference, Row]] = []
        #: how long the log was when each job had ended
        self.job_ends: list[int] = []
        self.stored: dict[TableReference, FakeTable] = {}
        self.jobs: dict[tuple[str, str, str], FakeJob] = {}
        self.statements = FakeStatements(self)
        self.errors_replay: ErrorReplays | ErrorReplaySteps | None = (
            FakeErrorReplays(self) if one_transaction else FakeErrorReplaySteps(self)
        )
        self.erasures: ErasureTables | None = FakeErasureTables(self)
        self._store = store
        self._path_of = path_of

    # The simulator's side

    def view(self, process: str) -> WarehouseView:
        """The warehouse as one process sees it: its calls carry the process's name, and can fail."""
        return WarehouseView(self, process)

    @property
    def pending(self) -> tuple[str, ...]:
        """Ids of the jobs that have not run, in the order of insertion."""
        return tuple(job.status.job_id for job in self.jobs.values() if job.status.state != "DONE")

    def step(self) -> str | None:
        """Run the oldest pending job, and return its id; None if there is none."""
        if not self.pending:
            return None
        job_id = self.pending[0]
        self.run_pending(job_id)
        return job_id

    def run_pending(self, job_id: str, error: JobError | None = None) -> JobStatus:
        """Complete a pending job: with ``error``, or by loading its files, all or nothing."""
        (job,) = (
            job for job in self.jobs.values() if job.status.job_id == job_id and job.status.state != "DONE"
        )
        return self._run(job, error)

    def _run(self, job: FakeJob, error: JobError | None) -> JobStatus:
        loaded: list[dict[str, Any]] = []
        if job.statement is not None:
            error = error or self.statements.run(job.statement)
        if job.load is not None and error is None and self.job_errors is not None:
            error = self.job_errors(job.load)
        if job.load is not None and error is None:
            loaded, error = self.decoded(job.load)
        if job.load is not None and error is None:
            if job.load.replace:
                self.stored[job.load.table].rows.clear()
                self.stored[job.load.table].records.clear()
            self.append(job.load.table, loaded)
        added = len(loaded)
        if job.effect is not None and error is None:
            done = job.effect()
            added, error = (0, done) if isinstance(done, JobError) else (done, None)
        job.status = replace(
            job.status,
            state="DONE",
            output_rows=0 if error else added,
            error=error,
        )
        return job.status

    def deliver_late(self, index: int = 0) -> KbqError | None:
        """Apply a late call now. Returns its error, which its caller does not see any more."""
        try:
            self.late.pop(index).apply()
        except KbqError as error:
            return error
        return None

    def rows(self, table: TableReference) -> tuple[Row, ...]:
        """The rows of a table in the order they became visible; () when it does not exist."""
        return tuple(self.stored[table].rows) if table in self.stored else ()

    def records(self, table: TableReference) -> tuple[Mapping[str, Any], ...]:
        """Whole rows, where ``keep_records`` is set."""
        return tuple(self.stored[table].records) if table in self.stored else ()

    def duplicates(self) -> Mapping[tuple[TableReference, Row], int]:
        """Rows that are visible more than once, with their count."""
        return {key: count for key, count in Counter(self.log).items() if count > 1}

    def row_of(self, record: Mapping[str, Any]) -> Row:
        """The identity of a record."""
        return Row.of(record)

    # The port

    def insert_job(self, job: LoadJob) -> None:
        if self.refuse_jobs:
            self.refuse_jobs -= 1
            raise JobFailed(f"job {job.job_id} is refused", next_step="see the warehouse")
        self._insert(
            (job.project, job.location, job.job_id),
            JobStatus(job.job_id, "PENDING", job.source_uris),
            job,
        )

    def burn_job(self, job_id: str, project: str, location: str, table: TableReference | None = None) -> None:
        self._insert((project, location, self._name(job_id, table)), JobStatus(job_id, "PENDING", ()), None)

    def get_job(
        self, job_id: str, project: str, location: str, table: TableReference | None = None
    ) -> JobStatus | None:
        job = self.jobs.get((project, location, self._name(job_id, table)))
        if job and self.hide_jobs:
            self.hide_jobs -= 1
            return None
        return job.status if job else None

    def cancel_job(
        self, job_id: str, project: str, location: str, table: TableReference | None = None
    ) -> None:
        if job_id in self.pending:
            self.run_pending(job_id, JobError("stopped", "the job was cancelled", transient=True))

    def probe(self, job: LoadJob) -> JobError | None:
        if job.table not in self.stored:
            return JobError("notFound", f"table {job.table} does not exist", transient=True)
        if isinstance(self.probe_result, KbqError):
            raise self.probe_result
        return self.probe_result or self.decoded(job)[1]

    def compare(self, job: LoadJob, limit: int = 10, which: Comparable = EVERYTHING) -> RowComparison:
        if job.table not in self.stored:
            return RowComparison(0)
        records, error = self.decoded(job)
        if error:
            raise JobFailed(f"the files do not load: {error.message}")
        stored: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
        for kept in self.records(job.table):
            stored.setdefault(_place(kept), []).append(kept)
        pairs = [
            (record, kept)
            for record in records
            for kept in stored.get(_place(record), ())
            if which.since <= kept["_kbq_epoch"] <= record["_kbq_epoch"]
        ]
        total = len(pairs)
        pairs = [(r, kept) for r, kept in pairs if all(r.get(n) == kept.get(n) for n in which.same)]
        found = [
            DifferingRow(
                KafkaRange(kept["_kafka_topic"], kept["_kafka_partition"], kept["_kbq_epoch"]),
                kept["_kafka_offset"],
                tuple(n for n in which.columns(kept) if kept[n] != record.get(n)),
            )
            for record, kept in pairs
        ]
        differing = tuple([each for each in found if each.columns][:limit])
        return RowComparison(len(pairs), differing, total - len(pairs))

    def columns(self, table: TableReference) -> tuple[Column, ...] | None:
        return self.stored[table].columns if table in self.stored else None

    def find_table(self, table: TableReference) -> StoredTable | None:
        if (found := self.stored.get(table)) is None:
            return None
        return StoredTable(
            found.columns,
            found.description,
            dict(found.labels),
            len(found.rows),
            found.expires,
            found.partition_expiry_ms,
        )

    def create_table(self, table: TableReference, columns: Iterable[Column], options: TableOptions) -> None:
        if table not in self.stored:
            columns = self._accepted(table, columns)
            labels = {**options.labels, **options.notes.labels}
            self.stored[table] = FakeTable(tuple(columns), options, options.notes.description, labels)

    def update_columns(
        self, table: TableReference, columns: Iterable[Column], notes: TableNotes | None = None
    ) -> None:
        if table not in self.stored:
            raise NotFound(f"table {table} does not exist", next_step="create it first")
        found, notes = self.stored[table], notes or TableNotes()
        before, wanted = len(found.columns), tuple(columns)
        if not has_own_columns_alone(found.columns):
            before = 0
        updated = self._accepted(table, _updated(found.columns, wanted))
        found.columns = updated[before:] + updated[:before]
        found.description = notes.description or found.description
        found.labels |= notes.labels

    def tables(self) -> tuple[TableReference, ...]:
        wanted = {"_kbq_epoch", "_kafka_topic", "_kafka_partition", "_kafka_offset"}
        return tuple(
            sorted(
                t
                for t, content in self.stored.items()
                if wanted <= {c.name for c in content.columns} and not t.table.startswith(SCRATCH_PREFIX)
            )
        )

    def positions(
        self, table: TableReference, range_: KafkaRange, offset: int | None = None
    ) -> Mapping[int, int]:
        wanted = (range_.epoch, range_.topic, range_.partition)
        found = (
            row.offset for row in self._counting(table) if (row.epoch, row.topic, row.partition) == wanted
        )
        return Counter(each for each in found if offset in (None, each))

    def kafka_ranges(self, table: TableReference) -> Mapping[KafkaRange, int]:
        return Counter(KafkaRange(row.topic, row.partition, row.epoch) for row in self._counting(table))

    def kafka_summary(
        self, table: TableReference, since: date | None = None
    ) -> Mapping[KafkaRange, OffsetSummary]:
        offsets: dict[KafkaRange, list[int]] = defaultdict(list)
        replays = set() if is_error_table(table) or table not in self.stored else self.stored[table].replayed
        for row in self._rows_since(table, since):
            if row in replays:
                continue
            offsets[KafkaRange(row.topic, row.partition, row.epoch)].append(row.offset)
        return {r: OffsetSummary(len(o), len(set(o)), min(o), max(o)) for r, o in offsets.items()}

    def doubled_offsets(
        self, tables: Sequence[TableReference], since: date | None = None, limit: int = 10
    ) -> tuple[DoubledOffset, ...]:
        where: dict[Row, list[TableReference]] = defaultdict(list)
        for table in sorted(set(tables)):
            counting = set(self._counting(table))
            for row in self._rows_since(table, since):
                if row in counting:
                    where[row].append(table)
        seen: Counter[KafkaRange] = Counter()
        found = []
        for row in sorted((r for r in where if len(where[r]) > 1), key=lambda r: (*r[1:3], r[0], r[3])):
            range_ = KafkaRange(row.topic, row.partition, row.epoch)
            seen[range_] += 1
            if seen[range_] <= limit:
                found.append(DoubledOffset(range_, row.offset, tuple(where[row])))
        return tuple(found)

    def _counting(self, table: TableReference) -> list[Row]:
        """All rows but error rows that were replayed."""
        left_out = self.stored[table].replayed if is_error_table(table) and table in self.stored else set()
        return [row for row in self.rows(table) if row not in left_out]

    def _rows_since(self, table: TableReference, since: date | None) -> list[Row]:
        dates = self.stored[table].dates if table in self.stored else {}
        return [row for row in self.rows(table) if since is None or dates.get(row, date.min) >= since]

    def error_rows(self, table: TableReference, query: ErrorQuery) -> tuple[ErrorRow, ...]:
        rows = [
            _error_row(record, query.value_bytes)
            for record in self.records(table)
            if query.replayed or Row.of(record) not in self.stored[table].replayed
        ]
        chosen = [
            row
            for row in rows
            if query.topic in (None, row.topic)
            and query.partition in (None, row.partition)
            and query.offset in (None, row.offset)
            and query.epoch in (None, row.epoch)
            and query.reason in (None, row.reason)
            and row.offset >= (query.from_offset or 0)
        ]
        if query.from_offset is not None:
            return tuple(sorted(chosen, key=lambda row: row.offset)[: query.limit])
        chosen.sort(key=lambda row: (-row.timestamp_ms, -row.epoch, row.topic, row.partition, -row.offset))
        return tuple(chosen[: query.limit])

    def insert_statement(self, job: StatementJob) -> None:
        """Submit a statement (fakes/statements.py)."""
        price = self.statements.price
        status = JobStatus(job.job_id, "PENDING", ("(statement)",), statement=job.digest, bytes_billed=price)
        self._insert((job.project, job.location, job.job_id), status, None, job)

    def insert_replacement(
        self, status: JobStatus, table: TableReference, effect: Callable[[], int | JobError]
    ) -> None:
        """Submit a replacement of rows (fakes/replay.py)."""
        name = self._name(status.job_id, table)
        self._insert((self.project, self.location, name), status, None, effect=effect)

    def _name(self, job_id: str, table: TableReference | None) -> str:
        """The name of a job: in a lake, each table of a replacement, and of a replay of error rows, has one."""
        is_own = not self.one_transaction and job_id.startswith((REPLACEMENT, ERRORS_JOB))
        return f"{job_id} {table}" if is_own else job_id

    def is_replacement(self, job_id: str) -> bool:
        """Whether a job replaces rows."""
        return any(job.effect is not None for job in self.jobs.values() if job.status.job_id == job_id)

    def append_rows(self, table: TableReference, source: FakeTable) -> None:
        """Append the rows of another table."""
        target = self.stored[table]
        target.rows.extend(source.rows)
        target.records.extend(source.records)
        target.dates.update(source.dates)
        self.log.extend((table, row) for row in source.rows)

    def _insert(
        self,
        key: tuple[str, str, str],
        status: JobStatus,
        load: LoadJob | None,
        statement: StatementJob | None = None,
        effect: Callable[[], int | JobError] | None = None,
    ) -> None:
        job = FakeJob(replace(status, created_ms=self.now_ms()), load, statement, effect)
        if self.jobs.setdefault(key, job) is not job:
            raise JobAlreadyExists(
                f"job {status.job_id} exists", next_step="get the job and compare its files"
            )
        if key[2] != status.job_id:  # a lake's replacement of one table
            self._run(job, None)
        elif self.auto_run:
            self.run_pending(status.job_id)

    def decoded(self, job: LoadJob) -> tuple[list[dict[str, Any]], JobError | None]:
        table = self.stored.get(job.table)
        if table is None:
            return [], JobError("notFound", f"table {job.table} does not exist", transient=False)
        loaded: list[dict[str, Any]] = []
        schemas = set[str]()
        for uri in job.source_uris:
            try:
                schema, records = self._read(uri, table)
                schemas.add(schema)
                loaded.extend(records)
                if len(schemas) > 1 and not self.limits.mixes_schemas:
                    raise ValueError("its schema is not that of the other files")
            except NotFound:
                return [], JobError("notFound", f"{uri} does not exist", transient=False)
            except (ValueError, EOFError, KbqError) as error:
                return [], JobError("invalid", f"{BAD_FILE}{uri}: {error}", transient=False)
        return loaded, None

    def _read(self, uri: str, table: FakeTable) -> tuple[str, tuple[dict[str, Any], ...]]:
        path = self._path_of(uri)
        with self._store.open_read(path) as stream:
            data = stream.read()
        if path in self.bad_paths:
            raise ValueError("it is one of the bad files")
        schema, records = _decoded(data)
        if plan_table_change(schema, table.columns):
            raise ValueError("its schema does not fit the table's")
        return schema, records

    def _accepted(self, table: TableReference, columns: Iterable[Column]) -> tuple[Column, ...]:
        """The columns of a table that is to be created or changed. Raises WrongOptions."""
        columns = tuple(columns)
        if message := self.refused_tables.get(table) or _size_objection(columns):
            raise WrongOptions(f"table {table}: {message}", next_step="fix what the message names")
        return columns

    def append(self, table: TableReference, records: list[dict[str, Any]]) -> None:
        rows = [Row.of(r) for r in records if "_kafka_offset" in r]
        self.stored[table].rows.extend(rows)
        self.stored[table].dates.update(
            (row, r["event_date"]) for row, r in zip(rows, records, strict=False) if "event_date" in r
        )
        if not table.table.startswith(SCRATCH_PREFIX):  # a scratch table's rows do not count yet
            self.log.extend((table, row) for row in rows)
        self.job_ends.append(len(self.log))
        if self.keep_records or table.table in (ERROR_TABLE, COMPLETENESS_TABLE):
            self.stored[table].records.extend(records)


class WarehouseView:
    """One process's `Warehouse`: every call is announced to the fault plan first."""

    session = nullcontext

    def __init__(self, warehouse: FakeWarehouse, process: str) -> None:
        self._warehouse = warehouse
        self._process = process
        self.project = warehouse.project
        self.location = warehouse.location
        self.limits = warehouse.limits
        self.verifies = warehouse.verifies
        self.compares = warehouse.compares
        self.statements: Statements | None = StatementsView(warehouse.statements, self)
        self.errors_replay: ErrorReplays | ErrorReplaySteps | None = warehouse.errors_replay
        if isinstance(warehouse.errors_replay, ErrorReplaySteps):
            self.errors_replay = FakeErrorReplaySteps(warehouse, self)
        self.erasures: ErasureTables | None = FakeErasureTables(warehouse, self)

    def insert_job(self, job: LoadJob) -> None:
        self.write("insert_job", job.job_id, lambda: self._warehouse.insert_job(job))

    def burn_job(self, job_id: str, project: str, location: str, table: TableReference | None = None) -> None:
        self.write(
            "burn_job",
            job_id,
            lambda: self._warehouse.burn_job(job_id, project, location, table),
        )

    def get_job(
        self, job_id: str, project: str, location: str, table: TableReference | None = None
    ) -> JobStatus | None:
        return self.read(
            "get_job",
            job_id,
            lambda: self._warehouse.get_job(job_id, project, location, table),
        )

    def cancel_job(
        self, job_id: str, project: str, location: str, table: TableReference | None = None
    ) -> None:
        self.write("cancel_job", job_id, lambda: self._warehouse.cancel_job(job_id, project, location, table))

    def probe(self, job: LoadJob) -> JobError | None:
        return self.read("probe", str(job.table), lambda: self._warehouse.probe(job))

    def compare(self, job: LoadJob, limit: int = 10, which: Comparable = EVERYTHING) -> RowComparison:
        return self.read("compare", str(job.table), lambda: self._warehouse.compare(job, limit, which))

    def columns(self, table: TableReference) -> tuple[Column, ...] | None:
        return self.read("columns", str(table), lambda: self._warehouse.columns(table))

    def create_table(self, table: TableReference, columns: Iterable[Column], options: TableOptions) -> None:
        wanted = tuple(columns)
        self.write(
            "create_table",
            str(table),
            lambda: self._warehouse.create_table(table, wanted, options),
        )

    def find_table(self, table: TableReference) -> StoredTable | None:
        return self.read("find_table", str(table), lambda: self._warehouse.find_table(table))

    def update_columns(
        self, table: TableReference, columns: Iterable[Column], notes: TableNotes | None = None
    ) -> None:
        wanted = tuple(columns)
        self.write(
            "update_columns",
            str(table),
            lambda: self._warehouse.update_columns(table, wanted, notes),
        )

    def tables(self) -> tuple[TableReference, ...]:
        return self.read("tables", "", self._warehouse.tables)

    def positions(
        self, table: TableReference, range_: KafkaRange, offset: int | None = None
    ) -> Mapping[int, int]:
        return self.read("positions", str(table), lambda: self._warehouse.positions(table, range_, offset))

    def kafka_ranges(self, table: TableReference) -> Mapping[KafkaRange, int]:
        return self.read("kafka_ranges", str(table), lambda: self._warehouse.kafka_ranges(table))

    def kafka_summary(
        self, table: TableReference, since: date | None = None
    ) -> Mapping[KafkaRange, OffsetSummary]:
        return self.read("kafka_summary", str(table), lambda: self._warehouse.kafka_summary(table, since))

    def doubled_offsets(
        self, tables: Sequence[TableReference], since: date | None = None, limit: int = 10
    ) -> tuple[DoubledOffset, ...]:
        names = " ".join(map(str, tables))
        return self.read(
            "doubled_offsets", names, lambda: self._warehouse.doubled_offsets(tables, since, limit)
        )

    def error_rows(self, table: TableReference, query: ErrorQuery) -> tuple[ErrorRow, ...]:
        return self.read("error_rows", str(table), lambda: self._warehouse.error_rows(table, query))

    def _outcome(self, operation: str, target: str, writes: bool) -> tuple[Call, Outcome]:
        call = Call(self._process, operation, target, writes)
        faults = self._warehouse.faults
        return call, faults(call) if faults else Outcome.OK

    def read(self, operation: str, target: str, apply: Callable[[], Result]) -> Result:
        """A call that changes nothing: every outcome but OK is a crash or no answer."""
        _, outcome = self._outcome(operation, target, writes=False)
        if outcome in _CRASHES:
            raise Crash(f"{self._process} dies in {operation} {target}")
        if outcome is not Outcome.OK:
            raise Unavailable(f"{operation} {target}: no answer", next_step="try again")
        return apply()

    def write(self, operation: str, target: str, apply: Callable[[], object]) -> None:
        call, outcome = self._outcome(operation, target, writes=True)
        if outcome is Outcome.UNAVAILABLE:
            raise Unavailable(f"{operation} {target}: refused", next_step="try again")
        if outcome in (Outcome.LATE, Outcome.CRASH_LATE):
            self._warehouse.late.append(LateCall(call, apply))
        elif outcome is not Outcome.CRASH_BEFORE:
            self._apply(outcome, apply)
        if outcome in _CRASHES:
            raise Crash(f"{self._process} dies in {operation} {target}")
        if outcome in (Outcome.LATE, Outcome.LOST_REPLY):
            raise UnknownOutcome(f"{operation} {target}: no answer", next_step="read again")

    def _apply(self, outcome: Outcome, apply: Callable[[], object]) -> None:
        try:
            apply()
            if outcome is Outcome.OWN_RETRY:
                apply()
        except KbqError:
            if outcome in (Outcome.OK, Outcome.OWN_RETRY):
                raise


_CRASHES = (Outcome.CRASH_BEFORE, Outcome.CRASH_AFTER, Outcome.CRASH_LATE)


@functools.lru_cache(maxsize=4096)
def _decoded(data: bytes) -> tuple[str, tuple[dict[str, Any], ...]]:
    """A container file's schema and records; cached, as simulators load the same few files many times."""
    reader = fastavro.reader(io.BytesIO(data))
    return str(reader.metadata["avro.schema"]), tuple(reader)  # type: ignore[arg-type]


def _place(record: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(record.get(name) for name in ("_kafka_topic", "_kafka_partition", "_kafka_offset"))


def _error_row(record: Mapping[str, Any], value_bytes: int) -> ErrorRow:
    key, value = record["key"], record["value"]
    return ErrorRow(
        record["_kafka_topic"],
        record["_kafka_partition"],
        record["_kafka_offset"],
        record["_kbq_epoch"],
        round(record["_kafka_timestamp"].timestamp() * 1000),
        record["reason"],
        record["message"],
        record["schema_id"],
        None if key is None else key[:value_bytes],
        None if value is None else value[:value_bytes],
        None if value is None else len(value),
        tuple((header["key"], header["value"]) for header in record["headers"]),
    )


def _size_objection(columns: tuple[Column, ...]) -> str:
    """Why BigQuery refuses a table with so many fields that are no records, or so many levels; "" if it does not."""
    if (leaves := _leaves(columns)) > 10_000:
        return f"Too many total leaf fields: {leaves}, max allowed field count: 10000"
    return "Schema nested too deeply, maximum allowed depth is 15" if _levels(columns) > 15 else ""


def _leaves(columns: Iterable[Column]) -> int:
    return sum(_leaves(column.fields) if column.fields else 1 for column in columns)


def _levels(columns: Iterable[Column]) -> int:
    return max((1 + _levels(column.fields) for column in columns if column.fields), default=0)


def _updated(existing: tuple[Column, ...], wanted: tuple[Column, ...]) -> tuple[Column, ...]:
    """Columns after adding those that are missing and relaxing those now NULLABLE, nested fields included."""
    by_name = {column.name: column for column in wanted}
    kept = [_relaxed(column, by_name.pop(column.name, column)) for column in existing]
    return (
        *kept,
        *(c if c.mode == "REPEATED" else replace(c, mode="NULLABLE") for c in by_name.values()),
    )


def _relaxed(existing: Column, wanted: Column) -> Column:
    mode = "NULLABLE" if existing.mode == "REQUIRED" and wanted.mode == "NULLABLE" else existing.mode
    return replace(
        existing,
        mode=mode,
        fields=_updated(existing.fields, wanted.fields),
        description=wanted.description or existing.description,
        policy_tag=wanted.policy_tag or existing.policy_tag,
    )
