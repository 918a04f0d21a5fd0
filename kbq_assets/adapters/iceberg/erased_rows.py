"""Finds the rows of a batch that an erasure deletes, by their positions."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kbq_assets.core.erasure.offset_sets import RowPlaces


def without(batch: pa.RecordBatch, rows: RowPlaces) -> pa.RecordBatch:
    """The batch without these rows."""
    erased = is_erased(batch, rows)
    return batch.filter(pa.array(~erased)) if erased.any() else batch


def is_erased(batch: pa.RecordBatch, rows: RowPlaces) -> npt.NDArray[np.bool_]:
    found = np.zeros(batch.num_rows, np.bool_)
    own = pc.fill_null(pc.equal(batch["_kafka_topic"].cast(pa.string()), rows.topic), False)
    if not pc.any(own).as_py():
        return found
    is_own = own.to_numpy(zero_copy_only=False)
    columns = (_longs(batch[name]) for name in ("_kafka_partition", "_kbq_epoch", "_kafka_offset"))
    partitions, epochs, offsets = columns
    present = {(int(p), int(e)) for p, e in np.unique(np.stack([partitions, epochs]), axis=1).T}
    for partition, epoch, erased in rows.places:
        if (partition, epoch) in present:
            here = is_own & (partitions == partition) & (epochs == epoch)
            inside = np.searchsorted(np.array(erased, np.int64), offsets, "right") % 2 == 1
            found |= here & inside
    return found


def _longs(column: pa.Array) -> npt.NDArray[np.int64]:
    """The values of a column, with -1 for NULL, which is no valid position."""
    return np.asarray(pc.fill_null(column.cast(pa.int64()), -1))
