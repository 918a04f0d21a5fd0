"""No topic and no table has two entries, in any spelling."""

from __future__ import annotations

import pytest

from kbq_assets_tests.core.catalog.documents import catalog_of

ARCHIVED = "consumers: [archiver]\n"


def entry(number: int, env: str = "prod") -> str:
    return f"shop/sales/part-{number}/{env}/topic.yaml"


def clashes(first: str, second: str, second_env: str = "prod") -> list[str]:
    """The mistakes of a catalog of two entries that are about names."""
    names = "names: {dataset: shop}"
    catalog = catalog_of({"catalog.yaml": names, entry(1): first, entry(2, second_env): second})
    return [str(problem) for problem in catalog.problems if "collides" in str(problem)]


def kafka(name: str, table: str = "", *, archived: bool = True) -> str:
    destination = f"destination: {{table: {table}}}\n" if table else ""
    return f"kafka:\n  name: {name}\n{destination}{ARCHIVED if archived else ''}"


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (kafka("a"), kafka("b"), ""),
        (kafka("a"), kafka("a"), "kafka.name: topic a collides with topic a"),
        (kafka("a.b"), kafka("a_b"), "kafka.name: topic a_b collides with topic a.b"),
        (kafka("a.b"), kafka("a-b"), ""),
        (kafka("a", "T"), kafka("b", "t"), "destination.table: table shop.t collides with table shop.T"),
        (kafka("a", "t"), kafka("b", "t"), ""),
        (kafka("A", archived=False), kafka("a", archived=False), ""),
        (kafka("A"), kafka("a"), ""),
        (kafka("a", "T", archived=False), kafka("b", "t"), ""),
    ],
    ids=[
        "two topics",
        "one topic twice",
        "a point and an underscore",
        "a point and a hyphen",
        "tables that differ by case",
        "topics that share a table",
        "topics that differ by case, not archived",
        "topics that differ by case, with tables of their own",
        "only one of them has a table",
    ],
)
def test_names_that_kafka_or_a_warehouse_cannot_tell_apart_collide(
    first: str, second: str, said: str
) -> None:
    found = clashes(first, second)
    assert [said in each for each in found] == ([True] if said else [])
    assert all(each.startswith(entry(2)) and f"see {entry(1)}" in each for each in found)


def test_environments_do_not_collide() -> None:
    assert clashes(kafka("a", "T"), kafka("a", "t"), "test") == []


def test_records_of_one_topic_go_to_many_tables_that_collide_with_none() -> None:
    routed = "kafka: {name: b}\nencoding: avro\ndestination: {route: record_name, table: t}\n" + ARCHIVED
    assert clashes(kafka("a", "T"), routed) == []
