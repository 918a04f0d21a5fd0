"""Creates, changes and lists tables."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from google.api_core import exceptions as api
from google.cloud import bigquery

from kbq_assets.adapters.bigquery import queries, schema
from kbq_assets.adapters.bigquery.outcomes import calls, definitions
from kbq_assets.adapters.bigquery.session import Session
from kbq_assets.core.config.google_permissions import POLICY_TAG_PERMISSIONS
from kbq_assets.core.errors import ConfigurationError, InvalidName, NotFound, Unavailable, WrongOptions
from kbq_assets.core.loading.expiration import drops_rows
from kbq_assets.core.loading.table_notes import TableNotes
from kbq_assets.core.loading.tables import Column, TableOptions
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.statements.side_tables import SCRATCH_PREFIX

#: Attempts to update a table that others update at the same time.
_UPDATES: Final = 5
_THREADS: Final = 8
#: Additional permissions for policy tags. Without them, creating or updating a table fails, so no data is unprotected.
_TAGS: Final = f", {' and '.join(POLICY_TAG_PERMISSIONS)} (for policy tags)"


def create(session: Session, table: TableReference, columns: Sequence[Column], options: TableOptions) -> None:
    """Create a table and its dataset. An existing table stays as it is. Raises Unavailable, ConfigurationError;
    WrongOptions if BigQuery refuses the table for good."""
    new = schema.new_table(session.reference(table), columns, options)
    if session.encryption:
        new.encryption_configuration = session.encryption
    _create_dataset(session, table.dataset)
    needed = "bigquery.tables.create" + (_TAGS if schema.has_policy_tags(columns) else "")
    with definitions(f"table {table}", needed):
        created = session.client.create_table(new, exists_ok=True, **session.repeated)
    if not created.num_rows and drops_rows(schema.stored_table(created), options.expiry_days):
        # The table has the dataset's default expiration: a request to create a table cannot say "none".
        changed = schema.expire(created, options.expiry_days)
        # A project without billing refuses this. Then the loader sees the expiration and loads nothing into the table.
        refused = contextlib.suppress(ConfigurationError, NotFound, api.PreconditionFailed)
        with refused, calls(f"table {table}", "bigquery.tables.update"):
            session.client.update_table(created, changed, **session.repeated)


def update(session: Session, table: TableReference, wanted: Sequence[Column], notes: TableNotes) -> None:
    """Add and relax columns, and set descriptions and labels, in a single patch. Raises NotFound, Unavailable,
    ConfigurationError; WrongOptions if BigQuery refuses the change for good."""
    for _ in range(_UPDATES):
        found = session.find_table(table)
        if found is None:
            raise NotFound(f"table {table} does not exist", next_step="run the load again: it creates it")
        if _change(session, found, wanted, notes):
            return
    raise Unavailable(
        f"table {table}: others keep changing it", next_step="find out who; the next run retries"
    )


def find_all(session: Session, names: Iterable[TableReference]) -> dict[TableReference, bigquery.Table]:
    wanted = tuple(dict.fromkeys(names))
    with ThreadPoolExecutor(_THREADS, "kbq-tables") as pool:
        found = zip(wanted, pool.map(session.find_table, wanted), strict=True)
        return {name: table for name, table in found if table is not None}


def with_positions(session: Session) -> tuple[TableReference, ...]:
    """All tables with Kafka positions in datasets of the session's location.

    Runs one query of INFORMATION_SCHEMA per dataset (10 MB billed). So it needs no request per table, and also finds
    tables that others created. A single query for the region would need permissions on the whole project.
    """
    with calls(f"project {session.data_project}", "bigquery.datasets.get"):
        listed = list(session.client.list_datasets(session.data_project, **session.repeated))
    datasets = [item.dataset_id for item in listed if _is_here(session, item)]
    with ThreadPoolExecutor(_THREADS, "kbq-tables") as pool:
        found = pool.map(lambda dataset: _of_dataset(session, dataset), datasets)
        return tuple(sorted(table for tables in found for table in tables))


def _create_dataset(session: Session, name: str) -> None:
    """Create a dataset unless it exists. Raises ConfigurationError if it is in another location: every job would
    fail."""
    new = bigquery.Dataset(bigquery.DatasetReference(session.data_project, name))
    new.location = session.location
    if session.encryption:
        new.default_encryption_configuration = session.encryption
    try:
        with calls(f"dataset {name}", "bigquery.datasets.get"):
            dataset = session.client.get_dataset(new.reference, **session.repeated)
    except NotFound:
        with calls(f"dataset {name}", "bigquery.datasets.create"):
            dataset = session.client.create_dataset(new, exists_ok=True, **session.repeated)
    if not _is_here(session, dataset):
        there = f"bigquery://{session.project}?location={dataset.location}"
        raise WrongOptions(
            f"dataset {name} is in {dataset.location}, but the warehouse is in {session.location}",
            next_step=f"set KBQ_WAREHOUSE={there}, or choose another dataset",
        )


def _is_here(session: Session, dataset: Any) -> bool:
    """Whether a dataset or a listed dataset is in the session's location."""
    return str(dataset._properties.get("location", "")).lower() == session.location.lower()


def _change(session: Session, table: bigquery.Table, wanted: Sequence[Column], notes: TableNotes) -> bool:
    """Update a table with the etag of the read version. Returns False if it has changed since or is gone."""
    before = schema.api_fields(table.schema)
    after = schema.updated(before, wanted)
    changed = schema.noted_fields(table, notes) + (["schema"] if after != before else [])
    if not changed:
        return True
    table.schema = schema.schema_fields(after)
    needed = "bigquery.tables.update" + (_TAGS if schema.has_policy_tags(wanted) else "")
    try:
        with definitions(f"table {table.dataset_id}.{table.table_id}", needed):
            session.client.update_table(table, changed, **session.repeated)
    except (NotFound, api.PreconditionFailed):
        return False
    return True


def _of_dataset(session: Session, dataset: str) -> list[TableReference]:
    """Tables with positions in a dataset; none if the dataset is gone or unreadable."""
    try:
        rows = session.query(f"dataset {dataset}", queries.kafka_tables(session.data_project, dataset))
    except (NotFound, ConfigurationError):
        return []
    found = []
    for (name,) in rows:
        with contextlib.suppress(InvalidName):  # another owner's dataset
            if not name.startswith((queries.PROBE_PREFIX, SCRATCH_PREFIX)):
                found.append(TableReference(dataset, name))
    return found
