"""What every schema registry promises (`kbq_assets.ports.registry`). Subclass it and give the fixtures."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from kbq_assets.core.errors import NotFound, Unavailable
from kbq_assets.ports.registry import RegisteredSchema, SchemaRegistry, WriterSchemas

SCHEMA = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]})
UNKNOWN_ID = 999_999
GUID = "89791762-2336-4186-9674-299b90a802e2"
SUBJECT = "a/b c-value"


class SchemaRegistryContract:
    """Give ``registry``, and ``known_id``, the id of `SCHEMA`, where it is not 7."""

    @pytest.fixture
    def known_id(self) -> int:
        return 7

    @pytest.fixture
    def registry(self) -> SchemaRegistry:
        raise NotImplementedError

    def test_an_id_has_its_schema(self, registry: SchemaRegistry, known_id: int) -> None:
        found = registry.schema(known_id)
        assert json.loads(found.schema) == json.loads(SCHEMA)
        assert found == RegisteredSchema(known_id, found.schema, "AVRO")
        assert registry.schema(known_id) == found

    @pytest.mark.parametrize("schema_id", [UNKNOWN_ID, 2**31 - 1, 2**31, 2**32 - 1, -1])
    def test_an_unknown_id_is_not_found(self, registry: SchemaRegistry, schema_id: int) -> None:
        with pytest.raises(NotFound):
            registry.schema(schema_id)


class StoppableRegistryContract(SchemaRegistryContract):
    """Also give ``take_down``, after which the registry does not respond. The registry has `SCHEMA` with the GUID
    `GUID`, and as the versions 1 and 3 of `SUBJECT`."""

    def test_a_guid_has_its_schema(self, registry: WriterSchemas) -> None:
        found = registry.by_guid(GUID)
        assert (found.name, json.loads(found.schema)) == (GUID, json.loads(SCHEMA))
        assert found == RegisteredSchema(-1, found.schema, "AVRO", label=GUID) == registry.by_guid(GUID)

    def test_an_unknown_guid_is_not_found(self, registry: WriterSchemas) -> None:
        with pytest.raises(NotFound):
            registry.by_guid("00000000-0000-0000-0000-000000000000")

    def test_a_subject_has_the_ids_of_its_versions(self, registry: WriterSchemas, known_id: int) -> None:
        assert registry.versions(SUBJECT) == {1: known_id, 3: known_id}
        with pytest.raises(NotFound):
            registry.versions("nobody's")

    def test_a_registry_that_is_down_finds_nothing_by_name(
        self, registry: WriterSchemas, take_down: Callable[[], None]
    ) -> None:
        take_down()
        for ask in (lambda: registry.by_guid(GUID), lambda: registry.versions(SUBJECT)):
            with pytest.raises(Unavailable):
                ask()

    @pytest.fixture
    def take_down(self) -> Callable[[], None]:
        raise NotImplementedError

    @pytest.mark.parametrize("schema_id", [1, UNKNOWN_ID])
    def test_a_registry_that_is_down_is_unavailable_whatever_is_asked(
        self, registry: SchemaRegistry, take_down: Callable[[], None], schema_id: int
    ) -> None:
        take_down()
        with pytest.raises(Unavailable):
            registry.schema(schema_id)
