"""Schema variants: separate columns or table versions for schemas that conflict with their table.

A load job takes a column's type from the file, and a table has one type per column. So every different type conflicts,
even a wider one: INT64 in FLOAT64 loses digits beyond 2^53, and NUMERIC cannot be loaded into BIGNUMERIC
(https://github.com/googleapis/google-cloud-dotnet/issues/11062; records of the older schema id still arrive). These
differences do not change a column's type, so they do not conflict: int and long, float and double, string and enum,
bytes and fixed, a decimal's precision within NUMERIC, the order of fields, more or fewer fields.

KBQ stores the columns assigned to tables (PROTOCOL, Objects) and only adds to them. So a schema always gets the same
variant."""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from kbq_assets.core.loading.column_limits import MAX_COLUMNS, count_columns
from kbq_assets.core.loading.tables import Column, type_of
from kbq_assets.core.protocol.codec import Stored
from kbq_assets.core.protocol.names import TableReference

#: Folder of the columns assigned to tables (PROTOCOL, Objects).
VARIANTS: Final = "placements/"
PARK: Final = "park"
NEW_TABLE_VERSION: Final = "new_table_version"
VARIANT_COLUMN: Final = "variant_column"

#: Names of fields from the record down, through lists and unions, as in columns.
Path: TypeAlias = tuple[str, ...]

#: BigQuery allows 300 characters in a column's name.
_LONGEST_FIELD: Final = 250
_NO_FIELDS: Final[frozenset[Path]] = frozenset()


@dataclass(frozen=True)
class TableColumn(Stored):
    """A column assigned to a table."""

    name: str
    type: str
    #: the field's name in schemas, if it differs; then the column is a variant
    field: str = ""
    fields: tuple[TableColumn, ...] = ()


@dataclass(frozen=True)
class TableVersion(Stored):
    """All columns assigned to one table."""

    columns: tuple[TableColumn, ...] = ()


@dataclass(frozen=True)
class TableVariants(Stored):
    """`placements/<dataset>.<table>.json`: the columns assigned to a table and its later versions."""

    versions: tuple[TableVersion, ...] = ()


@dataclass(frozen=True)
class SchemaVariant:
    """The table version and columns for records of one schema. If ``variants`` differ from the stored ones, store them
    before staging."""

    #: the table's version, from 1
    version: int
    #: new names of conflicting fields
    renames: Mapping[Path, str]
    variants: TableVariants


@dataclass(frozen=True, order=True)
class Evolution:
    """A new variant. With ``column``, it is that column of ``table`` for the field ``origin``. Without, ``table`` is a
    new version of the table ``origin``."""

    table: str
    origin: str
    column: str = ""
    type: str = ""

    def __str__(self) -> str:
        if not self.column:
            return f"{self.table} is a version of {self.origin}"
        return f"{self.table}: {self.column} {self.type} is a variant of {self.origin}"


class _Contradiction(Exception):
    """A column conflicts with the table and may not be renamed, or the table is full."""


def find_variant(
    columns: Iterable[Column], fields: frozenset[Path], known: TableVariants, policy: str
) -> SchemaVariant:
    """The first table version that fits a schema; if none fits, a new variant by the topic's policy. ``fields`` are the
    columns that may be renamed: fields of records, but not parts of maps and unions.
    """
    columns = tuple(columns)
    for number, version in enumerate(known.versions, 1):
        with contextlib.suppress(_Contradiction):
            merged, renames = _Merge(_NO_FIELDS).columns(version.columns, columns, ())
            if merged == version.columns or count_columns(merged) <= MAX_COLUMNS:
                return _variant(known, number, merged, renames)
    if known.versions and policy == VARIANT_COLUMN:
        return _variant(known, 1, *_Merge(fields).columns(known.versions[0].columns, columns, ()))
    return _variant(known, len(known.versions) + 1, *_Merge(_NO_FIELDS).columns((), columns, ()))


def add_variant(
    columns: Iterable[Column], fields: frozenset[Path], table: Iterable[Column], known: TableVariants
) -> SchemaVariant:
    """A variant in the table itself, next to the columns that the warehouse has. Ignores the policy, because files of
    the schema are already staged for this table."""
    known = with_table_columns(known, table)
    found = find_variant(columns, fields, replace(known, versions=known.versions[:1]), VARIANT_COLUMN)
    versions = (*found.variants.versions, *known.versions[1:])
    return replace(found, variants=replace(known, versions=versions))


def with_table_columns(known: TableVariants, columns: Iterable[Column]) -> TableVariants:
    """The variants merged with the columns of the warehouse's table. The warehouse's columns win; columns that it does
    not have yet are kept."""
    first = known.versions[0] if known.versions else TableVersion()
    merged = replace(first, columns=_merged_with(first.columns, tuple(columns)))
    return replace(known, versions=(merged, *known.versions[1:]))


def _merged_with(known: Iterable[TableColumn], columns: tuple[Column, ...]) -> tuple[TableColumn, ...]:
    ours = {each.name.lower(): each for each in known}
    found: list[TableColumn] = []
    for column in columns:
        own = ours.pop(column.name.lower(), None)
        inner = own.fields if own is not None and own.type == type_of(column) else ()
        own = own or TableColumn(column.name, "", varied_field(column, columns))
        fields = _merged_with(inner, column.fields)
        found.append(replace(own, name=column.name, type=type_of(column), fields=fields))
    return (*found, *ours.values())


def varied_field(column: Column, siblings: Iterable[Column]) -> str:
    """The field that an unknown column is a variant of, judged by its name; "" if it is not a variant."""
    field, label, rest = column.name.rpartition(_named_variant("", column))
    if not label or rest:
        return ""
    return next((each.name for each in siblings if each.name[:_LONGEST_FIELD] == field), "")


def version_table(table: str, version: int) -> str:
    """The table of a version: `d.t`, `d.t__v2`, and so on. Two underscores avoid other topics' tables. Raises
    InvalidName."""
    return table if version == 1 else str(TableReference.parse(f"{table}__v{version}"))


def evolutions(table: str, variants: TableVariants) -> tuple[Evolution, ...]:
    """All variants so far."""
    found: list[Evolution] = []
    for number, version in enumerate(variants.versions, 1):
        name = version_table(table, number)
        if number > 1:
            found.append(Evolution(name, table))
        found.extend(_variants(name, version.columns, ""))
    return tuple(found)


def _variants(table: str, columns: Iterable[TableColumn], above: str) -> Iterable[Evolution]:
    for column in columns:
        if column.field:
            yield Evolution(table, above + column.field, above + column.name, column.type)
        yield from _variants(table, column.fields, f"{above}{column.name}.")


def _variant(
    known: TableVariants, number: int, columns: tuple[TableColumn, ...], renames: Mapping[Path, str]
) -> SchemaVariant:
    before = known.versions[number - 1] if number <= len(known.versions) else TableVersion()
    version = replace(before, columns=columns)
    versions = (*known.versions[: number - 1], version, *known.versions[number:])
    return SchemaVariant(number, renames, replace(known, versions=versions))


class _Merge:
    """Adds a schema's columns to a table's. A conflicting field gets a new name if it is one of ``fields``."""

    def __init__(self, fields: frozenset[Path]) -> None:
        self._fields = fields

    def columns(
        self, known: tuple[TableColumn, ...], wanted: tuple[Column, ...], above: Path
    ) -> tuple[tuple[TableColumn, ...], dict[Path, str]]:
        """The merged columns of one record, and the new names. Raises _Contradiction."""
        merged, renames = _Record(known), dict[Path, str]()
        theirs = {column.name.lower() for column in wanted}
        for column in wanted:
            path = (*above, column.name)
            index, merged_column, inner = self._column(merged, column, path, theirs)
            merged.put(index, merged_column)
            renames |= inner
            if merged_column.name.lower() != column.name.lower():
                renames[path] = merged_column.name
        return tuple(merged.columns), renames

    def _column(
        self, known: _Record, wanted: Column, path: Path, theirs: set[str]
    ) -> tuple[int, TableColumn, dict[Path, str]]:
        """The field's first column that fits, or a new one at the end."""
        for index in known.of(wanted.name):
            each = known.columns[index]
            if each.type == type_of(wanted):
                with contextlib.suppress(_Contradiction):
                    fields, inner = self.columns(each.fields, wanted.fields, path)
                    return index, replace(each, fields=fields), inner
        name = self._new_name(known, wanted, path, theirs)
        fields, inner = self.columns((), wanted.fields, path)
        field = "" if name == wanted.name else wanted.name
        return len(known.columns), TableColumn(name, type_of(wanted), field, fields), inner

    def _new_name(self, known: _Record, wanted: Column, path: Path, theirs: set[str]) -> str:
        if wanted.name.lower() not in known.names and not known.of(wanted.name):
            return wanted.name
        if path not in self._fields:
            raise _Contradiction
        return _variant_name(wanted, known.names, theirs)


class _Record:
    """The columns of one record while they are merged. Names are in lower case."""

    def __init__(self, columns: Iterable[TableColumn]) -> None:
        self.columns: list[TableColumn] = []
        self.names: set[str] = set()
        self._of: defaultdict[str, list[int]] = defaultdict(list)
        for each in columns:
            self.put(len(self.columns), each)

    def of(self, field: str) -> list[int]:
        """Indexes of a schema's field's columns."""
        return self._of.get(field.lower(), [])

    def put(self, index: int, column: TableColumn) -> None:
        """Replace a column by one of the same name and field, or add one at the end."""
        if index < len(self.columns):
            self.columns[index] = column
            return
        self._of[(column.field or column.name).lower()].append(index)
        self.names.add(column.name.lower())
        self.columns.append(column)


def _variant_name(column: Column, ours: set[str], theirs: set[str]) -> str:
    base = name = _named_variant(column.name, column)
    number = 2
    while name.lower() in ours or name.lower() in theirs:
        name, number = f"{base}_{number}", number + 1
    return name


def _named_variant(field: str, column: Column) -> str:
    """The first name of a field's variant of this column's type."""
    label = re.sub(r"[^a-z0-9]+", "_", type_of(column).lower())
    return f"{field[:_LONGEST_FIELD]}__{label}"
