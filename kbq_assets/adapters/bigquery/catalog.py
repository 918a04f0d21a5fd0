"""Creating, changing and listing tables."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from google.api_core import exceptions as api
from google.cloud import bigquery

from kbq_assets.adapters.bigquery import queries, schema
from kbq_assets.adapters.bigquery.outcomes import calls
from kbq_assets.adapters.bigquery.session import Session
from kbq_assets.core.config.google_permissions import POLICY_TAG_PERMISSIONS
from kbq_assets.core.errors import ConfigurationError, InvalidName, NotFound, Unavailable
from kbq_assets.core.loading.table_notes import TableNotes
from kbq_assets.core.loading.tables import Column, TableOptions
from kbq_assets.core.protocol.names import TableReference

#: A change of a table is tried anew when somebody else was faster.
_UPDATES: Final = 5
_THREADS: Final = 8
#: What policy tags need beside; without it nothing is created or changed, rather than left unprotected.
_TAGS: Final = f", {' and '.join(POLICY_TAG_PERMISSIONS)} (for policy tags)"


def create(session: Session, table: TableReference, columns: Sequence[Column], options: TableOptions) -> None:
    """Create a table, and its dataset. An existing one is left alone."""
    new = schema.new_table(session.reference(table), columns, options)
    _create_dataset(session, table.dataset)
    needed = "bigquery.tables.create" + (_TAGS if schema.has_policy_tags(columns) else "")
    with calls(f"table {table}", needed):
        session.client.create_table(new, exists_ok=True, **session.repeated)


def update(session: Session, table: TableReference, wanted: Sequence[Column], notes: TableNotes) -> None:
    """Add and relax columns, and say what is said of them and of the table: one patch. Raises NotFound, Unavailable,
    ConfigurationError."""
    for _ in range(_UPDATES):
        found = session.find_table(table)
        if found is None:
            raise NotFound(f"table {table} does not exist", next_step="run the load again: it creates it")
        if _change(session, found, wanted, notes):
            return
    raise Unavailable(
        f"table {table}: others change it all the time", next_step="see who does; the next run tries again"
    )


def find_all(session: Session, names: Iterable[TableReference]) -> dict[TableReference, bigquery.Table]:
    """Those of the tables that exist."""
    wanted = tuple(dict.fromkeys(names))
    with ThreadPoolExecutor(_THREADS, "kbq-tables") as pool:
        found = zip(wanted, pool.map(session.find_table, wanted), strict=True)
        return {name: table for name, table in found if table is not None}


def with_positions(session: Session) -> tuple[TableReference, ...]:
    """All tables with Kafka positions in datasets of the session's location.

    One query of INFORMATION_SCHEMA a dataset (10 MB billed): no request per table, and tables that others created are
    found, too. Not one query for the region, which needs permissions on the whole project.
    """
    with calls(f"project {session.project}", "bigquery.datasets.get"):
        listed = list(session.client.list_datasets(session.project, **session.repeated))
    datasets = [item.dataset_id for item in listed if _is_here(session, item)]
    with ThreadPoolExecutor(_THREADS, "kbq-tables") as pool:
        found = pool.map(lambda dataset: _of_dataset(session, dataset), datasets)
        return tuple(sorted(table for tables in found for table in tables))


def _create_dataset(session: Session, name: str) -> None:
    """Create a dataset, unless it is there. In one elsewhere every job would fail."""
    new = bigquery.Dataset(bigquery.DatasetReference(session.project, name))
    new.location = session.location
    try:
        with calls(f"dataset {name}", "bigquery.datasets.get"):
            dataset = session.client.get_dataset(new.reference, **session.repeated)
    except NotFound:
        with calls(f"dataset {name}", "bigquery.datasets.create"):
            dataset = session.client.create_dataset(new, exists_ok=True, **session.repeated)
    if not _is_here(session, dataset):
        there = f"bigquery://{session.project}?location={dataset.location}"
        raise ConfigurationError(
            f"dataset {name} is in {dataset.location}, the warehouse in {session.location}",
            next_step=f"KBQ_WAREHOUSE={there}, or another dataset",
        )


def _is_here(session: Session, dataset: Any) -> bool:
    """Whether a dataset, or one of a listing, is in the session's location."""
    return str(dataset._properties.get("location", "")).lower() == session.location.lower()


def _change(session: Session, table: bigquery.Table, wanted: Sequence[Column], notes: TableNotes) -> bool:
    """Change a table by the etag it was read with. False when it was changed since, or is gone."""
    before = schema.api_fields(table.schema)
    after = schema.updated(before, wanted)
    changed = schema.noted_fields(table, notes) + (["schema"] if after != before else [])
    if not changed:
        return True
    table.schema = schema.schema_fields(after)
    needed = "bigquery.tables.update" + (_TAGS if schema.has_policy_tags(wanted) else "")
    try:
        with calls(f"table {table.dataset_id}.{table.table_id}", needed):
            session.client.update_table(table, changed, **session.repeated)
    except (NotFound, api.PreconditionFailed):
        return False
    return True


def _of_dataset(session: Session, dataset: str) -> list[TableReference]:
    """Tables with positions of a dataset. One that is gone, or may not be read, has none of ours."""
    try:
        rows = session.query(f"dataset {dataset}", queries.kafka_tables(session.project, dataset))
    except (NotFound, ConfigurationError):
        return []
    found = []
    for (name,) in rows:
        with contextlib.suppress(InvalidName):  # somebody else's
            if not name.startswith(queries.PROBE_PREFIX):
                found.append(TableReference(dataset, name))
    return found
