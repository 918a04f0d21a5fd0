"""Schemas in a backup's store, so that a replay needs no registry (PROTOCOL B8). Tasks write them; verification writes
those that tasks could not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from kbq_assets.core.backup.backup_names import (
    guid_name,
    schema_path,
    schemas_prefix,
    versions_path,
    versions_prefix,
)
from kbq_assets.core.errors import KbqError, NotFound, PreconditionFailed, TransientError
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.ports.registry import RegisteredSchema, SchemaRegistry, WriterSchemas


class BackedUpSchemas:
    """A `WriterSchemas` port for records that are read from a backup: a registry that falls back to the topic's schemas
    in the backup. ``pins`` are known fingerprints by schema id. They select one if an id has several schemas."""

    def __init__(
        self, registry: WriterSchemas, store: ObjectStore, topic: str, pins: Mapping[int, str]
    ) -> None:
        self._registry, self._store = registry, store
        self._topic, self._pins = topic, pins

    def schema(self, schema_id: int) -> RegisteredSchema:
        """The registry's schema, or the backup's if the registry has none or is out of reach. If the backup has none
        either, raises the registry's error."""
        try:
            return self._registry.schema(schema_id)
        except (NotFound, TransientError):
            found = self._kept(schema_id, self._pins.get(schema_id))
            if found is None:
                raise
            return found

    def by_guid(self, guid: str) -> RegisteredSchema:
        """As `schema`."""
        try:
            return self._registry.by_guid(guid)
        except (NotFound, TransientError):
            found = self._kept(guid_name(guid))
            if found is None:
                raise
            return replace(found, schema_id=-1, label=guid)

    def versions(self, subject: str) -> Mapping[int, int]:
        """As `schema`; the backup has all versions that the subject had when records were copied."""
        try:
            return self._registry.versions(subject)
        except (NotFound, TransientError):
            found: dict[int, int] = {}
            for path in self._store.paths(versions_prefix(self._topic)):
                named = _parse_versions(self._store.get(path).data)
                if path == versions_path(self._topic, named):
                    found |= named.get(subject, {})
            if not found:
                raise
            return found

    def _kept(self, name: int | str, pin: str | None = None) -> RegisteredSchema | None:
        """The backup's only schema with a name; None if it has none, several, or a damaged one."""
        prefix = f"{schemas_prefix(self._topic)}{name}-"
        kept = sorted(self._store.paths(prefix))
        if pin is not None:
            kept = [path for path in kept if path == schema_path(self._topic, name, pin)]
        if len(kept) != 1:
            return None
        found = _parse(self._store.get(kept[0]).data)
        is_whole = found is not None and schema_path(self._topic, name, found.fingerprint) == kept[0]
        return found if is_whole else None


def _parse(data: bytes) -> RegisteredSchema | None:
    try:
        found = json.loads(data)
        references = tuple((name, text) for name, text in found["references"])
        return RegisteredSchema(found["schema_id"], found["schema"], found["schema_type"], references)
    except (ValueError, KeyError, TypeError):
        return None


def _parse_versions(data: bytes) -> dict[str, dict[int, int]]:
    try:
        return {
            str(subject): {int(version): int(schema_id) for version, schema_id in versions.items()}
            for subject, versions in json.loads(data).items()
        }
    except (ValueError, AttributeError, TypeError):
        return {}


def keep_schema(store: ObjectStore, registry: SchemaRegistry, topic: str, schema_id: int) -> bool:
    """Store a topic's schema unless it is stored already. Returns whether the registry has it. Errors of the store
    propagate."""
    try:
        found = registry.schema(schema_id)
    except KbqError:
        return False
    _store(store, topic, schema_id, found)
    return True


def keep_guid(store: ObjectStore, registry: WriterSchemas, topic: str, guid: str) -> bool:
    """The same for a schema that records refer to by GUID."""
    try:
        found = registry.by_guid(guid)
    except KbqError:
        return False
    _store(store, topic, guid_name(guid), found)
    return True


def keep_versions(store: ObjectStore, registry: WriterSchemas, topic: str, subject: str) -> bool:
    """The same for all versions of a subject, with their numbers, for records that refer to schemas by fingerprint."""
    try:
        versions = dict(registry.versions(subject))
    except KbqError:
        return False
    if not all([keep_schema(store, registry, topic, schema_id) for schema_id in versions.values()]):
        return False
    named = {subject: versions}
    with suppress(PreconditionFailed):
        store.create(versions_path(topic, named), json.dumps(named).encode())
    return True


def _store(store: ObjectStore, topic: str, name: int | str, found: RegisteredSchema) -> None:
    document = {
        "schema_id": found.schema_id,
        "schema_type": found.schema_type,
        "schema": found.schema,
        "references": found.references,
    }
    with suppress(PreconditionFailed):  # content-addressed: an existing object is the same
        store.create(schema_path(topic, name, found.fingerprint), json.dumps(document).encode())
