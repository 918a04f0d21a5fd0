"""A schema registry in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from kbq_assets.core.errors import NotFound, Unavailable
from kbq_assets.ports.registry import RegisteredSchema
from kbq_assets_tests.fakes.faults import Call, Crash, Outcome


class FakeRegistry:
    """The `SchemaRegistry` port. ``documents`` are JSON Schemas, ``messages``
    Protobuf's. ``down``: every call raises Unavailable."""

    def __init__(self, schemas: Mapping[int, str]) -> None:
        self.schemas = dict(schemas)
        self.documents: dict[int, str] = {}
        self.messages: dict[int, str] = {}
        self.guids: dict[str, int] = {}
        self.subjects: dict[str, dict[int, int]] = {}
        self.down = False
        self.defect: Exception | None = None

    def schema(self, schema_id: int) -> RegisteredSchema:
        if self.down:
            raise Unavailable("the registry is down", next_step="start it")
        if self.defect:
            raise self.defect
        if schema_id in self.documents:
            return RegisteredSchema(schema_id, self.documents[schema_id], "JSON")
        if schema_id in self.messages:
            return RegisteredSchema(schema_id, self.messages[schema_id], "PROTOBUF")
        if schema_id not in self.schemas:
            raise NotFound(f"schema {schema_id} is not in the registry", next_step="check the registry's URL")
        return RegisteredSchema(schema_id, self.schemas[schema_id])

    def by_guid(self, guid: str) -> RegisteredSchema:
        if not self.down and guid not in self.guids:
            raise NotFound(f"the GUID {guid} is not in the registry", next_step="check the registry's URL")
        return replace(self.schema(self.guids.get(guid, -1)), schema_id=-1, label=guid)

    def versions(self, subject: str) -> Mapping[int, int]:
        if self.down:
            raise Unavailable("the registry is down", next_step="start it")
        if subject not in self.subjects:
            raise NotFound(f"the registry has no subject {subject}", next_step="check value_schema")
        return self.subjects[subject]

    def view(self, process: str, faults: Callable[[Call], Outcome]) -> RegistryView:
        """The registry as one process sees it: its calls can fail."""
        return RegistryView(self, process, faults)


class RegistryView:
    """One process's registry."""

    def __init__(self, registry: FakeRegistry, process: str, faults: Callable[[Call], Outcome]) -> None:
        self._registry = registry
        self._process = process
        self._faults = faults

    def schema(self, schema_id: int) -> RegisteredSchema:
        self._ask(f"schema {schema_id}")
        return self._registry.schema(schema_id)

    def by_guid(self, guid: str) -> RegisteredSchema:
        self._ask(f"schema {guid}")
        return self._registry.by_guid(guid)

    def versions(self, subject: str) -> Mapping[int, int]:
        self._ask(f"subject {subject}")
        return self._registry.versions(subject)

    def _ask(self, what: str) -> None:
        outcome = self._faults(Call(self._process, "schema", what.rsplit(maxsplit=1)[-1], writes=False))
        if outcome in (Outcome.CRASH_BEFORE, Outcome.CRASH_AFTER, Outcome.CRASH_LATE):
            raise Crash(f"{self._process} dies asking for {what}")
        if outcome is not Outcome.OK:
            raise Unavailable(f"{what}: no answer", next_step="try again")
