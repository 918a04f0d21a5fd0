"""Reads staged files into Arrow tables with the types of a table's columns, in bounded batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, Final, TypeAlias
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pyarrow as pa

from kbq_assets.core.errors import ConfigurationError, EncodingError, NotFound
from kbq_assets.core.loading.tables import Column, TableChange, plan_table_change
from kbq_assets.core.loading.verification import damage
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.wire.arrow.container import Block, read_blocks, read_header
from kbq_assets.wire.arrow.decode import Decoder
from kbq_assets.wire.arrow.errors import BadFile, DamagedSource, MissingSource
from kbq_assets.wire.files.checksum import ChecksumReader

OpenUri: TypeAlias = Callable[[str], BinaryIO]

#: Bytes of Avro decoded at once.
_BATCH_BYTES: Final = 32 << 20


def open_file_uri(uri: str) -> BinaryIO:
    """Open a ``file:`` URI. Raises FileNotFoundError, OSError, ConfigurationError for another kind of URI."""
    parts = urlsplit(uri)
    if parts.scheme != "file":
        raise ConfigurationError(
            f"a local warehouse cannot read {uri}",
            next_step="stage to a local directory, or load into BigQuery",
        )
    return open(url2pathname(parts.path), "rb")


class StagedTables:
    """The records of staged files as tables with the types of ``columns``."""

    def __init__(self, columns: Sequence[Column], open_uri: OpenUri) -> None:
        self._columns = tuple(columns)
        self._open_uri = open_uri
        self._decoders: dict[str, Decoder] = {}

    def read(self, uri: str, file: StagedFile | None = None) -> Iterator[tuple[str, pa.Table]]:
        """Writer schema and records of a file, batch by batch. The end verifies that the bytes are those of ``file``.

        Raises LoadError, OSError.
        """
        try:
            with self._open_uri(uri) as stream:
                reader = ChecksumReader(stream)
                try:
                    yield from self._tables(reader.buffered())
                except BadFile:
                    _require_whole(file, reader)
                    raise
                _require_whole(file, reader)
        except (FileNotFoundError, NotFound) as error:
            raise MissingSource(f"{uri} does not exist") from error
        except BadFile as error:
            raise BadFile(f"{uri}: {error.message}") from error

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
                change = plan_table_change(schema, self._columns)
                if change:
                    raise BadFile(f"its schema does not fit the table's: {_shown(change)}")
                self._decoders[schema] = Decoder(schema, self._columns)
            except (ConfigurationError, EncodingError) as error:
                raise BadFile(f"its schema does not fit the table's: {error.message}") from error
            except (KeyError, TypeError) as error:
                raise BadFile(f"its schema is damaged: {error!r}") from error
        return self._decoders[schema]


def _require_whole(file: StagedFile | None, reader: ChecksumReader) -> None:
    """Raise DamagedSource unless the bytes that were read are the file that the commit lists."""
    if file is not None and (why := damage(file, *reader.drain())):
        raise DamagedSource(why)


def _shown(change: TableChange) -> str:
    parts = [f"the table lacks {', '.join(change.added)}"] if change.added else []
    parts += [f"the table requires {', '.join(change.relaxed)}"] if change.relaxed else []
    parts += [f"it has more digits in {', '.join(change.widened)}"] if change.widened else []
    return "; ".join(parts)
