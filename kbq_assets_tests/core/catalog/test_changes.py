"""Differences between catalog and broker. Nothing is ever removed."""

from __future__ import annotations

import pytest

from kbq_assets.core.catalog.changes import (
    AddPartitions,
    AlterConfig,
    CreateTopic,
    Difference,
    LiveTopic,
    plan_changes,
)
from kbq_assets.core.catalog.starter import KnownSchemas, draft_entries
from kbq_assets_tests.core.catalog.documents import ENTRY, catalog_of


def planned(text: str, live: LiveTopic | None) -> list[object]:
    catalog = catalog_of({ENTRY: "kafka: {name: t, " + text + "}"})
    assert catalog.problems == ()
    found = plan_changes(catalog.entries, {} if live is None else {"t": live})
    return [*found.changes, *found.differences]


def test_a_topic_that_is_not_there_is_created_as_catalogued() -> None:
    assert planned("partitions: 3, replication: 2, retention: 1h", None) == [
        CreateTopic("t", 3, 2, {"retention.ms": "3600000"})
    ]
    assert planned("", None) == [CreateTopic("t", -1, -1, {})]


def test_what_the_catalogue_does_not_name_stays() -> None:
    assert planned("", LiveTopic(5, 3, {"segment.ms": "1"})) == []


def test_partitions_are_added_and_never_taken_away() -> None:
    assert planned("partitions: 8", LiveTopic(5, 1)) == [AddPartitions("t", 5, 8)]
    [difference] = planned("partitions: 3", LiveTopic(5, 1))
    assert isinstance(difference, Difference)
    assert "cannot remove partitions" in difference.message


def test_settings_that_differ_are_altered_and_others_left() -> None:
    live = LiveTopic(1, 1, {"retention.ms": "1", "segment.ms": "5"})
    assert planned("retention: forever, config: {segment.ms: 5}", live) == [
        AlterConfig("t", {"retention.ms": "1"}, {"retention.ms": "-1"})
    ]


@pytest.mark.parametrize(
    ("own", "default", "changes"), [("", "delete", 0), ("compact", "delete", 1), ("", "compact", 1)]
)
def test_saying_what_the_broker_does_anyway_is_no_change(own: str, default: str, changes: int) -> None:
    catalog = catalog_of({ENTRY: "kafka: {name: t}\ncompaction: false"})
    live = LiveTopic(1, 1, {"cleanup.policy": own} if own else {}, {"cleanup.policy": default})
    assert len(plan_changes(catalog.entries, {"t": live}).changes) == changes


def test_replication_and_uncatalogued_topics_are_left_to_people() -> None:
    catalog = catalog_of({ENTRY: "kafka: {name: t, replication: 3}"})
    found = plan_changes(catalog.entries, {"t": LiveTopic(1, 1), "stranger": LiveTopic(1, 1)})
    assert found.changes == ()
    assert [d.topic for d in found.differences] == ["t", "stranger"]


def test_drafts_are_entries_that_describe_what_is_there() -> None:
    live = {
        "shop.Orders_v1": LiveTopic(3, 2, {"retention.ms": "5"}),
        "shop.orders-v1": LiveTopic(1, 1),
        "9": LiveTopic(1, 1),
    }
    known = {"shop.Orders_v1": KnownSchemas("avro", {"value": '{"type":"record"}', "key": '"long"'})}
    drafts = draft_entries(live, known, "shop", "found", "prod")
    schemas = {draft.path: draft.text for draft in drafts if not draft.is_entry}
    assert schemas == {
        "shop/found/shop-orders-v1/prod/schemas/value.avsc": '{\n  "type": "record"\n}\n',
        "shop/found/shop-orders-v1/prod/schemas/key.avsc": '"long"\n',
    }
    catalog = catalog_of({draft.path: draft.text for draft in drafts if draft.is_entry})
    assert [str(problem) for problem in catalog.problems] == []
    assert {entry.topic for entry in catalog.entries} == set(live)
    assert {entry.topic: entry.encoding for entry in catalog.entries}["shop.Orders_v1"] == "avro"
    assert not any(entry.archived for entry in catalog.entries)
    assert plan_changes(catalog.entries, live).changes == ()
