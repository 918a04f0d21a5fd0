"""Loads staged files into a table, in bounded batches, inside the caller's transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import BinaryIO, Final, TypeAlias
from urllib.parse import urlsplit
from urllib.request import url2pathname

import duckdb
import pyarrow as pa

from kbq_assets.adapters.duckdb.container import Block, read_blocks, read_header
from kbq_assets.adapters.duckdb.decode import Decoder
from kbq_assets.adapters.duckdb.errors import BadFile, DamagedSource, LoadError, MissingSource
from kbq_assets.core.errors import ConfigurationError, EncodingError, NotFound
from kbq_assets.core.loading.tables import Column, plan_table_change
from kbq_assets.core.loading.verification import damage
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.wire.files.checksum import ChecksumReader

OpenUri: TypeAlias = Callable[[str], BinaryIO]

#: Bytes of Avro decoded at once, and rows, or bytes of Arrow, inserted at once.
_BATCH_BYTES, _INSERT_ROWS, _INSERT_BYTES = 32 << 20, 50_000, 64 << 20
#: Maximum files named in an error that one of several files caused.
_FILES_SHOWN: Final = 3

#: DuckDB's permanent errors: the same files would cause them again.
_PERMANENT: Final = (
    duckdb.DataError,
    duckdb.IntegrityError,
    duckdb.ProgrammingError,
    duckdb.NotSupportedError,
)


def open_file_uri(uri: str) -> BinaryIO:
    """Open a ``file:`` URI. Raises FileNotFoundError, OSError, ConfigurationError for another kind of URI."""
    parts = urlsplit(uri)
    if parts.scheme != "file":
        raise ConfigurationError(
            f"a local warehouse cannot read {uri}",
            next_step="stage to a local directory, or load into BigQuery",
        )
    return open(url2pathname(parts.path), "rb")


class StagedFileLoader:
    """Loads files into one table. ``target`` is its name in SQL; ``keep=False`` drops every batch again."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        target: str,
        columns: Sequence[Column],
        open_uri: OpenUri,
        *,
        keep: bool = True,
    ) -> None:
        self._connection = connection
        self._target = target
        self._columns = columns
        self._open_uri = open_uri
        self._keep = keep
        self._decoders: dict[str, Decoder] = {}
        self._schema = ""
        self._waiting: list[pa.Table] = []
        #: rows and bytes that wait: counted up, since a batch may have thousands of small files
        self._rows = self._size = 0
        self._waiting_files: dict[str, None] = {}

    def load(self, uris: Iterable[str], files: Mapping[str, StagedFile] | None = None) -> int:
        """Append all records of all files; return their number. The bytes must be those that ``files`` lists.

        Raises LoadError, OSError, duckdb.Error.
        """
        rows = 0
        for uri in uris:
            rows += self._load_file(uri, (files or {}).get(uri))
        self._flush()
        return rows

    def _load_file(self, uri: str, file: StagedFile | None) -> int:
        try:
            with self._open_uri(uri) as stream:
                reader = ChecksumReader(stream)
                try:
                    rows = self._append(uri, reader.buffered())
                except BadFile:
                    _require_whole(file, reader)
                    raise
                _require_whole(file, reader)
        except (FileNotFoundError, NotFound) as error:
            raise MissingSource(f"{uri} does not exist") from error
        except BadFile as error:
            raise BadFile(f"{uri}: {error.message}") from error
        return rows

    def _append(self, uri: str, stream: BinaryIO) -> int:
        rows = 0
        for schema, table in self._tables(stream):
            rows += table.num_rows
            self._add(uri, schema, table)
        return rows

    def _tables(self, stream: BinaryIO) -> Iterator[tuple[str, pa.Table]]:
        header = read_header(stream)
        decoder = self._decoder(header.schema)
        blocks: list[Block] = []
        records = size = 0
        for block in read_blocks(stream, header):
            blocks.append(block)
            records, size = records + block.count, size + len(block.data)
            if records >= decoder.batch_records or size >= _BATCH_BYTES:
                yield header.schema, decoder.table(blocks)
                blocks.clear()
                records = size = 0
        if blocks:
            yield header.schema, decoder.table(blocks)

    def _decoder(self, schema: str) -> Decoder:
        """The decoder of a writer schema. Raises BadFile if the schema does not fit the table."""
        if schema not in self._decoders:
            try:
                change = plan_table_change(schema, tuple(self._columns))
                if change:
                    raise BadFile(
                        f"its schema does not fit the table's: {_shown(change.added, change.relaxed)}"
                    )
                self._decoders[schema] = Decoder(schema, self._columns)
            except (ConfigurationError, EncodingError) as error:
                raise BadFile(f"its schema does not fit the table's: {error.message}") from error
            except (KeyError, TypeError) as error:
                raise BadFile(f"its schema is damaged: {error!r}") from error
        return self._decoders[schema]

    def _add(self, uri: str, schema: str, table: pa.Table) -> None:
        """Collect small files into one insert, since each insert costs milliseconds, whatever its size."""
        if schema != self._schema:
            self._flush()
            self._schema = schema
        self._waiting.append(table)
        self._waiting_files[uri] = None
        self._rows += table.num_rows
        self._size += table.nbytes
        if self._rows >= _INSERT_ROWS or self._size >= _INSERT_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._insert(pa.concat_tables(self._waiting))
        self._waiting.clear()
        self._waiting_files.clear()
        self._rows = self._size = 0

    def _insert(self, batch: pa.Table) -> None:
        self._connection.register("kbq_batch", batch)
        try:
            self._connection.execute(f"INSERT INTO {self._target} BY NAME SELECT * FROM kbq_batch")
            if not self._keep:
                self._connection.execute(f"TRUNCATE {self._target}")
        except _PERMANENT as error:
            raise LoadError(f"{self._suspects()}: {error}") from error
        finally:
            self._connection.unregister("kbq_batch")

    def _suspects(self) -> str:
        files = list(self._waiting_files)
        if len(files) == 1:
            return files[0]
        more = f" and {len(files) - _FILES_SHOWN} more" if len(files) > _FILES_SHOWN else ""
        return f"one of {', '.join(files[:_FILES_SHOWN])}{more}"


def _require_whole(file: StagedFile | None, reader: ChecksumReader) -> None:
    """Raise DamagedSource unless the bytes that were read are the file that the commit lists."""
    if file is not None and (why := damage(file, *reader.drain())):
        raise DamagedSource(why)


def _shown(added: Sequence[str], relaxed: Sequence[str]) -> str:
    parts = [f"the table lacks {', '.join(added)}"] if added else []
    parts += [f"the table requires {', '.join(relaxed)}"] if relaxed else []
    return "; ".join(parts)
