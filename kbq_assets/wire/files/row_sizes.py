"""Finds rows that are too large for a block. BigQuery reads blocks of up to 16 MB, and a large row is a separate
block."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from kbq_assets.wire.chunk import Chunk, Longs
from kbq_assets.wire.records.staged_schema import MetadataColumns

#: Bytes of value, key and headers; the rest of a row has a few hundred bytes.
#: https://cloud.google.com/bigquery/docs/loading-data-cloud-storage-avro#limitations
MOST_ROW_BYTES: Final = 16_000_000 - 4096
TOO_LARGE_ROW: Final = (
    "value, key and headers are too large for a row: BigQuery reads up to 16 MB of Avro at once"
)


def oversized(chunk: Chunk, rows: Longs, metadata: MetadataColumns) -> NDArray[np.bool_] | None:
    """A mask of the rows that are too large; None if there are none."""
    wanted = (
        (chunk, True),
        (chunk.keys, metadata.key),
        (chunk.headers if metadata.headers else None, metadata.headers),
    )
    parts = [part for part, is_wanted in wanted if is_wanted and part is not None]
    if sum(len(part.buffer) for part in parts) <= MOST_ROW_BYTES:
        return None
    sizes = sum(part.ends[rows] - part.starts[rows] for part in parts)
    found: NDArray[np.bool_] = np.asarray(sizes > MOST_ROW_BYTES)
    return found if found.any() else None
