"""Each table prefix has one state, with its own uuid and path."""

from __future__ import annotations

import pytest

from kbq_assets.core.filebatches.prefix_registry import (
    PrefixRegistry,
    applied_path,
    decisions_path,
    file_registry_path,
    file_state_path,
)


def test_a_prefix_keeps_the_uuid_of_its_first_announcement() -> None:
    registry = PrefixRegistry().announce("a", "1").announce("a", "2").announce("b", "3")
    assert (registry.creating, registry.active) == ({"a": "1", "b": "3"}, {})
    active = registry.activate("a")
    assert (active.creating, active.active, active.prefixes) == ({"b": "3"}, {"a": "1"}, {"a": "1", "b": "3"})
    assert active.announce("a", "4").activate("a") == active


@pytest.mark.parametrize(
    ("prefix", "name"),
    [
        ("shop/orders", "shop%2Forders"),
        ("", ""),
        ("a%2Fb", "a%252Fb"),
        ("größe", "gr%C3%B6%C3%9Fe"),
        ("@x", "%40x"),
    ],
)
def test_the_objects_of_a_prefix_have_paths_that_no_other_prefix_has(prefix: str, name: str) -> None:
    assert file_state_path(prefix) == f"filebatches/tables/{name}.json"
    assert applied_path(prefix, 500) == f"filebatches/applied/{name}/500.json"
    assert decisions_path(prefix, 0) == f"filebatches/decisions/{name}/0.json"


def test_each_warehouse_has_an_area() -> None:
    assert file_registry_path() == "filebatches/_tables.json"
    assert file_registry_path("lake") == "filebatches/@lake/_tables.json"
    assert file_state_path("a", "lake") == "filebatches/@lake/tables/a.json"
    assert applied_path("a", 1, "lake") == "filebatches/@lake/applied/a/1.json"
    assert decisions_path("a", 1, "lake") == "filebatches/@lake/decisions/a/1.json"
