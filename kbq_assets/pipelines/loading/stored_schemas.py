"""The verified schema of a staged file: the stored one with descriptions, or the one in the file's header."""

from __future__ import annotations

import functools
import logging
from typing import Final

from kbq_assets.core.avro.canonical import schema_fingerprint
from kbq_assets.core.avro.header import header_schema
from kbq_assets.core.errors import NotFound, StateError, UnstageableSchema
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.names import schema_path
from kbq_assets.ports.object_store import ObjectStore

_LOGGER: Final = logging.getLogger("kbq.load")
_fingerprint = functools.lru_cache(maxsize=256)(schema_fingerprint)


def read_schema(store: ObjectStore, file: StagedFile) -> str:
    """The schema of a staged file. If the stored one is gone or damaged, the file's header has the types.

    Raises NotFound or EncodingError if the file is gone or damaged too. Raises Unavailable.
    """
    path = schema_path(file.fingerprint)
    try:
        text = store.get(path).data.decode()
        found = _fingerprint(text)
    except (NotFound, UnstageableSchema, ValueError, RecursionError):
        text = found = ""
    if text and found == file.fingerprint:
        return text
    header = _header(store, file)
    if text and header_schema(text) == header:
        return text  # an older release computed fingerprints differently
    _LOGGER.warning("%s is gone or damaged: its types come from %s, without descriptions", path, file.path)
    return header


def _header(store: ObjectStore, file: StagedFile) -> str:
    from kbq_assets.wire.files.read_container import read_header  # with numpy: not for every run of a driver

    with store.open_read(file.path) as stream:
        try:
            return read_header(stream).schema
        except (KeyError, UnicodeDecodeError) as error:
            raise StateError(
                f"{file.path} has no schema in its header", next_step=f"kbq restage {file.path}"
            ) from error
