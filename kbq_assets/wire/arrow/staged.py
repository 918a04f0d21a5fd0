"""Reads staged files into Arrow tables with the types of a table's columns, in bounded batches.

Small files of one writer schema are decoded together, because a table has a fixed cost however few records it has.
"""

from __future__ import annotations

import dataclasses
import io
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import BinaryIO, Final, TypeAlias, TypeVar
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pyarrow as pa

from kbq_assets.core.errors import ConfigurationError, EncodingError, NotFound
from kbq_assets.core.loading.tables import Column, TableChange, plan_table_change
from kbq_assets.core.loading.verification import damage
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.wire.arrow.container import Block, read_blocks, read_header
from kbq_assets.wire.arrow.decode import Decoder
from kbq_assets.wire.arrow.errors import BadFile, DamagedSource, MissingSource, TooManyValues
from kbq_assets.wire.files.checksum import ChecksumReader
from kbq_assets.wire.files.container import SYNC_SIZE
from kbq_assets.wire.files.read_container import Header

OpenUri: TypeAlias = Callable[[str], BinaryIO]
Item = TypeVar("Item")

#: Bytes of Avro decoded at once.
_BATCH_BYTES: Final = 8 << 20
#: Number of files to read in turn, block by block, because files of several partitions have rows of the same hours.
_AT_ONCE: Final = 4
#: Files up to this size are read whole.
_SMALL_BYTES: Final = 1 << 20
#: Number of file headers to cache.
_HEADERS: Final = 8


def open_file_uri(uri: str) -> BinaryIO:
    """Open a ``file:`` URI. Raises FileNotFoundError, OSError, and ConfigurationError for other URIs."""
    parts = urlsplit(uri)
    if parts.scheme != "file":
        raise ConfigurationError(
            f"a local warehouse cannot read {uri}",
            next_step="stage to a local directory, or load into BigQuery",
        )
    return open(url2pathname(parts.path), "rb")


@dataclass(frozen=True)
class StagedBatch:
    """A table with records of one writer schema. ``rows`` are the numbers of rows by source file, in the table's order.
    A large file is in several batches."""

    table: pa.Table
    rows: Mapping[str, int]


class StagedTables:
    """The records of staged files as tables with the types of ``columns``."""

    def __init__(self, columns: Sequence[Column], open_uri: OpenUri) -> None:
        self._columns = tuple(columns)
        self._open_uri = open_uri
        self._decoders: dict[str, Decoder] = {}
        self._headers = _Headers()

    def read(
        self, uris: Iterable[str], files: Mapping[str, StagedFile] | None = None
    ) -> Iterator[StagedBatch]:
        """The records of all files, whose bytes are compared with ``files``. Raises LoadError, OSError, possibly after
        some batches.
        """
        files = files or {}
        waiting: dict[str, _BlockGroup] = defaultdict(_BlockGroup)
        for uri, schema, block in in_turn((self._blocks(uri, files.get(uri)) for uri in uris), _AT_ONCE):
            ready = waiting[schema]
            ready.add(uri, block)
            if ready.records >= self._decoder(schema).batch_records:
                yield from self._decoded(schema, waiting.pop(schema).blocks, files)
            elif sum(each.size for each in waiting.values()) >= _BATCH_BYTES:
                yield from self._all(waiting, files)
        yield from self._all(waiting, files)

    def _all(self, waiting: dict[str, _BlockGroup], files: Mapping[str, StagedFile]) -> Iterator[StagedBatch]:
        while waiting:
            schema, ready = waiting.popitem()
            yield from self._decoded(schema, ready.blocks, files)

    def _decoded(
        self, schema: str, waiting: Sequence[tuple[str, Block]], files: Mapping[str, StagedFile]
    ) -> Iterator[StagedBatch]:
        """Batches of blocks. If a block is bad, the error names only its file."""
        decoder, blocks = self._decoder(schema), dict[str, list[Block]]()
        for uri, block in waiting:
            blocks.setdefault(uri, []).append(block)
        try:
            table = decoder.table([block for each in blocks.values() for block in each])
        except TooManyValues:
            half = len(waiting) // 2
            for part in (waiting[:half], waiting[half:]):
                yield from self._decoded(schema, part, files)
            return
        except BadFile:
            table = pa.concat_tables(
                self._decoded_alone(decoder, uri, each, files.get(uri)) for uri, each in blocks.items()
            )
        yield StagedBatch(table, {uri: sum(block.count for block in each) for uri, each in blocks.items()})

    def _decoded_alone(
        self, decoder: Decoder, uri: str, blocks: Sequence[Block], file: StagedFile | None
    ) -> pa.Table:
        try:
            return decoder.table(blocks)
        except TooManyValues:
            half = len(blocks) // 2
            parts = (self._decoded_alone(decoder, uri, part, file) for part in (blocks[:half], blocks[half:]))
            return pa.concat_tables(parts)
        except BadFile as error:
            with self._opened(uri) as reader:  # its last blocks may not be read yet
                _require_whole(file, reader)
            raise BadFile(f"{uri}: {error.message}") from error

    def _blocks(self, uri: str, file: StagedFile | None) -> Iterator[tuple[str, str, Block]]:
        """Blocks of a file, each with the URI and the writer schema. Only small files are compared with ``file`` before
        their first block."""
        with self._opened(uri) as reader:
            try:
                if file is not None and file.bytes <= _SMALL_BYTES:
                    data = reader.read_all(file.bytes)
                    _require_whole(file, reader)
                    header, rest = self._headers.read(data)
                else:
                    rest = reader.buffered()
                    header = read_header(rest)
                schema = header.schema
                self._decoder(schema)
                for block in read_blocks(rest, header):
                    yield uri, schema, block
            except BadFile as error:
                _require_whole(file, reader)
                raise BadFile(f"{uri}: {error.message}") from error
            _require_whole(file, reader)

    @contextmanager
    def _opened(self, uri: str) -> Iterator[ChecksumReader]:
        try:
            with self._open_uri(uri) as stream:
                yield ChecksumReader(stream)
        except (FileNotFoundError, NotFound) as error:
            raise MissingSource(f"{uri} does not exist") from error

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


def in_turn(sources: Iterable[Iterator[Item]], most: int) -> Iterator[Item]:
    """Items of ``most`` sources at a time, in turn, until all sources have ended."""
    rest = iter(sources)
    opened = deque(islice(rest, most))
    while opened:
        source = opened.popleft()
        for item in source:
            yield item
            opened.append(source)
            break
        else:
            opened.extend(islice(rest, 1))


class _BlockGroup:
    """Blocks of one writer schema that are decoded together, with their files."""

    def __init__(self) -> None:
        self.blocks: list[tuple[str, Block]] = []
        self.records = self.size = 0

    def add(self, uri: str, block: Block) -> None:
        self.blocks.append((uri, block))
        self.records += block.count
        self.size += len(block.data)


class _Headers:
    """Reads the headers of files in memory. Files of one schema have equal headers, so it parses each header once."""

    def __init__(self) -> None:
        self._known: dict[bytes, Header] = {}

    def read(self, data: bytes) -> tuple[Header, BinaryIO]:
        """The header of a file, and a stream of the rest. Raises BadFile."""
        stream = io.BytesIO(data)
        for beginning, known in self._known.items():
            if data.startswith(beginning) and len(data) >= len(beginning) + SYNC_SIZE:
                stream.seek(len(beginning))
                return dataclasses.replace(known, sync_marker=stream.read(SYNC_SIZE)), stream
        found = read_header(stream)
        if len(self._known) >= _HEADERS:
            self._known.clear()
        self._known[data[: stream.tell() - SYNC_SIZE]] = found
        return found, stream


def _require_whole(file: StagedFile | None, reader: ChecksumReader) -> None:
    """Raise DamagedSource unless the bytes that were read match the commit's entry."""
    if file is not None and (why := damage(file, *reader.drain())):
        raise DamagedSource(why)


def _shown(change: TableChange) -> str:
    parts = [f"the table lacks {', '.join(change.added)}"] if change.added else []
    parts += [f"the table requires {', '.join(change.relaxed)}"] if change.relaxed else []
    parts += [f"it has more digits in {', '.join(change.widened)}"] if change.widened else []
    return "; ".join(parts)
