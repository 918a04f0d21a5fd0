"""What every schema registry promises (`kbq_assets.ports.registry`). Subclass it and give the fixtures."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from kbq_assets.core.errors import NotFound, Unavailable
from kbq_assets.ports.registry import RegisteredSchema, SchemaRegistry

SCHEMA = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]})
UNKNOWN_ID = 999_999


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
    """Give also ``take_down``, after which the registry does not answer."""

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
