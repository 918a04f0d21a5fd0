"""Avro C++, out of ClickHouse, as a reader of files: BigQuery reads by it too. One session per process."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

#: Columns that a file does not have are 0: a header is judged with any fields.
_LENIENT = "settings input_format_avro_allow_missing_fields = 1, output_format_json_quote_64bit_integers = 0"


def totals(file: Path) -> tuple[int, int]:
    """The number of rows, and the sum of their offsets. Raises RuntimeError for a file that Avro C++ refuses."""
    [row] = _answer(f"select count(), sum(_kafka_offset) from {_file(file, '_kafka_offset Int64')}")
    return row[0], row[1]


def rows(file: Path, columns: str) -> list[Any]:
    """Rows by offset, of ``columns`` with ClickHouse's types. Raises RuntimeError."""
    return _answer(f"select * from {_file(file, columns)} order by _kafka_offset")


def _file(file: Path, columns: str) -> str:
    return f"file('{file}', 'Avro', '{columns}')"


def _answer(query: str) -> list[Any]:
    lines = str(_session().query(f"{query} {_LENIENT}", "JSONCompactEachRow")).splitlines()
    return [json.loads(line) for line in lines]


@functools.cache
def _session() -> Any:
    from chdb import session  # it loads all of ClickHouse

    opened: Any = session.Session  # it has no types
    return opened()
