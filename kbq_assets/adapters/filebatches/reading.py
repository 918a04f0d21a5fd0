"""Reads files of each format as DuckDB relations.

A `HiveGroup` has a job's files with the same hive values. CSV and JSON are read with the types of the table's columns.
Avro, ORC and Parquet have their own types.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import duckdb
import pyarrow as pa
from pyarrow import orc

from kbq_assets.adapters.duckdb.types import duckdb_type, literal, quoted
from kbq_assets.adapters.filebatches.compressed import check_compressed
from kbq_assets.adapters.filebatches.local_files import LocalFiles
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.filebatches.hive import hive_types, hive_values
from kbq_assets.core.loading.tables import Column, columns_of
from kbq_assets.ports.file_loads import FileJob
from kbq_assets.wire.arrow.container import read_header
from kbq_assets.wire.arrow.errors import BadFile
from kbq_assets.wire.arrow.staged import StagedTables

#: Keys of each format that DuckDB supports.
KEYS: Final[Mapping[str, frozenset[str]]] = {
    "CSV": frozenset(
        {"fieldDelimiter", "skipLeadingRows", "quote", "nullMarker", "allowQuotedNewlines", "allowJaggedRows",
         "encoding"}
    ),
    "NEWLINE_DELIMITED_JSON": frozenset({"encoding"}),
}  # fmt: skip
#: Formats whose files may be compressed as a whole.
_TEXT: Final = frozenset({"CSV", "NEWLINE_DELIMITED_JSON"})
#: Characters with a meaning in DuckDB's patterns. In brackets, they stand for themselves.
_WILD: Final = re.compile(r"[*?\[]")
_ENCODINGS: Final = {"UTF-8": "utf-8", "UTF8": "utf-8", "ISO-8859-1": "latin-1"}
_DELIMITERS: Final = {"tab": "\t", "\\t": "\t"}


def check(form: str, config: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for values that DuckDB does not support."""
    encoding = str(config.get("encoding", "UTF-8")).upper()
    if encoding not in _ENCODINGS or (form != "CSV" and _ENCODINGS[encoding] != "utf-8"):
        raise ConfigurationError(
            f"load.json: a local warehouse does not read {form} in {encoding}", next_step="use UTF-8"
        )
    if config.get("ignoreUnknownValues") and form == "CSV":
        raise ConfigurationError(
            "load.json: a local warehouse does not support ignoreUnknownValues for CSV",
            next_step="remove it",
        )


@dataclass(frozen=True)
class HiveGroup:
    """Files with the same hive values. ``constants`` has these values as SQL, by column."""

    form: str
    config: Mapping[str, Any]
    uris: Sequence[str]
    paths: Sequence[Path]
    constants: Mapping[str, str]
    constant_types: Mapping[str, str]
    connection: duckdb.DuckDBPyConnection

    def describe(self) -> tuple[Column, ...] | None:
        """The columns in the header of Avro files; None for other formats."""
        if self.form != "AVRO":
            return None
        with self.paths[0].open("rb") as stream:
            found = columns_of(read_header(stream).schema)
        return (*found, *(Column(name, kind) for name, kind in self.constant_types.items()))

    def inferred(self) -> str:
        """A SELECT over the files with types inferred by DuckDB, for a new table."""
        return self._select(self._relation(()))

    def selects(self, columns: Sequence[Column]) -> Iterator[str]:
        """SELECTs over the files in bounded memory, each with a part of the rows."""
        own = [each for each in columns if each.name.lower() not in map(str.lower, self.constants)]
        if self.form == "AVRO":
            yield from self._arrow(_avro(own, self.uris, self.paths))
        elif self.form == "ORC":
            yield from self._arrow(_orc(self.paths))
        else:
            if self.form == "NEWLINE_DELIMITED_JSON" and not self.config.get("ignoreUnknownValues"):
                self._refuse_unknown_keys(own)
            yield self._select(self._relation(own))

    def _select(self, relation: str) -> str:
        more = "".join(f", {value} AS {quoted(name)}" for name, value in self.constants.items())
        return f"SELECT *{more} FROM {relation}"

    def _files(self) -> str:
        """The files as the first arguments of a reader. Each of their names is no pattern, and no directory becomes a
        column: DuckDB would do both by default."""
        names = (_WILD.sub(r"[\g<0>]", str(path)) for path in self.paths)
        return f"[{', '.join(map(literal, names))}], hive_partitioning = false"

    def _relation(self, columns: Sequence[Column]) -> str:
        files = self._files()
        if self.form == "PARQUET":
            return f"read_parquet({files}, union_by_name = true)"
        if self.form == "CSV":
            return f"read_csv({files}, {', '.join(_csv(self.config, columns))})"
        if self.form == "NEWLINE_DELIMITED_JSON":
            return f"read_json({files}, {', '.join(_json(columns))})"
        if self.form == "ORC":
            self.connection.register("kbq_files", orc.ORCFile(self.paths[0]).read())
            return "kbq_files"
        raise ConfigurationError(f"the format {self.form} is not supported", next_step="use another format")

    def _arrow(self, tables: Iterator[pa.Table]) -> Iterator[str]:
        for table in tables:
            self.connection.register("kbq_files", table)
            try:
                yield self._select("kbq_files")
            finally:
                # A violated constraint aborts the transaction. Then DuckDB refuses this call too.
                with contextlib.suppress(duckdb.TransactionException):
                    self.connection.unregister("kbq_files")

    def _refuse_unknown_keys(self, columns: Sequence[Column]) -> None:
        files = self._files()
        rows = self.connection.execute(
            "SELECT DISTINCT unnest(json_keys(json)) AS key"
            f" FROM read_json_objects({files}, format = 'newline_delimited') ORDER BY 1"
        ).fetchall()
        known = {column.name.lower() for column in columns}
        if unknown := [key for (key,) in rows if key.lower() not in known]:
            raise BadFile(f"no such field: {', '.join(unknown[:5])} (ignoreUnknownValues ignores it)")


def groups(connection: duckdb.DuckDBPyConnection, job: FileJob, files: LocalFiles) -> Iterator[HiveGroup]:
    """A job's files, grouped by their hive values. Raises LoadError, Unavailable."""
    options = job.config.get("hivePartitioningOptions")
    form, uris = str(job.config["sourceFormat"]), tuple(job.sizes)  # patterns are for BigQuery
    types = hive_types(options, [_place(uri) for uri in uris]) if options is not None else {}
    values_of: Callable[[str], tuple[tuple[str, str], ...]]
    values_of = (lambda uri: hive_values(_place(uri))) if options is not None else (lambda uri: ())
    for values, group in groupby(sorted(uris, key=values_of), key=values_of):
        own = list(group)
        if options is not None and {name for name, _ in values} != types.keys():
            raise BadFile(f"the hive keys of {own[0]} differ from {', '.join(types) or 'none'}")
        constants = {
            name: f"CAST({literal(value)} AS {duckdb_type(Column(name, types[name]))})"
            for name, value in values
        }
        paths = [files.path(uri) for uri in own]
        if form in _TEXT:
            for uri, path in zip(own, paths, strict=True):
                check_compressed(uri, path)
        yield HiveGroup(form, job.config, own, paths, constants, types, connection)


def _place(uri: str) -> str:
    """A file's place with the names of its directories: only addresses of local files are encoded."""
    return unquote(uri) if uri.startswith("file:") else uri


def _csv(config: Mapping[str, Any], columns: Sequence[Column]) -> Iterator[str]:
    delimiter = str(config.get("fieldDelimiter", ","))
    yield f"delim = {literal(_DELIMITERS.get(delimiter, delimiter))}"
    quote = str(config.get("quote", '"'))
    yield f"quote = {literal(quote)}, escape = {literal(quote)}"
    yield f"nullstr = {literal(str(config.get('nullMarker', '')))}"
    yield f"encoding = {literal(_ENCODINGS[str(config.get('encoding', 'UTF-8')).upper()])}"
    yield f"null_padding = {str(bool(config.get('allowJaggedRows'))).lower()}"
    if columns:
        yield f"auto_detect = false, header = false, skip = {int(config.get('skipLeadingRows', 0))}"
        yield f"columns = {_typed(columns)}"
    else:  # the first skipped row has the column names
        leading = int(config.get("skipLeadingRows", 0))
        yield f"skip = {max(0, leading - 1)}" + (", header = true" if leading else "")


def _json(columns: Sequence[Column]) -> Iterator[str]:
    yield "format = 'newline_delimited'"
    if columns:
        yield f"columns = {_typed(columns)}"


def _typed(columns: Sequence[Column]) -> str:
    pairs = (f"{literal(column.name)}: {literal(duckdb_type(column))}" for column in columns)
    return f"{{{', '.join(pairs)}}}"


def _avro(columns: Sequence[Column], uris: Sequence[str], paths: Sequence[Path]) -> Iterator[pa.Table]:
    by_uri = dict(zip(uris, paths, strict=True))
    staged = StagedTables(columns, lambda uri: by_uri[uri].open("rb"))
    for batch in staged.read(uris):
        yield batch.table


def _orc(paths: Sequence[Path]) -> Iterator[pa.Table]:
    for path in paths:
        try:
            opened = orc.ORCFile(path)
            for stripe in range(opened.nstripes):
                yield pa.Table.from_batches([opened.read_stripe(stripe)])
        except (pa.ArrowInvalid, OSError) as error:
            raise BadFile(f"{path.name} is not an ORC file: {error}") from error
