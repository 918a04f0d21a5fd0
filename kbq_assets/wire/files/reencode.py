"""Rewrites a staged file with a schema that has all of its fields, record by record."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from typing import BinaryIO, Final

import fastavro

from kbq_assets.core.avro import tree as avro
from kbq_assets.core.avro.common import NoCommonSchema
from kbq_assets.wire.arrow.avro_types import value_of
from kbq_assets.wire.arrow.container import read_blocks, read_header
from kbq_assets.wire.arrow.decode import Decoder
from kbq_assets.wire.chunk import encode_long
from kbq_assets.wire.files.codec import Codec, compressor
from kbq_assets.wire.files.container import header

_CODEC: Final[Codec] = "snappy"


def reencoded(stream: BinaryIO, schema_json: str) -> Iterator[bytes]:
    """The bytes of a container file with the same records in another schema (`common_schema`). Raises BadFile for a
    damaged file, NoCommonSchema for a record that does not fit the schema.
    """
    found = read_header(stream)
    own = {key: value for key, value in found.entries.items() if key not in ("avro.codec", "avro.schema")}
    yield header(schema_json, _CODEC, found.sync_marker, own)
    decoder, compress = Decoder(found.schema, ()), compressor(_CODEC)
    wanted = fastavro.parse_schema(value_of(avro.parse(avro.load_schema(schema_json))).avro)
    for block in read_blocks(stream, found):
        buffer = BytesIO()
        try:
            for record in decoder.records(block):
                fastavro.schemaless_writer(buffer, wanted, record)
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise NoCommonSchema(f"a record does not fit the common schema: {error!r}") from error
        data = compress(buffer.getvalue())
        yield b"".join((encode_long(block.count), encode_long(len(data)), data, found.sync_marker))
