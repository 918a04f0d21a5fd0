"""External tables through which BigQuery reads a lake's tables: the section `lake_in_bigquery` of `catalog.yaml`.

An external table reads one metadata file, but each commit to the lake's table writes a new one. So the plan compares
files, and a table that reads an older file is behind."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kbq_assets.core.catalog.lifecycle import LeftToPeople
from kbq_assets.core.catalog.nodes import CatalogProblem, DocumentNode
from kbq_assets.core.config.locations import BigQueryProject
from kbq_assets.core.protocol.names import TableReference

SECTION: Final = "lake_in_bigquery"
#: A project may begin with its domain: `example.com:project`.
_PROJECT: Final = r"(?:[a-z0-9.-]+:)?[a-z][a-z0-9-]*[a-z0-9]"
_FORMS: Final = {
    "connection": (
        re.compile(rf"{_PROJECT}\.[A-Za-z][A-Za-z0-9-]*\.[A-Za-z0-9_-]+"),
        "project.location.name, such as my-project.eu.lake",
    ),
    "dataset": (re.compile(r"[A-Za-z0-9_]*\{dataset\}[A-Za-z0-9_]*"), "such as {dataset}_lake"),
    "project": (re.compile(_PROJECT), "such as my-project"),
}


@dataclass(frozen=True)
class LakeInBigQuery:
    """The section. ``dataset`` is a template from the lake's datasets to BigQuery's; ``project`` is BigQuery's, "" for
    the connection's."""

    connection: str
    dataset: str = "{dataset}_lake"
    project: str = ""

    @property
    def place(self) -> BigQueryProject:
        """Where the statements run. The location is the connection's, because a connection only serves datasets in its
        own."""
        project, location, _ = self.connection.rsplit(".", 2)
        return BigQueryProject(self.project or project, location)

    def target(self, table: TableReference) -> TableReference:
        return TableReference(self.dataset.replace("{dataset}", table.dataset), table.table)


@dataclass(frozen=True, order=True)
class ExternalTable:
    """A BigQuery table that reads a lake's table by its metadata file."""

    project: str
    table: TableReference
    connection: str
    metadata: str

    @property
    def name(self) -> str:
        """The name in SQL, without its quotes."""
        return f"{self.project}.{self.table}"


@dataclass(frozen=True)
class KnownTable:
    """An existing BigQuery table. ``files`` and ``connection`` are set for an external Iceberg table."""

    is_iceberg: bool
    files: tuple[str, ...] = ()
    connection: str = ""


@dataclass(frozen=True)
class PointAtMetadata:
    """Point a table to its newest metadata file. ``before`` is the file that it reads now, "" if the table does not
    exist."""

    table: ExternalTable
    before: str = ""

    def __str__(self) -> str:
        name, newest = self.table.name, self.table.metadata
        if not self.before:
            return f"create external table {name} in BigQuery, which reads {newest}"
        return f"{name} in BigQuery is behind: move it from {self.before} to {newest}"

    @property
    def ddl(self) -> str:
        """The statement, for people who run it themselves. It moves a table by replacing it, including its grants and
        policies."""
        verb = "CREATE OR REPLACE EXTERNAL TABLE" if self.before else "CREATE EXTERNAL TABLE IF NOT EXISTS"
        return (
            f"{verb} `{self.table.name}`\n"
            f"WITH CONNECTION `{self.table.connection}`\n"
            f"OPTIONS (format = 'ICEBERG', uris = [{json.dumps(self.table.metadata, ensure_ascii=False)}]);"
        )


def parse_lake_in_bigquery(section: Mapping[str, Any] | None) -> LakeInBigQuery | None:
    """The section, None if there is none."""
    return LakeInBigQuery(**{key: str(value) for key, value in section.items()}) if section else None


def check_lake_in_bigquery(root: DocumentNode) -> Iterator[CatalogProblem]:
    section = root.find(SECTION)
    if section is not None and "connection" not in section.fields:
        hint = _FORMS["connection"][1]
        yield section.problem(f"{SECTION}.connection", "is missing", hint)
    for key, node in root.fields_at(SECTION).items():
        form, hint = _FORMS[key]
        if not form.fullmatch(str(node.value)):
            message = f"{node.value!r} is not a {key}"
            yield node.problem(f"{SECTION}.{key}", message, hint)


def external_tables(
    rules: LakeInBigQuery, lakes: Iterable[Mapping[TableReference, str]]
) -> tuple[list[ExternalTable], list[LeftToPeople]]:
    """The tables that the section requests, from the metadata files of each lake's tables, and the lake tables that
    BigQuery cannot read."""
    found: dict[TableReference, ExternalTable] = {}
    refused: list[LeftToPeople] = []
    for each in lakes:
        for table, metadata in sorted(each.items()):
            target = rules.target(table)
            if not metadata.startswith("gs://"):
                why = f"BigQuery cannot read {metadata}: the lake would have to be in gs://"
                refused.append(LeftToPeople(str(table), why))
            elif target in found:
                why = f"{metadata} gets no table: {target} already reads a table of another lake"
                refused.append(LeftToPeople(str(table), why))
            else:
                found[target] = ExternalTable(rules.place.project, target, rules.connection, metadata)
    return sorted(found.values()), refused


def plan_lake_tables(
    wanted: Iterable[ExternalTable], live: Mapping[str, KnownTable | None]
) -> tuple[list[PointAtMetadata], list[LeftToPeople]]:
    """Changes for tables that are missing or behind. Tables with the same name that are in the way, or that use another
    connection, are left to people. ``live`` is by name."""
    changes: list[PointAtMetadata] = []
    left: list[LeftToPeople] = []
    for table in wanted:
        known = live.get(table.name)
        if known is None:
            changes.append(PointAtMetadata(table))
        elif not known.is_iceberg:
            why = f"exists but is not an external Iceberg table: rename it, or change {SECTION}.dataset"
            left.append(LeftToPeople(table.name, why))
        else:
            if known.files != (table.metadata,):
                changes.append(PointAtMetadata(table, files_of(known.files)))
            if _short(known.connection) != _short(table.connection):
                why = f"uses the connection {known.connection or 'of its readers'}: drop it, and apply again"
                left.append(LeftToPeople(table.name, why))
    return changes, left


def files_of(uris: Iterable[str]) -> str:
    """The files that a table reads, as text."""
    return ", ".join(uris) or "no file"


def _short(connection: str) -> tuple[str, ...]:
    """Location and name. BigQuery may return a path, or the project's number."""
    path = re.fullmatch(r"projects/[^/]+/locations/([^/]+)/connections/([^/]+)", connection)
    return tuple(part.lower() for part in (path.groups() if path else connection.rsplit(".", 2)[-2:]))
