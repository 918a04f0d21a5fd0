"""Descriptions of datasets: content, owner, columns, personal data, and a first query.

Used by the pages of `kbq catalog site`, Dagster's assets, `kbq catalog show`, and the descriptions of tables in the
warehouse.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, field, fields, replace
from typing import Any, Final

from kbq_assets.core.catalog.entries import CatalogEntry
from kbq_assets.core.catalog.fields import PII_LEVELS
from kbq_assets.core.config.locations import BigQueryProject, WarehousePlace
from kbq_assets.core.errors import EncodingError
from kbq_assets.core.loading.table_notes import ColumnNote, TableNotes
from kbq_assets.core.loading.table_options import label_value
from kbq_assets.core.loading.tables import Column, columns_of
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.topics.column_names import SNAKE_CASE, snake_case_names, snake_case_path
from kbq_assets.core.topics.personal import HEADERS, KEY, Decision, avro_path
from kbq_assets.core.topics.source_list import SourceEntry
from kbq_assets.core.topics.topic_settings import TopicSettings

#: The columns of Kafka's key and headers, by their paths in decisions about personal data.
_KAFKA: Final[Mapping[str, tuple[str, str]]] = {
    KEY: ("_kafka_key", "BYTES"),
    HEADERS: ("_kafka_headers", "STRUCT"),
}


@dataclass(frozen=True)
class DatasetColumn:
    """A column; the name of a nested one is a dotted path. ``type`` is "" if only records determine it. ``pii`` is the
    level of personal data, ``action`` the decision about it."""

    name: str
    type: str = ""
    mode: str = "NULLABLE"
    description: str = ""
    pii: str = ""
    action: str = ""


@dataclass(frozen=True)
class Contacts:
    """Who is responsible for a dataset, who writes it and who reads it."""

    teams: tuple[str, ...] = ()
    emails: tuple[str, ...] = ()
    slack: tuple[str, ...] = ()
    producers: tuple[str, ...] = ()
    consumers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Classification:
    """The organizational place of a dataset; "" if unknown."""

    company: str = ""
    domain: str = ""
    typology: str = ""
    scope: str = ""
    cost_center: str = ""


@dataclass(frozen=True)
class Dataset:
    """A table and its topics. ``table`` is None for a topic whose records choose their tables, and for one that is not
    archived, which has no ``target`` either."""

    topics: tuple[str, ...]
    table: TableReference | None
    target: str
    description: str = ""
    contacts: Contacts = Contacts()
    classification: Classification = Classification()
    pii: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[DatasetColumn, ...] = ()
    max_age_seconds: int = 0
    entries: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """The text to search in, in lower case."""
        texts = (self.target, self.description, self.pii, *astuple(self.classification))
        lists = (self.topics, self.entries, *astuple(self.contacts))
        labels = [f"{key} {value}" for key, value in self.labels.items()]
        columns = [f"{column.name} {column.description} {column.pii}" for column in self.columns]
        return " ".join([*texts, *(word for words in lists for word in words), *labels, *columns]).lower()


def dataset_of_entry(entry: CatalogEntry, schema: str = "") -> Dataset:
    """The dataset of an entry. ``schema`` is the Avro schema of its values, "" if there is none."""
    document, settings, place = entry.document, entry.settings, entry.place
    ownership, known = document.get("ownership", {}), dataset_of_source(entry.source)
    return replace(
        known,
        table=_table(entry.source) if entry.archived else None,
        target=settings.destination.target(entry.topic) if entry.archived else "",
        description=str(document.get("description", "")),
        contacts=replace(
            known.contacts,
            emails=_one(ownership.get("email")),
            slack=_one(ownership.get("slack")),
            producers=tuple(document.get("producers", ())),
            consumers=tuple(document.get("consumers", ())),
        ),
        classification=replace(
            known.classification,
            company=place.company,
            domain=place.domain,
            typology=str(document.get("typology", "")),
            scope=str(document.get("scope", "")),
        ),
        pii=str(document.get("pii", {}).get("level", "")),
        labels={str(key): str(value) for key, value in document.get("labels", {}).items()},
        columns=_as_named(entry, columns_of_entry(entry, schema)),
        entries=(place.path,),
    )


def dataset_of_source(source: SourceEntry) -> Dataset:
    settings = _settings(source)
    return Dataset(
        topics=(source.pattern,),
        table=_table(source),
        target=settings.destination.target(source.pattern),
        contacts=Contacts(teams=_one(settings.ownership.owner)),
        classification=Classification(cost_center=settings.ownership.cost_center),
        max_age_seconds=settings.checks.max_age_seconds,
    )


def by_table(datasets: Iterable[Dataset]) -> dict[TableReference, Dataset]:
    """Datasets by table. For a table of several topics, their descriptions are joined."""
    found: dict[TableReference, list[Dataset]] = defaultdict(list)
    for dataset in sorted(datasets, key=lambda each: each.topics):
        if dataset.table is not None:
            found[dataset.table].append(dataset)
    return {table: _joined(several) for table, several in sorted(found.items())}


def error_datasets(sources: Iterable[SourceEntry]) -> dict[TableReference, Dataset]:
    tables = sorted({s.settings.error_table for s in sources if _has_error_table(s)})
    return {
        table: Dataset(
            (), table, str(table), "Records that could not become rows, with the reason and their bytes."
        )
        for table in tables
    }


def notes_of(dataset: Dataset, policy_tags: Mapping[str, str]) -> TableNotes:
    """The descriptions and labels that loads keep up to date on a dataset's table."""
    teams, classification = dataset.contacts.teams, dataset.classification
    labels = {
        "owner": teams[0] if len(teams) == 1 else "",
        "cost_center": classification.cost_center,
        "domain": classification.domain,
        "typology": classification.typology,
        "pii": dataset.pii,
    }
    own = {_label_key(key): label_value(value) for key, value in dataset.labels.items()}
    return TableNotes(
        dataset.description,
        {**own, **{key: label_value(value) for key, value in labels.items() if value}},
        {c.name.lower(): ColumnNote(c.description, c.pii) for c in dataset.columns},
        policy_tags,
    )


def sample_query(table: TableReference, warehouse: WarehousePlace) -> str:
    """A cheap query: at most a hundred rows of the newest day with rows, or of the newest month if BigQuery's table has
    monthly partitions."""
    if not isinstance(warehouse, BigQueryProject):
        name = f'"{table.dataset}"."{table.table}"'
        return f"SELECT *\nFROM {name}\nWHERE event_date = (SELECT max(event_date) FROM {name})\nLIMIT 100;"
    dataset = f"{warehouse.data_project}.{table.dataset}"
    # BigQuery prunes partitions by a variable, but not by a subquery. Ids look like 2026112308, 20261123 or 202611.
    return (
        "DECLARE newest DATE DEFAULT (\n"
        "  SELECT MAX(SAFE.PARSE_DATE('%Y%m%d', RPAD(SUBSTR(partition_id, 1, 8), 8, '01')))\n"
        f"  FROM `{dataset}.INFORMATION_SCHEMA.PARTITIONS`\n"
        f"  WHERE table_name = '{table.table}');\n"
        f"SELECT *\nFROM `{dataset}.{table.table}`\nWHERE event_date >= newest\nLIMIT 100;"
    )


def with_real_columns(dataset: Dataset, stored: Iterable[Column]) -> Dataset:
    """The dataset with the columns that its table has, followed by those that the catalog expects and the table
    lacks."""
    expected = {column.name.lower(): column for column in dataset.columns}
    found = [
        _merged(
            DatasetColumn(path, column.type, column.mode, column.description),
            expected.pop(path.lower(), None),
        )
        for path, column in _paths(stored, "")
    ]
    missing = (replace(column, mode="not in the table") for column in expected.values())
    return replace(dataset, columns=(*found, *missing))


def _paths(columns: Iterable[Column], prefix: str) -> Iterator[tuple[str, Column]]:
    for column in columns:
        yield prefix + column.name, column
        yield from _paths(column.fields, f"{prefix}{column.name}.")


def _merged(real: DatasetColumn, expected: DatasetColumn | None) -> DatasetColumn:
    """The column with the table's name, type and mode, and the catalog's text and levels."""
    if expected is None:
        return real
    text = real.description or expected.description
    return replace(real, description=text, pii=expected.pii, action=expected.action)


def _table(source: SourceEntry) -> TableReference | None:
    """The table of all records of a line, None if there are several."""
    settings = _settings(source)
    is_one = settings.destination.route == "topic" and not settings.destination.by_record
    # If no name is set, each topic of a pattern has its own table.
    if not is_one or (source.is_pattern and not settings.destination.table.text):
        return None
    return settings.destination.table_for(source.pattern)


def _settings(source: SourceEntry) -> TopicSettings:
    return source.settings if source.is_pattern else source.settings.for_topic(source.pattern)


def _has_error_table(source: SourceEntry) -> bool:
    settings = source.settings
    return "error_table" in (settings.records.errors, settings.records.tombstones)


def columns_of_entry(entry: CatalogEntry, schema: str) -> Iterator[DatasetColumn]:
    """Columns with the names of their fields: those of the schema, then those that are only in the entry."""
    texts = {str(path).lower(): str(text) for path, text in entry.document.get("columns", {}).items()}
    found = list(_Personal(entry).columns(_of_schema(schema)))
    for column in found:
        yield replace(column, description=texts.pop(column.name.lower(), column.description))
    yield from (DatasetColumn(path, description=text) for path, text in texts.items())


def _as_named(entry: CatalogEntry, columns: Iterable[DatasetColumn]) -> tuple[DatasetColumn, ...]:
    """Columns with their names in the table."""
    found = tuple(columns)
    if entry.settings.destination.column_names != SNAKE_CASE:
        return found
    paths = [tuple(column.name.split(".")) for column in found]
    names = snake_case_names(paths)
    renamed = (".".join(snake_case_path(path, names)) for path in paths)
    return tuple(replace(column, name=name) for column, name in zip(found, renamed, strict=True))


def _of_schema(schema: str) -> tuple[Column, ...]:
    try:
        return columns_of(schema) if schema else ()
    except (EncodingError, ValueError, KeyError, TypeError):
        return ()  # `kbq catalog validate` reports it


class _Personal:
    """The levels of fields and the decisions about them, from an entry."""

    def __init__(self, entry: CatalogEntry) -> None:
        pii = entry.document.get("pii", {})
        decisions, tags = entry.settings.privacy.decisions, pii.get("tags", {})
        self._paths = sorted({*(decision.path for decision in decisions), *tags})
        self._level = str(pii.get("level", ""))
        self._tags: Mapping[str, Any] = {name: tags[path] for path in tags for name in _column_paths(path)}
        self._decisions = {name: each for each in decisions for name in _column_paths(each.path)}

    def columns(self, columns: Iterable[Column]) -> Iterator[DatasetColumn]:
        """The columns of a schema, and the fields with decisions that are not in it (JSON fields, keys, headers)."""
        found = list(self._flat(columns, "", ""))
        names = {name for name, _ in found}
        yield from (column for _, column in found if column is not None)
        for path in (each for each in self._paths if names.isdisjoint(_column_paths(each))):
            name, kind = _KAFKA.get(path, (path, ""))
            column = self._judged(_column_paths(path)[0], DatasetColumn(name, kind))
            if column is not None:
                yield column

    def _flat(
        self, columns: Iterable[Column], prefix: str, level: str
    ) -> Iterator[tuple[str, DatasetColumn | None]]:
        """Paths and columns. The column is None if it, or a column around it, is dropped."""
        for column in columns:
            path = prefix + column.name
            seen = DatasetColumn(path, column.type, column.mode, column.description, column.pii or level)
            judged = self._judged(path, seen)
            yield path, judged
            inner = list(self._flat(column.fields, f"{path}.", judged.pii if judged else ""))
            yield from inner if judged else [(name, None) for name, _ in inner]

    def _judged(self, path: str, column: DatasetColumn) -> DatasetColumn | None:
        decision = self._decisions.get(path)
        level = str(self._tags.get(path, "")) or column.pii
        if decision is None:
            return replace(column, pii=level)
        if decision.action == "drop":
            return None
        # A field with a decision gets its topic's level, unless the decision is to keep it.
        level = level or ("" if decision.action == "keep" else self._level)
        return replace(column, pii=level, type=_type_after(decision, column.type), action=_action(decision))


def _column_paths(path: str) -> tuple[str, str]:
    """The column names of a field of JSON documents and of an Avro schema: `é-mail` becomes `__mail`, or
    `_u00e9_mail`."""
    return re.sub(r"[^A-Za-z0-9_.]", "_", path), avro_path(path)


def _action(decision: Decision) -> str:
    return ":".join(filter(None, (decision.action, decision.argument)))


def _type_after(decision: Decision, kind: str) -> str:
    return "STRING" if decision.action == "pseudonym" and kind else kind


def _joined(several: list[Dataset]) -> Dataset:
    first, *others = several
    if not others:
        return first
    columns = {column.name.lower(): column for each in reversed(several) for column in each.columns}
    agreed = {
        key: value for key, value in first.labels.items() if all(o.labels.get(key) == value for o in others)
    }
    contacts = [each.contacts for each in several]
    classes = [each.classification for each in several]
    return replace(
        first,
        topics=_all(several, "topics"),
        description=" ".join(dict.fromkeys(each.description for each in several if each.description)),
        contacts=Contacts(**{f.name: _all(contacts, f.name) for f in fields(Contacts)}),
        classification=Classification(**{f.name: _same(classes, f.name) for f in fields(Classification)}),
        pii=max((each.pii for each in several), key=("", *PII_LEVELS).index),
        labels=agreed,
        columns=tuple(columns.values()),
        max_age_seconds=max(each.max_age_seconds for each in several),
        entries=_all(several, "entries"),
    )


def _all(several: Iterable[object], name: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word for each in several for word in getattr(each, name)))


def _same(several: Iterable[object], name: str) -> str:
    found = {str(getattr(each, name)) for each in several}
    return found.pop() if len(found) == 1 else ""


def _one(word: object) -> tuple[str, ...]:
    return (str(word),) if word else ()


def _label_key(text: str) -> str:
    """A label's key begins with a letter."""
    return re.sub(r"^[^a-z]+", "", label_value(text)) or "label"
