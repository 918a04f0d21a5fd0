"""Old objects move to cheaper storage as the catalog says, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kbq_assets.core.catalog.lifecycle import (
    LeftToPeople,
    SetTransitions,
    StoragePlaces,
    Transition,
    parse_lifecycle,
    plan_lifecycle,
    transitions,
)
from kbq_assets.core.config.locations import Bucket, Folder, LakeAddress
from kbq_assets_tests.core.catalog.documents import catalog_of

STAGING, COPIES = Bucket("staging", "kbq"), Bucket("copies", "")
PLACES = StoragePlaces((COPIES,), (LakeAddress(bucket=Bucket("lake", "eu")),), STAGING)
BACKUP = Transition("copies", "backup/", ".avro", "NEARLINE", 30)


def asked(text: str, places: StoragePlaces = PLACES) -> tuple[list[Transition], list[LeftToPeople]]:
    catalog = catalog_of({"catalog.yaml": f"lifecycle: {{{text}}}"})
    assert not catalog.problems
    return transitions(catalog.convention.lifecycle, places, {"shop", "ads"})


def test_backups_and_datasets_get_their_classes() -> None:
    found, refused = asked("backup: 'NEARLINE 30, COLDLINE 90', lake: COLDLINE 180, lake/shop: NEARLINE 60")
    assert refused == []
    assert [str(each) for each in found] == [
        "gs://copies/backup/….avro: COLDLINE after 90 days",
        "gs://copies/backup/….avro: NEARLINE after 30 days",
        "gs://lake/eu/ads/….parquet: COLDLINE after 180 days",
        "gs://lake/eu/shop/….parquet: COLDLINE after 180 days",
        "gs://lake/eu/shop/….parquet: NEARLINE after 60 days",
    ]


@pytest.mark.parametrize(
    ("text", "places", "why"),
    [
        ("backup: NEARLINE 1", replace(PLACES, backups=(Folder(Path("/b")),)), "/b is a folder"),
        ("backup: ARCHIVE 9", replace(PLACES, backups=(STAGING,)), "gs://staging is the staging bucket"),
        ("lake: NEARLINE 1", replace(PLACES, lakes=()), "names no lake"),
        ("lake: NEARLINE 1", replace(PLACES, lakes=(LakeAddress(catalog="prod"),)), "the catalog prod"),
        ("lake/a: NEARLINE 1", replace(PLACES, lakes=(LakeAddress(Path("/l")),)), "/l is a folder"),
    ],
)
def test_what_has_no_storage_classes_is_left_to_people(text: str, places: StoragePlaces, why: str) -> None:
    found, [refused] = asked(text, places)
    assert found == []
    assert why in refused.message


@pytest.mark.parametrize(
    "text",
    [
        "staging: NEARLINE 30",
        "lake/a/b: NEARLINE 30",
        "backup: 30",
        "backup: CHEAP 30",
        "backup: NEARLINE 0",
        "backup: 'COLDLINE 30, NEARLINE 90'",
        "backup: 'NEARLINE 90, COLDLINE 90'",
    ],
)
def test_mistakes_are_named(text: str) -> None:
    [problem] = catalog_of({"catalog.yaml": f"lifecycle: {{{text}}}"}).problems
    assert problem.where.startswith("lifecycle.")


def test_no_section_asks_for_nothing() -> None:
    assert parse_lifecycle(None) == {}


def test_only_what_is_missing_is_planned_and_other_days_are_replaced() -> None:
    cold = replace(BACKUP, storage_class="COLDLINE", days=90)
    early, other = replace(BACKUP, days=7), replace(BACKUP, prefix="mine/")
    assert plan_lifecycle([BACKUP], {"copies": [BACKUP, other]}) == ([], [])
    assert plan_lifecycle([BACKUP, cold], {"copies": [early, other]}) == (
        [SetTransitions((BACKUP, cold), (early,))],
        [],
    )
    changes, [left] = plan_lifecycle([BACKUP], {"copies": [cold]})
    assert [str(change) for change in changes] == [
        "storage class of gs://copies/backup/….avro: NEARLINE after 30 days"
    ]
    assert left.message == "COLDLINE after 90 days is not in catalog.yaml: remove it by hand"
