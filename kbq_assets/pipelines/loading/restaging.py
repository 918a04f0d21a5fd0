"""Copies of staged files whose schema contradicts the table, under field names that fit (PROTOCOL E11).

Extraction avoids such files. So this happens only if the table is older than the topic's `on_incompatible`, or if the
stored variants were lost. A copy has a new header and the same records. To the table's marks, a copy is its file,
because the names match. A crash leaves an orphan like any other (E6)."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable
from functools import partial
from typing import BinaryIO, Final

from kbq_assets.core.avro.canonical import schema_fingerprint
from kbq_assets.core.errors import EncodingError, NotFound, PreconditionFailed, StateError
from kbq_assets.core.loading.batches import LoadBatch, SchemaKey
from kbq_assets.core.loading.table_notes import has_own_columns_alone
from kbq_assets.core.loading.tables import (
    Column,
    IncompatibleColumn,
    TableChange,
    columns_of,
    plan_table_change,
)
from kbq_assets.core.loading.verification import damage
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.names import StagedFileName, schema_path
from kbq_assets.core.topics.evolution import VARIANTS, SchemaVariant, TableVariants, add_variant
from kbq_assets.pipelines.loading.stored_schemas import read_schema
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.threads import parallel
from kbq_assets.ports.object_store import ObjectStore

#: Separates the copy's attempt from its file's attempt in the name. No other attempt contains it.
COPY: Final = "_"


@dataclasses.dataclass(frozen=True)
class Fit:
    """A batch that its table takes, perhaps with copied files; its schemas; and the change that the table needs
    first."""

    batch: LoadBatch
    schemas: tuple[str, ...]
    change: TableChange


def fit(
    store: ObjectStore,
    batch: LoadBatch,
    table: tuple[Column, ...] | None,
    *,
    may_vary: Callable[[], bool],
    attempt: str,
    pending: Iterable[StagedFile] = (),
) -> Fit:
    """Fit a batch to its table's columns (None: there is no table yet). If ``may_vary``, contradicting fields get
    variant columns, in copies of the files. Raises IncompatibleColumn, NotFound, Unavailable.

    If a new table's first files have only tombstones, it gets the columns of a ``pending`` file with values: columns
    can only be appended, and users want the records' own columns first. A batch of several schemas fits if each schema
    fits after the one before it."""
    fits: list[Fit] = []
    columns = table
    for part in _parts(batch):
        fits.append(_fit_one(store, part, columns, may_vary, attempt, pending))
        columns = fits[-1].change.columns
    changes = [each.change for each in fits]
    names = sorted({name for change in changes for name in change.relaxed})
    change = TableChange(
        changes[0].create,
        changes[-1].columns,
        tuple(name for change in changes for name in change.added),
        changes[0].relaxed if len(fits) == 1 else tuple(names),
    )
    whole = dataclasses.replace(
        batch, schema=fits[0].batch.schema, files=tuple(file for each in fits for file in each.batch.files)
    )
    return Fit(whole, tuple(schema for each in fits for schema in each.schemas), change)


def _parts(batch: LoadBatch) -> list[LoadBatch]:
    by_schema: dict[SchemaKey, list[StagedFile]] = {}
    for file in batch.files:
        by_schema.setdefault(SchemaKey(file.name.schema_id, file.fingerprint), []).append(file)
    return [dataclasses.replace(batch, schema=key, files=tuple(files)) for key, files in by_schema.items()]


def _fit_one(
    store: ObjectStore,
    batch: LoadBatch,
    table: tuple[Column, ...] | None,
    may_vary: Callable[[], bool],
    attempt: str,
    pending: Iterable[StagedFile],
) -> Fit:
    """`fit` for files of one schema."""
    schema = read_schema(store, batch.files[0])
    if table is None and has_own_columns_alone(columns_of(schema)):
        return Fit(batch, (schema,), _with_values(store, schema, pending))
    try:
        return Fit(batch, (schema,), plan_table_change(schema, table))
    except IncompatibleColumn:
        if table is None or not may_vary():
            raise
    from kbq_assets.wire.records.renaming import renamed_json  # with numba: not for every run of a driver

    schema = renamed_json(schema, _add_variant(store, batch, schema, table).renames)
    copies = _restage(store, batch, schema, attempt)
    return Fit(copies, (schema,), plan_table_change(schema, table))


def _with_values(store: ObjectStore, schema: str, pending: Iterable[StagedFile]) -> TableChange:
    for file in {each.fingerprint: each for each in pending}.values():
        with contextlib.suppress(NotFound, StateError, EncodingError):  # the load of that file reports them
            columns = columns_of(read_schema(store, file))
            if not has_own_columns_alone(columns):
                return TableChange(True, plan_table_change(schema, columns).columns)
    return plan_table_change(schema, None)


def is_copy(path: str) -> bool:
    """Whether a staged file is a copy. A copy can be made again."""
    return COPY in StagedFileName.parse(path).attempt


def _add_variant(
    store: ObjectStore, batch: LoadBatch, schema: str, table: tuple[Column, ...]
) -> SchemaVariant:
    """Store a schema variant for the table, and return it. Later extractions use it too."""
    from kbq_assets.wire.records.renaming import field_paths

    path = f"{VARIANTS}{batch.table}.json"
    variant = partial(add_variant, columns_of(schema), field_paths(schema), table)
    try:
        state.change(store, TableVariants, path, lambda known: variant(known).variants)
    except NotFound:
        state.create(store, path, variant(TableVariants()).variants)
    return variant(state.read(store, TableVariants, path).value)


def _restage(store: ObjectStore, batch: LoadBatch, schema: str, attempt: str) -> LoadBatch:
    from kbq_assets.wire.files.rewrite_header import reheaded

    fingerprint = schema_fingerprint(schema)
    with contextlib.suppress(PreconditionFailed):  # content-addressed: an existing object is equal
        store.create(schema_path(fingerprint), schema.encode())
    copies = parallel(
        lambda file: dataclasses.replace(
            copied(store, file, contents=lambda stream: reheaded(stream, schema), attempt=attempt),
            fingerprint=fingerprint,
        ),
        batch.files,
    )
    key = batch.schema._replace(fingerprint=fingerprint)
    return dataclasses.replace(batch, schema=key, files=tuple(copies))


def copied(
    store: ObjectStore, file: StagedFile, *, contents: Callable[[BinaryIO], Iterable[bytes]], attempt: str
) -> StagedFile:
    """A rewritten copy of a file. ``contents`` transforms its bytes. Raises StateError for a damaged file."""
    from kbq_assets.wire.files.checksum import ChecksumReader

    name = dataclasses.replace(file.name, attempt=f"{file.name.attempt}{COPY}{attempt}")
    writer = store.open_write(name.format())
    try:
        with store.open_read(file.path) as stream:
            reader = ChecksumReader(stream)
            for piece in contents(reader.buffered()):
                writer.write(piece)
            if why := damage(file, *reader.drain()):  # the copy's own checksum would hide it (L11)
                raise StateError(why, next_step=f"kbq restage {file.path}")
    except BaseException:
        writer.abort()
        raise
    stored = writer.close()
    return dataclasses.replace(file, path=stored.path, bytes=stored.size, crc32c=stored.crc32c)
