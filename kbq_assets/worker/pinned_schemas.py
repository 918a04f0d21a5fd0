"""The schemas of one topic, pinned by id to the text that the registry first returned (PROTOCOL E12)."""

from __future__ import annotations

from collections.abc import Mapping

from kbq_assets.core.errors import SchemaChanged
from kbq_assets.ports.registry import RegisteredSchema, WriterSchemas


class PinnedSchemas:
    """The `WriterSchemas` port for one unit. ``pins`` has the expected fingerprints by schema id, ``seen`` those that
    this unit read."""

    def __init__(self, registry: WriterSchemas, pins: Mapping[int, str]) -> None:
        self.seen: dict[int, str] = {}
        self._registry = registry
        self._pins = pins

    def schema(self, schema_id: int) -> RegisteredSchema:
        """The schema of an id. Raises SchemaChanged if it differs from the pinned one, and the port's errors."""
        found = self._registry.schema(schema_id)
        pin = self._pins.get(schema_id) or self.seen.get(schema_id, found.fingerprint)
        if pin != found.fingerprint:
            raise SchemaChanged(
                f"the registry's schema {schema_id} differs from the one with which its records were first read "
                f"(fingerprint {found.fingerprint}, was {pin}); the registry was emptied, replaced or mixed up"
            )
        self.seen[schema_id] = pin
        return found

    def by_guid(self, guid: str) -> RegisteredSchema:
        """See the port."""
        return self._registry.by_guid(guid)

    def versions(self, subject: str) -> Mapping[int, int]:
        """See the port."""
        return self._registry.versions(subject)
