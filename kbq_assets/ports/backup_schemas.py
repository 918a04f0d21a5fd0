"""Schemas in a backup's store, so that a replay needs no registry (PROTOCOL B8): tasks write them, verification writes
what tasks could not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress

from kbq_assets.core.backup.names import schema_path, schemas_prefix
from kbq_assets.core.errors import KbqError, NotFound, PreconditionFailed, TransientError
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.ports.registry import RegisteredSchema, SchemaRegistry, WriterSchemas


class BackedUpSchemas:
    """The `WriterSchemas` port: a registry, and below it a topic's schemas in a backup, for records that are read from
    there. ``pins`` are known fingerprints by schema id: of several schemas under one id they choose."""

    def __init__(
        self, registry: WriterSchemas, store: ObjectStore, topic: str, pins: Mapping[int, str]
    ) -> None:
        self._registry, self._store = registry, store
        self._topic, self._pins = topic, pins

    def schema(self, schema_id: int) -> RegisteredSchema:
        """The registry's schema, or if it has none, or is away, the backup's. Raises what the registry did if the
        backup has none either."""
        try:
            return self._registry.schema(schema_id)
        except (NotFound, TransientError):
            prefix = f"{schemas_prefix(self._topic)}{schema_id}-"
            kept = sorted(entry.path for entry in self._store.list(prefix))
            if (pin := self._pins.get(schema_id)) is not None:
                kept = [path for path in kept if path == schema_path(self._topic, schema_id, pin)]
            if len(kept) != 1:
                raise
            found = _parse(self._store.get(kept[0]).data)
            if found is None or schema_path(self._topic, schema_id, found.fingerprint) != kept[0]:
                raise  # damaged: as if the backup had none
            return found

    def by_guid(self, guid: str) -> RegisteredSchema:
        """See the port."""
        return self._registry.by_guid(guid)

    def versions(self, subject: str) -> Mapping[int, int]:
        """See the port."""
        return self._registry.versions(subject)


def _parse(data: bytes) -> RegisteredSchema | None:
    try:
        found = json.loads(data)
        references = tuple((name, text) for name, text in found["references"])
        return RegisteredSchema(found["schema_id"], found["schema"], found["schema_type"], references)
    except (ValueError, KeyError, TypeError):
        return None


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
