"""Where records go whose schema contradicts their table: into columns, or a table, of their own.

A load job takes a column's type from the file, and a table has one type per column. So every other type is a
contradiction, a wider one too: INT64 in FLOAT64 loses digits beyond 2^53, NUMERIC cannot be loaded into BIGNUMERIC
(https://github.com/googleapis/google-cloud-dotnet/issues/11062; records of the older schema id still come), and text is
no bytes. What changes no column type is none: int and long,
float and double, string and enum, bytes and fixed, a decimal's precision within NUMERIC, order, fields more or less.

What tables were given is kept (PROTOCOL, Objects) and only grows. So a schema that was placed once is placed alike for
ever: its columns are in its table's, and what contradicted it elsewhere stays.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from kbq_assets.core.loading.tables import Column, type_of
from kbq_assets.core.protocol.names import TableReference

#: Where it is kept what tables were given (PROTOCOL, Objects).
PLACEMENTS: Final = "placements/"
PARK: Final = "park"
NEW_TABLE_VERSION: Final = "new_table_version"
VARIANT_COLUMN: Final = "variant_column"

#: Names of fields from a record down, through lists and unions: those of columns.
Path: TypeAlias = tuple[str, ...]

#: A column's name has 300 characters at most.
_LONGEST_FIELD: Final = 250
_NO_FIELDS: Final[frozenset[Path]] = frozenset()


@dataclass(frozen=True)
class PlacedColumn:
    """A column that a table was given. ``field`` is what schemas call it where that differs: then it is a variant."""

    name: str
    type: str
    field: str = ""
    fields: tuple[PlacedColumn, ...] = ()

    def holds(self, field: str) -> bool:
        """Whether it is of a field of schemas. Names ignore case."""
        return (self.field or self.name).lower() == field.lower()


@dataclass(frozen=True)
class TableVersion:
    """All columns that one table was given."""

    columns: tuple[PlacedColumn, ...] = ()


@dataclass(frozen=True)
class Placement:
    """`placements/<dataset>.<table>.json`: what a table, and its later versions, were given."""

    versions: tuple[TableVersion, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Placed:
    """Where a schema's records go: the number of the table's version, from 1, and the fields that have another name
    there. ``placement`` is to be stored before anything is staged, where it differs from what is."""

    version: int
    renames: Mapping[Path, str]
    placement: Placement


@dataclass(frozen=True, order=True)
class Evolution:
    """What a contradiction led to: a ``column`` of ``table``, beside that of the field ``origin``; or, without a
    column, ``table`` itself, a version of ``origin``."""

    table: str
    origin: str
    column: str = ""
    type: str = ""

    def __str__(self) -> str:
        if not self.column:
            return f"{self.table} is a version of {self.origin}"
        return f"{self.table}: {self.column} {self.type} is a variant of {self.origin}"


class _Contradiction(Exception):
    """A column cannot be what the table has, nor have another name."""


def place(columns: Iterable[Column], fields: frozenset[Path], known: Placement, policy: str) -> Placed:
    """Place a schema: in the first version that it fits, else by the topic's policy.

    ``fields`` are the columns that may have another name: fields of records, not the parts of maps and unions.
    """
    columns = tuple(columns)
    for number, version in enumerate(known.versions, 1):
        try:
            return _placed(known, number, *_Merge(_NO_FIELDS).columns(version.columns, columns, ()))
        except _Contradiction:
            continue
    if known.versions and policy == VARIANT_COLUMN:
        return _placed(known, 1, *_Merge(fields).columns(known.versions[0].columns, columns, ()))
    return _placed(known, len(known.versions) + 1, *_Merge(_NO_FIELDS).columns((), columns, ()))


def place_beside(
    columns: Iterable[Column], fields: frozenset[Path], table: Iterable[Column], known: Placement
) -> Placed:
    """Place a schema in the table itself, beside the columns that the warehouse has, whatever the policy: its files are
    there already."""
    known = learned(known, table)
    placed = place(columns, fields, replace(known, versions=known.versions[:1]), VARIANT_COLUMN)
    versions = (*placed.placement.versions, *known.versions[1:])
    return replace(placed, placement=replace(known, versions=versions))


def learned(known: Placement, columns: Iterable[Column]) -> Placement:
    """With the columns that the warehouse has in the table: theirs prevail, those it has not got yet stay."""
    first = known.versions[0].columns if known.versions else ()
    return replace(known, versions=(TableVersion(_learned(first, tuple(columns))), *known.versions[1:]))


def _learned(known: Iterable[PlacedColumn], columns: tuple[Column, ...]) -> tuple[PlacedColumn, ...]:
    ours = {each.name.lower(): each for each in known}
    found: list[PlacedColumn] = []
    for column in columns:
        own = ours.pop(column.name.lower(), None)
        inner = own.fields if own is not None and own.type == type_of(column) else ()
        field = _field_of(column, columns) if own is None else own.field
        found.append(PlacedColumn(column.name, type_of(column), field, _learned(inner, column.fields)))
    return (*found, *ours.values())


def _field_of(column: Column, siblings: Iterable[Column]) -> str:
    """The field that a column nobody knows is a variant of, by its name; "" for none."""
    return next((each.name for each in siblings if _named_variant(each.name, column) == column.name), "")


def version_table(table: str, version: int) -> str:
    """A version's table: `d.t`, `d.t__v2`, … Two underscores, so that it is no other topic's by chance. Raises
    InvalidName."""
    return table if version == 1 else str(TableReference.parse(f"{table}__v{version}"))


def evolutions(table: str, placement: Placement) -> tuple[Evolution, ...]:
    """All that contradictions led to so far."""
    found: list[Evolution] = []
    for number, version in enumerate(placement.versions, 1):
        name = version_table(table, number)
        if number > 1:
            found.append(Evolution(name, table))
        found.extend(_variants(name, version.columns, ""))
    return tuple(found)


def _variants(table: str, columns: Iterable[PlacedColumn], above: str) -> Iterable[Evolution]:
    for column in columns:
        if column.field:
            yield Evolution(table, above + column.field, above + column.name, column.type)
        yield from _variants(table, column.fields, f"{above}{column.name}.")


def _placed(
    known: Placement, number: int, columns: tuple[PlacedColumn, ...], renames: Mapping[Path, str]
) -> Placed:
    versions = (*known.versions[: number - 1], TableVersion(columns), *known.versions[number:])
    return Placed(number, renames, replace(known, versions=versions))


class _Merge:
    """Adds a schema's columns to a table's. ``fields`` may get names of their own where they contradict it."""

    def __init__(self, fields: frozenset[Path]) -> None:
        self._fields = fields

    def columns(
        self, known: tuple[PlacedColumn, ...], wanted: tuple[Column, ...], above: Path
    ) -> tuple[tuple[PlacedColumn, ...], dict[Path, str]]:
        """The columns of one record afterwards, and new names. Raises _Contradiction."""
        merged, renames = list(known), dict[Path, str]()
        theirs = {column.name.lower() for column in wanted}
        for column in wanted:
            path = (*above, column.name)
            index, placed, inner = self._column(merged, column, path, theirs)
            merged[index : index + 1] = [placed]
            renames |= inner
            if placed.name.lower() != column.name.lower():
                renames[path] = placed.name
        return tuple(merged), renames

    def _column(
        self, known: list[PlacedColumn], wanted: Column, path: Path, theirs: set[str]
    ) -> tuple[int, PlacedColumn, dict[Path, str]]:
        """Where a column goes: the first one of its field that it fits, or a new one at the end."""
        for index, each in enumerate(known):
            if each.holds(wanted.name) and each.type == type_of(wanted):
                with contextlib.suppress(_Contradiction):
                    fields, inner = self.columns(each.fields, wanted.fields, path)
                    return index, replace(each, fields=fields), inner
        name = self._new_name(known, wanted, path, theirs)
        fields, inner = self.columns((), wanted.fields, path)
        field = "" if name == wanted.name else wanted.name
        return len(known), PlacedColumn(name, type_of(wanted), field, fields), inner

    def _new_name(self, known: list[PlacedColumn], wanted: Column, path: Path, theirs: set[str]) -> str:
        ours = {each.name.lower() for each in known}
        if wanted.name.lower() not in ours and not any(each.holds(wanted.name) for each in known):
            return wanted.name
        if path not in self._fields:
            raise _Contradiction
        return _variant_name(wanted, ours | theirs)


def _variant_name(column: Column, taken: set[str]) -> str:
    base = name = _named_variant(column.name, column)
    number = 2
    while name.lower() in taken:
        name, number = f"{base}_{number}", number + 1
    return name


def _named_variant(field: str, column: Column) -> str:
    """The first name of a field's variant of this column's type."""
    label = re.sub(r"[^a-z0-9]+", "_", type_of(column).lower())
    return f"{field[:_LONGEST_FIELD]}__{label}"
