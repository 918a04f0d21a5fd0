"""Replays of error rows in BigQuery (`ports.errors_replay.ErrorReplays`): a load job into a scratch table, then a
multi-statement transaction. Two transactions that mark rows of the same table conflict, and the later one is rolled
back.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from google.cloud import bigquery

from kbq_assets.adapters.bigquery.probe import loaded
from kbq_assets.adapters.bigquery.queries import Query, all_partitions, name_of
from kbq_assets.adapters.bigquery.session import Session
from kbq_assets.core.errors import ConfigurationError, JobFailed, Unavailable
from kbq_assets.core.statements.side_tables import ledger_table
from kbq_assets.core.statements.table_statements import SCRATCH
from kbq_assets.ports.clock import Clock
from kbq_assets.ports.errors_replay import REPLAYED_AT, ErrorReplay, Replayed, ReplayStatement
from kbq_assets.ports.warehouse import LoadJob

_PLACE: Final = ("_kafka_topic", "_kafka_partition", "_kafka_offset", "_kbq_epoch")


class BigQueryErrorReplays:
    """Runs replays with a session's client."""

    def __init__(self, session: Session, clock: Clock) -> None:
        self._session, self._clock = session, clock

    def replay(self, replay: ErrorReplay) -> Replayed:
        """Add or apply the rows whose error rows are not marked yet, and mark those error rows."""
        session = self._session
        real, errors = session.find_table(replay.table), session.find_table(replay.errors)
        if real is None or errors is None:
            raise JobFailed(f"{replay.table} or {replay.errors} does not exist", next_step="run it again")
        job = LoadJob("", session.project, session.location, replay.table, replay.source_uris, replay.schema)
        with loaded(session, self._clock, job, real) as (scratch, error):
            if error is not None:
                failure = f"the files do not load into {replay.table}: {error.message}"
                raise (
                    Unavailable(failure, next_step="run it again") if error.transient else JobFailed(failure)
                )
            now = bigquery.ScalarQueryParameter(
                "now", "TIMESTAMP", datetime.fromtimestamp(replay.now_ms / 1000, UTC)
            )
            what = f"the replay into {replay.table}"
            [[wanted]] = session.query(what, Query(waiting(scratch, errors)))
            if not wanted:
                return Replayed(0)
            if (own := replay.statement) is None:
                session.query(what, Query(transaction(scratch, real, errors), (now,)), is_script=True)
                return Replayed(int(wanted))
            ledger = name_of(session.reference(ledger_table(replay.table)))
            try:
                script = applying(scratch, errors, ledger, own)
                session.query(what, Query(script, (now,)), is_script=True)
            except ConfigurationError as refused:  # the script changed nothing
                raise JobFailed(
                    f"its statement fails: {refused.message}", next_step="run it again"
                ) from refused
            [[effective]] = session.query(what, Query(own.effective.replace(SCRATCH, name_of(scratch))))
        return Replayed(min(int(effective), int(wanted)), max(0, int(wanted) - int(effective)))


def waiting(scratch: bigquery.TableReference, errors: bigquery.Table) -> str:
    """Counts the rows that wait for a replay. The transaction adds them, unless another replay is faster."""
    return f"SELECT COUNT(*) AS waiting FROM {name_of(scratch)} AS f WHERE {_in_errors(errors)}"


def transaction(scratch: bigquery.TableReference, real: bigquery.Table, errors: bigquery.Table) -> str:
    columns = ", ".join(f"`{field.name}`" for field in real.schema if field.name != REPLAYED_AT)
    return "\n".join(
        (
            "BEGIN TRANSACTION;",
            f"INSERT INTO {name_of(real.reference)} ({columns}, {REPLAYED_AT})",
            f"SELECT {columns}, @now FROM {name_of(scratch)} AS f WHERE {_in_errors(errors)};",
            f"{_marking(scratch, errors)};",
            "COMMIT TRANSACTION;",
        )
    )


def applying(
    scratch: bigquery.TableReference, errors: bigquery.Table, ledger: str, own: ReplayStatement
) -> str:
    """The script of a replay with a statement. It updates the ledger's row, so it conflicts with a load's transaction
    (S1)."""
    return "\n".join(
        (
            "BEGIN TRANSACTION;",
            f"UPDATE {ledger} SET batch = batch WHERE batch = {own.batch};",
            "IF @@row_count != 1 THEN",
            f"  RAISE USING MESSAGE = 'kbq: the ledger is not at batch {own.batch}: it was loaded meanwhile';",
            "END IF;",
            f"{own.sql.replace(SCRATCH, applied_rows(scratch, errors))};",
            f"{_marking(scratch, errors)};",
            "COMMIT TRANSACTION;",
        )
    )


def applied_rows(scratch: bigquery.TableReference, errors: bigquery.Table) -> str:
    """The rows that a statement applies: those whose error rows are not marked."""
    marked = f"f.* REPLACE (@now AS {REPLAYED_AT})"
    return f"(SELECT {marked} FROM {name_of(scratch)} AS f WHERE {_in_errors(errors)})"


def _marking(scratch: bigquery.TableReference, errors: bigquery.Table) -> str:
    partitions = all_partitions(errors)
    return (
        f"UPDATE {name_of(errors.reference)} AS e SET {REPLAYED_AT} = @now\n"
        f"WHERE e.{REPLAYED_AT} IS NULL{f' AND {partitions}' if partitions else ''}\n"
        f"AND EXISTS (SELECT 1 FROM {name_of(scratch)} AS f WHERE {_same_place()})"
    )


def _in_errors(errors: bigquery.Table) -> str:
    partitions = all_partitions(errors)
    return (
        f"EXISTS (SELECT 1 FROM {name_of(errors.reference)} AS e WHERE {_same_place()}"
        f" AND e.{REPLAYED_AT} IS NULL{f' AND {partitions}' if partitions else ''})"
    )


def _same_place() -> str:
    return " AND ".join(f"f.{name} = e.{name}" for name in _PLACE)
