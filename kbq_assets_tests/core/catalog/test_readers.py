"""Readers of tables, lakes and backups: missing grants are added, and none is removed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kbq_assets.core.catalog.lifecycle import LeftToPeople
from kbq_assets.core.catalog.readers import (
    MOST_PREFIXES,
    DataPlaces,
    GrantReading,
    ReadablePlace,
    plan_readers,
    wanted_readers,
)
from kbq_assets.core.config.locations import BigQueryProject, Bucket, DuckDbFile, Folder, LakeAddress
from kbq_assets_tests.core.catalog.documents import ENTRY, catalog_of

PLACES = DataPlaces(
    (BigQueryProject("jobs", "EU", "data"), LakeAddress(bucket=Bucket("lake", "eu"))),
    Bucket("copies", "kbq"),
    Bucket("personal", ""),
)
SECRET = ENTRY.replace("orders", "people")
TEXTS = {
    ENTRY: "consumers: [archiver]\nkafka: {name: orders}",
    ENTRY.replace("prod", "dev"): "consumers: [archiver]\nkafka: {name: orders-dev}",
    SECRET: "consumers: [archiver]\nkafka: {name: people}\npii: {level: HIGH, fields: {name: drop}}",
}
ANA, SALES = "user:ana@example.com", "group:sales@example.com"


def asked(readers: str, places: DataPlaces = PLACES) -> tuple[list[str], list[LeftToPeople]]:
    root = f"names: {{dataset: '{{company}}'}}\naccess: {{readers: {{{readers}}}}}"
    catalog = catalog_of({**TEXTS, "catalog.yaml": root})
    assert catalog.problems == ()
    assert catalog.convention.access is None  # no ACLs of Kafka are asked for
    topics = {each.topic for each in catalog.entries}
    wanted, refused = wanted_readers(catalog.convention.readers, places, catalog.of_env("prod"), topics)
    grants, left = plan_readers(wanted, dict.fromkeys(wanted, frozenset()))
    assert left == []
    return [str(each) for each in grants], refused


@pytest.mark.parametrize(
    ("place", "what"),
    [
        ("dataset/shop", "dataset data.shop"),
        ("table/shop.kbq_errors__sales", "table data.shop.kbq_errors__sales"),
        ("lake", "gs://lake/eu/shop/…"),
        ("lake/ads", "gs://lake/eu/ads/…"),
        ("lake/ads.clicks", "gs://lake/eu/ads/clicks/…"),
        ("backup", "gs://copies/kbq/backup/…"),
        ("backup/orders", "gs://copies/kbq/backup/orders/…"),
        ("backup/people", "gs://personal/backup/people/…"),
        ("personal-backup", "gs://personal/backup/…"),
    ],
)
def test_each_place_is_what_its_readers_read(place: str, what: str) -> None:
    [grant], refused = asked(f"{place}: '{SALES}, user:Ana@Example.com'")
    assert grant.removesuffix(" (and list the bucket's names)") == f"let {SALES}, {ANA} read {what}"
    assert refused == []


def test_a_topic_of_another_environment_is_no_mistake() -> None:
    assert asked(f"backup/orders-dev: '{ANA}'") == ([], [])


HERE = Folder(Path("/b"))


@pytest.mark.parametrize(
    ("place", "places", "why"),
    [
        (
            "dataset/shop",
            replace(PLACES, warehouses=(DuckDbFile(Path("/w.duckdb")),)),
            "/w.duckdb is a DuckDB",
        ),
        ("table/shop.a", replace(PLACES, warehouses=PLACES.warehouses[1:]), "has only lakes"),
        ("lake", replace(PLACES, warehouses=PLACES.warehouses[:1]), "names no lake"),
        ("lake/shop", replace(PLACES, warehouses=(LakeAddress(catalog="prod"),)), "the catalog prod"),
        ("lake/shop", replace(PLACES, warehouses=(LakeAddress(Path("/l")),)), "/l is a folder"),
        ("backup", replace(PLACES, backup=HERE), "/b is a folder"),
        ("backup/nobody", PLACES, "nobody is not a topic"),
        ("personal-backup", replace(PLACES, personal=None), "KBQ_BACKUP_PERSONAL_LOCATION is not set"),
    ],
)
def test_what_has_no_grants_is_left_to_people(place: str, places: DataPlaces, why: str) -> None:
    grants, [refused] = asked(f"{place}: '{ANA}'", places)
    assert grants == []
    assert refused.place == f"access.readers.{place}"
    assert why in refused.message


def test_a_wider_place_needs_no_grant_of_what_is_in_it() -> None:
    grants, _ = asked(f"lake/shop: '{ANA}', lake/shop.orders: '{ANA}, {SALES}'")
    assert [each.split(" read ")[0] for each in grants] == [f"let {ANA}", f"let {SALES}"]


def test_a_member_with_too_many_prefixes_gets_none_and_others_theirs() -> None:
    narrow = ", ".join(f"lake/shop.t{n}: '{ANA}, {SALES}'" for n in range(MOST_PREFIXES + 1))
    grants, [refused] = asked(f"{narrow}, lake/shop: '{SALES}', dataset/shop: '{ANA}'")
    assert grants == [
        f"let {ANA} read dataset data.shop",
        f"let {SALES} read gs://lake/eu/shop/… (and list the bucket's names)",
    ]
    assert f"{ANA} would need {MOST_PREFIXES + 1} prefixes" in refused.message


def test_missing_members_are_granted_and_what_does_not_exist_is_named() -> None:
    shop, orders = ReadablePlace("dataset", "p", "shop"), ReadablePlace("table", "p", "shop.orders")
    wanted = {shop: frozenset({ANA, SALES}), orders: frozenset({ANA})}
    stranger = frozenset({ANA, "user:stranger@example.com"})
    assert plan_readers(wanted, {shop: stranger, orders: stranger}) == ([GrantReading(shop, (SALES,))], [])
    grants, [left] = plan_readers(wanted, {shop: wanted[shop], orders: None})
    assert grants == []
    assert str(orders) == left.place and "does not exist yet" in left.message


@pytest.mark.parametrize(
    ("readers", "mistake"),
    [
        ("tables/shop: 'user:a@b.c'", "is not a place"),
        ("table/shop: 'user:a@b.c'", "is not a place"),
        ("lake/: 'user:a@b.c'", "is not a place"),
        ("dataset/shop: allUsers", "'allUsers' is not a reader"),
        ("dataset/shop: 'domain:example.com'", "is not a reader"),
        ("dataset/shop: 'user:a@b.c d'", "is not a reader"),
        ("dataset/shop: 'user:a@b.c, '", "'' is not a reader"),
        ("dataset/shop: 'user:bi@p.iam.gserviceaccount.com'", "is not a reader"),
        ("dataset/shop: 'serviceAccount:ana@example.com'", "is not a reader"),
    ],
)
def test_mistakes_name_the_place(readers: str, mistake: str) -> None:
    catalog = catalog_of({"catalog.yaml": f"access: {{readers: {{{readers}}}}}"})
    [problem] = map(str, catalog.problems)
    assert mistake in problem and "access.readers." in problem
