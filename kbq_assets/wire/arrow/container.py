"""The blocks of an Avro container file, decompressed. A damaged file is the load job's error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, get_args

from kbq_assets.wire.arrow.errors import BadFile
from kbq_assets.wire.files import read_container
from kbq_assets.wire.files.codec import BadBlock, Codec, decompress
from kbq_assets.wire.files.read_container import DamagedFile, Header


@dataclass(frozen=True)
class Block:
    """``count`` records, decompressed."""

    count: int
    data: bytes


def read_header(stream: BinaryIO) -> Header:
    """Read the header. Raises BadFile."""
    try:
        header = read_container.read_header(stream)
        json.loads(header.schema)
    except DamagedFile as error:
        raise BadFile(error.message) from error
    except (KeyError, ValueError) as error:
        raise BadFile(f"its header is damaged: {error}") from error
    if header.codec not in get_args(Codec):
        raise BadFile(f"its codec {header.codec!r} is not supported")
    return header


def read_blocks(stream: BinaryIO, header: Header) -> Iterator[Block]:
    """Read the blocks after the header, to the end of the file. Raises BadFile."""
    try:
        for count, data in read_container.read_blocks(stream, header):
            yield Block(count, bytes(decompress(header.codec, data)))
    except DamagedFile as error:
        raise BadFile(error.message) from error
    except BadBlock as error:
        raise BadFile(error.message) from error
