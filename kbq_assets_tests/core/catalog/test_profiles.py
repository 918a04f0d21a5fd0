"""The meaning of typology and throughput, and the short document that teams write."""

from __future__ import annotations

import json

import pytest

from kbq_assets.core.catalog import CatalogEntry
from kbq_assets_tests.core.catalog.documents import catalog_of

#: An entry of the archive at Leboncoin, as published.
SHORT = json.dumps(
    {
        "typology": "job-queue",
        "compaction": "none",
        "scope": "public",
        "encoding": "avro",
        "throughput": "normal",
        "ownership": "team-ads",
        "pii": "HIGH",
        "producers": ["producer_app_1"],
        "consumers": ["consumer_app_1", "consumer_app_2", "archiver"],
    }
)
SHORT_AT = "leboncoin/ads/accepted-ad/prod/topic.json"
ROOT = """
typologies:
  job-queue: {kafka: {retention: 3d, partitions: 1}, throughput: low, extraction: {priority: high}}
throughputs:
  low: {kafka: {partitions: 2}}
  normal: {kafka: {partitions: 12}, extraction: {window_seconds: 60}}
"""
DECIDED = "pii: {fields: {email: pseudonym}}"


def entry_of(text: str, at: str = SHORT_AT, **others: str) -> CatalogEntry:
    catalog = catalog_of(
        {"catalog.yaml": ROOT, at: text} | {key.replace("__", "/"): t for key, t in others.items()}
    )
    assert list(map(str, catalog.problems)) == []
    [entry] = catalog.entries
    return entry


def problems_of(root: str, text: str) -> list[str]:
    return list(map(str, catalog_of({"catalog.yaml": root, SHORT_AT: text}).problems))


def test_the_short_document_is_an_entry_and_each_of_its_keys_counts() -> None:
    catalog = catalog_of({"catalog.yaml": ROOT, SHORT_AT: SHORT, "leboncoin/defaults.yaml": DECIDED})
    assert list(map(str, catalog.problems)) == []
    [entry] = catalog.entries
    assert entry.topic == "leboncoin_prod_ads_accepted-ad_public_avro"
    assert (entry.archived, entry.settings.ownership.owner) == (True, "team-ads")
    assert entry.kafka.partitions == 12
    assert entry.kafka.config == {"retention.ms": str(3 * 86_400_000), "cleanup.policy": "delete"}
    assert (entry.settings.extraction.window_seconds, entry.settings.extraction.priority) == (60, 8)
    assert entry.document["pii"] == {"fields": {"email": "pseudonym"}, "level": "HIGH"}


def test_high_personal_data_still_needs_a_decision() -> None:
    [problem] = problems_of(ROOT, SHORT)
    assert "HIGH personal data without a decision" in problem


def test_a_typology_may_name_a_throughput_and_the_entry_prevails_over_both() -> None:
    assert entry_of('{"typology": "job-queue"}').kafka.partitions == 2
    own = entry_of('{"typology": "job-queue", "kafka": {"partitions": 5}, "extraction": {"priority": null}}')
    assert (own.kafka.partitions, own.settings.extraction.priority) == (5, 4)


@pytest.mark.parametrize(
    ("compaction", "policy"),
    [
        ("none", "delete"),
        ("delete", "delete"),
        ("compact", "compact"),
        ("compact,delete", "compact,delete"),
        (True, "compact"),
        (False, "delete"),
    ],
)
def test_compaction_is_kafkas_policy(compaction: object, policy: str) -> None:
    entry = entry_of(json.dumps({"compaction": compaction}))
    assert entry.kafka.config == {"cleanup.policy": policy}


@pytest.mark.parametrize(
    ("root", "text", "expected"),
    [
        (ROOT, '{"throughput": "norml"}', "throughput: 'norml' is not a throughput (did you mean 'normal'?)"),
        ("", '{"throughput": "normal"}', "describe it in catalog.yaml: throughputs: {normal: {kafka: …}}"),
        ("", '{"typology": "evnt"}', "typology: 'evnt' is not a typology (did you mean 'event'?)"),
        ("", '{"throughput": {"records_per_second": 4}}', "throughput: expected text, found keys"),
        ("", '{"compaction": "nope"}', "compaction: 'nope' is not a value of compaction"),
        ("", '{"pii": "HUGE"}', "pii.level: 'HUGE' is not a value of level"),
        ("throughputs: {x: {kafka: {partition: 1}}}", "{}", "throughputs.x.kafka.partition: unknown key"),
        ("throughputs: {x: {throughput: y}}", "{}", "throughputs.x: a profile cannot name its own kind"),
        ("typologies: {x: {typology: y}}", "{}", "typologies.x: a profile cannot name its own kind"),
        ("typologies: {x: 3}", "{}", "typologies.x: expected keys, found 3"),
        ("", '{"schema_rules": {"mandatory": {"id": "texts"}}}', "'texts' is not a kind of field"),
        ("", '{"schema_rules": {"names": "["}}', "'[' is not a regular expression"),
    ],
)
def test_a_wrong_name_says_what_is_right(root: str, text: str, expected: str) -> None:
    [problem] = problems_of(root, text)
    assert expected in problem


@pytest.mark.parametrize(
    ("flush", "bounds"),
    [
        ("{}", (500_000, 0, 1_200, True)),
        ("{records: 9, bytes: 8, seconds: 7, hours: false}", (9, 8, 7, False)),
        ("{bytes: 1000, records: 0}", (0, 1_000, 1_200, True)),
        ("{records: null}", (500_000, 0, 1_200, True)),
    ],
)
def test_flush_stands_for_the_options_of_small_data_and_each_bound_counts(
    flush: str, bounds: tuple[int, ...]
) -> None:
    waits = entry_of(f"flush: {flush}").settings.waits
    assert (waits.min_records, waits.min_bytes, waits.max_wait_seconds, waits.close_hours) == bounds


def test_a_bound_of_flush_is_inherited_and_null_removes_them_all() -> None:
    defaults = {"leboncoin__defaults.yaml": "flush: {records: 7, seconds: 60}"}
    waits = entry_of("flush: {seconds: 90}", **defaults).settings.waits
    assert (waits.min_records, waits.max_wait_seconds, waits.close_hours) == (7, 90, True)
    assert entry_of("flush: null", **defaults).settings.waits == entry_of("").settings.waits


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("extraction: {min_records: 5}\nflush: {}", "extraction.min_records: is also set by flush.records"),
        ("flush: {records: 0}", "flush: sets neither records nor bytes to wait for"),
        ("flush: {records: -1}", "extraction.min_records: "),
        ("flush: {minutes: 3}", "flush.minutes: unknown key 'minutes'"),
        ("flush: true", "flush: expected keys, found True"),
    ],
)
def test_a_flush_that_would_be_ignored_is_refused(text: str, message: str) -> None:
    [problem] = problems_of(ROOT, text)
    assert message in problem


def test_the_options_beside_flush_stay() -> None:
    entry = entry_of("extraction: {priority: 7, min_bytes: null}\nflush: {}")
    assert (entry.settings.extraction.priority, entry.settings.waits.min_records) == (7, 500_000)
