"""Schemas in a backup's store, so that a replay needs no registry (PROTOCOL B8): tasks write them, verification writes
what tasks could not."""

from __future__ import annotations

import json
from contextlib import suppress

from kbq_assets.core.backup.names import schema_path
from kbq_assets.core.errors import KbqError, PreconditionFailed
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.ports.registry import SchemaRegistry


def keep_schema(store: ObjectStore, registry: SchemaRegistry, topic: str, schema_id: int) -> bool:
    """Store a schema of a topic, unless it is there; whether the registry has it. Errors of the store propagate."""
    try:
        found = registry.schema(schema_id)
    except KbqError:
        return False
    document = {
        "schema_id": schema_id,
        "schema_type": found.schema_type,
        "schema": found.schema,
        "references": found.references,
    }
    with suppress(PreconditionFailed):  # content-addressed: an existing object is the same
        store.create(schema_path(topic, schema_id, found.fingerprint), json.dumps(document).encode())
    return True
