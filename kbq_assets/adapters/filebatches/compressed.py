"""Checks compressed CSV and JSON files. DuckDB goes by a file's name, so it would take compressed content for text. It
compares no checksum of gzip, and reports damage like an error of the disk, which might pass."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pyarrow as pa

from kbq_assets.wire.arrow.errors import BadFile

#: The first bytes of compressed files, by the suffix of their names.
_MAGIC: Final = {
    ".gz": b"\x1f\x8b",
    ".zst": b"\x28\xb5\x2f\xfd",
    ".zip": b"PK\x03\x04",
    ".bz2": b"BZh91AY&SY",
    ".xz": b"\xfd7zXZ\x00",
}
#: Arrow's names of the kinds that DuckDB reads, by the same suffix.
_CODECS: Final = {".gz": "gzip", ".zst": "zstd"}
_CHUNK: Final = 1 << 20


def check_compressed(uri: str, path: Path) -> None:
    """Raise BadFile unless a file's name and content agree whether it is compressed, and the content is undamaged."""
    with path.open("rb") as stream:
        head = stream.read(max(map(len, _MAGIC.values())))
    found = next((suffix for suffix, magic in _MAGIC.items() if head.startswith(magic)), "")
    named = path.suffix.lower() if path.suffix.lower() in _CODECS else ""
    if found and found not in _CODECS:
        raise BadFile(f"{uri} is compressed ({found}): a local warehouse reads only {', '.join(_CODECS)}")
    if found != named:
        raise BadFile(
            f"{uri} is compressed, but its name does not end with {found}"
            if found
            else f"the name of {uri} ends with {path.suffix}, but it is not compressed so"
        )
    if found:
        _read(uri, path, _CODECS[found])


def _read(uri: str, path: Path, codec: str) -> None:
    """Decompress a file, which compares its checksums. Raises BadFile."""
    try:
        with pa.input_stream(str(path), compression=codec) as stream:
            while stream.read(_CHUNK):
                pass
    except (pa.ArrowInvalid, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # an error of the disk: for damaged content, Arrow raises OSErrors without an errno
        raise BadFile(f"{uri} is damaged: {error}") from error
