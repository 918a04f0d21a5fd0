"""Files that were staged before it was known that their schema contradicts the table: staged again, under names that do
not (PROTOCOL E11).

Their topics say that such schemas go beside (`on_incompatible`); the table is older than that, or its placement was
lost. A copy has a new header, no record is touched. The table's marks take a copy for the file, by its name; what a
crash leaves is an orphan like others (E6).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Final

from kbq_assets.core.errors import NotFound, PreconditionFailed
from kbq_assets.core.loading.batches import LoadBatch
from kbq_assets.core.loading.tables import (
    Column,
    IncompatibleColumn,
    TableChange,
    columns_of,
    plan_table_change,
)
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.names import StagedFileName, schema_path
from kbq_assets.core.topics.evolution import PLACEMENTS, Placed, Placement, place_beside
from kbq_assets.pipelines.protocol import state
from kbq_assets.ports.object_store import ObjectStore

#: Stands in the attempt of a copy, and in no other's.
_COPY: Final = "_"


@dataclasses.dataclass(frozen=True)
class Fit:
    """A batch as its table takes it: perhaps of copies, with their ``schema``, and what the table needs before."""

    batch: LoadBatch
    schema: str
    change: TableChange


def fit(
    store: ObjectStore,
    batch: LoadBatch,
    table: tuple[Column, ...] | None,
    *,
    beside: Callable[[], bool],
    attempt: str,
) -> Fit:
    """Compare a batch with its table's columns, None where there is no table yet. ``beside``: fields that contradict
    these get columns of their own, in copies of the files. Raises IncompatibleColumn, NotFound, Unavailable."""
    schema = store.get(schema_path(batch.schema.fingerprint)).data.decode()
    try:
        return Fit(batch, schema, plan_table_change(schema, table))
    except IncompatibleColumn:
        if table is None or not beside():
            raise
    from kbq_assets.wire.records.renaming import renamed_json  # with numba: not for every run of a driver

    schema = renamed_json(schema, _place(store, batch, schema, table).renames)
    copies = _restage(store, batch, schema, attempt)
    return Fit(copies, schema, plan_table_change(schema, table))


def is_copy(path: str) -> bool:
    """Whether a staged file is a copy: one that is gone can be made again."""
    return _COPY in StagedFileName.parse(path).attempt


def _place(store: ObjectStore, batch: LoadBatch, schema: str, table: tuple[Column, ...]) -> Placed:
    """Place a schema beside what the table has, for what is staged from now on, too."""
    from kbq_assets.wire.records.renaming import field_paths

    path = f"{PLACEMENTS}{batch.table}.json"
    place = partial(place_beside, columns_of(schema), field_paths(schema), table)
    try:
        state.change(store, Placement, path, lambda known: place(known).placement)
    except NotFound:
        state.create(store, path, place(Placement()).placement)
    return place(state.read(store, Placement, path).value)


def _restage(store: ObjectStore, batch: LoadBatch, schema: str, attempt: str) -> LoadBatch:
    from kbq_assets.wire.records.schema import schema_fingerprint

    fingerprint = schema_fingerprint(schema)
    with contextlib.suppress(PreconditionFailed):  # content-addressed: what is there is the same
        store.create(schema_path(fingerprint), schema.encode())
    copies = state.parallel(
        lambda file: dataclasses.replace(_copied(store, file, schema, attempt), fingerprint=fingerprint),
        batch.files,
    )
    key = batch.schema._replace(fingerprint=fingerprint)
    return dataclasses.replace(batch, schema=key, files=tuple(copies))


def _copied(store: ObjectStore, file: StagedFile, schema: str, attempt: str) -> StagedFile:
    from kbq_assets.wire.files.rewrite_header import reheaded

    name = dataclasses.replace(file.name, attempt=f"{file.name.attempt}{_COPY}{attempt}")
    writer = store.open_write(name.format())
    try:
        with store.open_read(file.path) as stream:
            for piece in reheaded(stream, schema):
                writer.write(piece)
    except BaseException:
        writer.abort()
        raise
    stored = writer.close()
    return dataclasses.replace(file, path=stored.path, bytes=stored.size, crc32c=stored.crc32c)
