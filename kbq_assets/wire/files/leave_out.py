"""Copies a staged file without the rows at some offsets. Unaffected blocks keep their records unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from typing import BinaryIO, Final

import fastavro

from kbq_assets.core.avro import tree as avro
from kbq_assets.core.erasure.offset_sets import Offsets, has
from kbq_assets.core.errors import UnstageableSchema
from kbq_assets.wire.arrow.avro_types import value_of
from kbq_assets.wire.arrow.container import read_blocks, read_header
from kbq_assets.wire.arrow.decode import Decoder
from kbq_assets.wire.arrow.errors import BadFile
from kbq_assets.wire.chunk import encode_long
from kbq_assets.wire.files.codec import Codec, compressor
from kbq_assets.wire.files.container import header

_CODEC: Final[Codec] = "snappy"
_OFFSET: Final = "_kafka_offset"


class RowFilter:
    """Leaves out and counts the rows at these offsets. All rows of a staged file are of one partition."""

    def __init__(self, erased: Offsets) -> None:
        self._erased = erased
        self.left_out = 0

    def contents(self, stream: BinaryIO) -> Iterator[bytes]:
        """The bytes of the file without the rows. Raises BadFile."""
        found = read_header(stream)
        wanted = fastavro.parse_schema(value_of(_rows_of(found.schema)).avro)
        own = {key: value for key, value in found.entries.items() if key not in ("avro.codec", "avro.schema")}
        yield header(found.schema, _CODEC, found.sync_marker, own)
        decoder, compress = Decoder(found.schema, ()), compressor(_CODEC)
        for block in read_blocks(stream, found):
            records = decoder.records(block)
            kept = [record for record in records if not has(self._erased, record[_OFFSET])]
            self.left_out += len(records) - len(kept)
            if not kept:
                continue
            plain = block.data
            if len(kept) < len(records):
                buffer = BytesIO()
                for record in kept:
                    fastavro.schemaless_writer(buffer, wanted, record)
                plain = buffer.getvalue()
            data = compress(plain)
            yield b"".join((encode_long(len(kept)), encode_long(len(data)), data, found.sync_marker))


def _rows_of(schema: str) -> avro.RecordType:
    """The type of the rows, which must have an offset. Raises BadFile."""
    try:
        root = avro.parse(avro.load_schema(schema))
    except UnstageableSchema as error:
        raise BadFile(f"its header is damaged: {error.message}") from error
    if not isinstance(root, avro.RecordType) or _OFFSET not in root.fields:
        raise BadFile(f"its rows have no {_OFFSET}")
    return root
