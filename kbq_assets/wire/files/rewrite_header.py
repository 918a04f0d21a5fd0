"""Changes the schema of a staged file: writes a new header, and copies the blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, Final, cast

from kbq_assets.core.errors import EncodingError
from kbq_assets.wire.files.codec import Codec
from kbq_assets.wire.files.container import header
from kbq_assets.wire.files.read_container import DamagedFile, read_header

_PIECE: Final = 4 * 1024 * 1024


def reheaded(stream: BinaryIO, schema_json: str) -> Iterator[bytes]:
    """The bytes of a container file with this schema in its header. Raises EncodingError for any other file."""
    try:
        found = read_header(stream)
    except DamagedFile as error:
        raise EncodingError("a staged file has no readable header", next_step=error.next_step) from error
    own = {key: value for key, value in found.entries.items() if key not in ("avro.codec", "avro.schema")}
    yield header(schema_json, cast("Codec", found.codec), found.sync_marker, own)
    while piece := stream.read(_PIECE):
        yield piece
