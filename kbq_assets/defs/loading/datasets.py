"""A table's asset in Dagster's catalog: description, owners, columns, a first query, and the result of each load."""

from __future__ import annotations

import re
from typing import Final

import dagster as dg

from kbq_assets.core.catalog.datasets import Dataset, DatasetColumn, sample_query
from kbq_assets.core.config.locations import BigQueryProject
from kbq_assets.core.config.settings import Settings
from kbq_assets.core.loading.tables import Column, columns_of
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.topics.error_tables import is_error_table
from kbq_assets.defs.links import table_links
from kbq_assets.defs.metadata import Metadata, table_metadata
from kbq_assets.defs.pages import Pages
from kbq_assets.defs.translator import column_schema, dagster_owner, tag_value
from kbq_assets.pipelines.loading.load import TableReport
from kbq_assets.pipelines.observation.status import TableStatus
from kbq_assets.wire.files.error_rows import error_schema_json

_SENSOR: Final = "done_file_sensor"
_AUTOMATION: Final = (
    "`{}` materializes it automatically. If you materialize it by hand, that loads the committed files that "
    "are not loaded yet, every row exactly once."
)


def dataset_spec(
    settings: Settings, pages: Pages, table: TableReference, sensor: str = _SENSOR
) -> dg.AssetSpec:
    """The asset of a table, downstream of its topics' staged files. ``sensor`` materializes it."""
    translator, dataset = pages.translator, pages.tables[table]
    return dg.AssetSpec(
        translator.dataset_key(table),
        deps=[translator.staged_key(topic) for topic in pages.feeding(table)],
        description=_description(settings, dataset, table, sensor),
        group_name=re.sub(r"[^A-Za-z0-9_]", "_", dataset.classification.domain or table.dataset),
        kinds={settings.warehouse_url.partition(":")[0], "table"},
        owners=_owners(dataset) or list(translator.owners),
        tags=_tags(dataset),
        metadata={**_metadata(settings, dataset, table), "materialized_by": sensor},
        skippable=True,
    )


def loaded_metadata(
    settings: Settings, report: TableReport, status: TableStatus | None, dataset: Dataset | None, now_ms: int
) -> Metadata:
    """Metadata of a load for the table's page. ``now_ms`` is the time when the rows became visible."""
    metadata = table_metadata(report, status, now_ms)
    if report.rows:
        metadata["dagster/last_updated_timestamp"] = dg.MetadataValue.timestamp(now_ms / 1000)
    if report.columns:
        levels = {column.name: column.pii for column in dataset.columns} if dataset else {}
        metadata["dagster/column_schema"] = column_schema(report.columns, levels)
    if dataset is None:  # no other source describes the columns
        metadata["sample_query"] = _query(settings, report.table)
    return {**metadata, **table_links(settings, report.table)}


def _description(settings: Settings, dataset: Dataset, table: TableReference, sensor: str) -> str:
    from_topics = ", ".join(f"`{topic}`" for topic in dataset.topics)
    typology, asked = dataset.classification.typology, (*dataset.contacts.emails, *dataset.contacts.slack)
    facts = [
        f"Kafka: {from_topics}" if from_topics else "",
        f"typology: {typology}" if typology else "",
        f"personal data: **{dataset.pii}**" if dataset.pii else "",
        f"questions: {', '.join(asked)}" if asked else "",
    ]
    stated = (
        dataset.description,
        " · ".join(filter(None, facts)),
        _fenced(sample_query(table, settings.warehouse)),
        _AUTOMATION.format(sensor),
    )
    return "\n\n".join(filter(None, stated))


def _owners(dataset: Dataset) -> list[str]:
    stated = (*dataset.contacts.teams, *(email for email in dataset.contacts.emails if "@" in email))
    return [owner for owner in dict.fromkeys(map(dagster_owner, stated)) if owner]


def _tags(dataset: Dataset) -> dict[str, str]:
    stated = {
        "kbq/company": dataset.classification.company,
        "kbq/domain": dataset.classification.domain,
        "kbq/typology": dataset.classification.typology,
        "kbq/pii": dataset.pii,
        "kbq/cost_center": dataset.classification.cost_center,
    }
    return {key: value for key, text in stated.items() if (value := tag_value(text))}


def _metadata(settings: Settings, dataset: Dataset, table: TableReference) -> Metadata:
    place = settings.warehouse
    name = f"{place.data_project}.{table}" if isinstance(place, BigQueryProject) else str(table)
    metadata: Metadata = {
        "dagster/table_name": name,
        "sample_query": _query(settings, table),
    }
    if columns := _columns(dataset, table):
        metadata["dagster/column_schema"] = columns
    if dataset.topics:
        metadata["loaded_within_seconds"] = dataset.max_age_seconds
    if dataset.entries:
        metadata["catalog"] = ", ".join(dataset.entries)
    for key, words in (("producers", dataset.contacts.producers), ("consumers", dataset.contacts.consumers)):
        if words:
            metadata[key] = ", ".join(words)
    return {**metadata, **table_links(settings, table)}


def _columns(dataset: Dataset, table: TableReference) -> dg.TableSchema | None:
    if is_error_table(table):
        return column_schema(columns_of(error_schema_json()))
    if not dataset.columns:
        return None
    flat = [_as_column(column) for column in dataset.columns]
    return column_schema(flat, {column.name: column.pii for column in dataset.columns})


def _as_column(column: DatasetColumn) -> Column:
    text = f"{column.description} ({column.action})".strip() if column.action else column.description
    return Column(column.name, column.type or "?", column.mode, description=text)


def _query(settings: Settings, table: TableReference) -> dg.MetadataValue:
    return dg.MetadataValue.md(_fenced(sample_query(table, settings.warehouse)))


def _fenced(query: str) -> str:
    return f"```sql\n{query}\n```"
