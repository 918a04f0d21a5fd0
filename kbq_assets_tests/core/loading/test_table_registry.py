"""The registry chooses the uuid of a table's state before the state exists, and never changes it."""

from __future__ import annotations

import pytest

from kbq_assets.core.loading.table_registry import TableRegistry
from kbq_assets.core.protocol.names import TableReference

A, B = TableReference("d", "a"), TableReference("d", "b")


def test_a_staging_area_without_tables_has_no_id() -> None:
    assert (TableRegistry().staging_id, TableRegistry().tables) == ("", [])


def test_the_first_table_gives_the_staging_area_its_id_for_ever() -> None:
    registry = TableRegistry().announce(B, "second").announce(A, "first").activate(A)
    assert (registry.staging, registry.staging_id) == ("second", "second")


@pytest.mark.parametrize(
    "registry",
    [
        TableRegistry(active={"d.b": "2"}, creating={"d.a": "1"}),
        TableRegistry(active={"d.a": "1", "d.b": "2"}),
        TableRegistry(creating={"d.b": "2", "d.a": "1"}),
    ],
    ids=["the first is being created", "all exist", "none exists"],
)
def test_a_registry_of_an_older_version_keeps_the_id_that_its_tables_imply(registry: TableRegistry) -> None:
    assert registry.staging_id == "1"
    announced = registry.announce(TableReference("d", "aa"), "3").announce(TableReference("a", "a"), "4")
    assert announced.staging_id == "1"
    activated = registry.activate(A)
    assert activated.staging_id == "1"


def test_tables_are_in_order_whether_their_states_exist_or_not() -> None:
    assert TableRegistry(active={"d.b": "2"}, creating={"d.a": "1"}).tables == [A, B]


def test_a_known_table_keeps_its_uuid() -> None:
    registry = TableRegistry(active={"d.b": "2"}, creating={"d.a": "1"}, staging="1")
    assert registry.announce(A, "9").announce(B, "9").activate(B) == registry


def test_what_a_later_version_stores_survives() -> None:
    registry = TableRegistry(warehouses={"lake": "active"}, extra={"of_tomorrow": 1})
    changed = registry.announce(A, "1").activate(A)
    assert (changed.extra, changed.warehouses) == ({"of_tomorrow": 1}, {"lake": "active"})
