"""Copies windows of several schemas under one schema, for a warehouse whose jobs take files of one schema (O1).

As in `restaging`, a copy's name differs from its file's only in the attempt. So marks treat both as one file, and a
crash leaves orphans (E6).
"""

from __future__ import annotations

import contextlib
import dataclasses
from functools import partial

from kbq_assets.core.avro.canonical import schema_fingerprint
from kbq_assets.core.avro.common import common_schema
from kbq_assets.core.errors import PreconditionFailed
from kbq_assets.core.loading.batches import LoadBatch
from kbq_assets.core.loading.tables import Column, plan_table_change
from kbq_assets.core.protocol.names import schema_path
from kbq_assets.pipelines.loading.restaging import Fit, copied
from kbq_assets.pipelines.threads import parallel
from kbq_assets.ports.object_store import ObjectStore


def under_one_schema(store: ObjectStore, fitted: Fit, table: tuple[Column, ...] | None, attempt: str) -> Fit:
    """A batch of several schemas, copied under one schema. Raises NoCommonSchema, NotFound, BadFile, Unavailable."""
    from kbq_assets.wire.files.reencode import reencoded  # with fastavro: not for every run of a driver

    schema = common_schema(fitted.schemas)
    change = plan_table_change(schema, table)
    fingerprint = schema_fingerprint(schema)
    with contextlib.suppress(PreconditionFailed):  # content-addressed: an existing object is equal
        store.create(schema_path(fingerprint), schema.encode())
    copy = partial(copied, store, contents=lambda stream: reencoded(stream, schema), attempt=attempt)
    files = tuple(
        dataclasses.replace(file, fingerprint=fingerprint) for file in parallel(copy, fitted.batch.files)
    )
    key = fitted.batch.schema._replace(fingerprint=fingerprint)
    batch: LoadBatch = dataclasses.replace(fitted.batch, schema=key, files=files)
    return Fit(batch, fitted.schemas, change)
