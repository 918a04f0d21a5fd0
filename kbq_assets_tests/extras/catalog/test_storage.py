"""`kbq catalog apply` moves old objects to cheaper storage as configured in the section `lifecycle`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kbq_assets.core.catalog.lifecycle import SetTransitions, StoragePlaces, Transition
from kbq_assets.core.config.locations import Bucket, LakeAddress
from kbq_assets.extras.catalog.apply import CatalogCommands, Storage, storage_of
from kbq_assets_tests.fakes.platform import TOPIC, FakePlatform

ENTRY = f"consumers: [archiver]\nkafka: {{name: {TOPIC}, partitions: 2}}\n"
LIFECYCLE = (
    "names: {dataset: '{company}'}\nlifecycle: {backup: NEARLINE 30, lake: 'NEARLINE 60, COLDLINE 180'}\n"
)


class Buckets:
    """Buckets in memory."""

    def __init__(self) -> None:
        self.stored: set[Transition] = set()

    def transitions(self, bucket: str) -> tuple[Transition, ...]:
        return tuple(sorted(each for each in self.stored if each.bucket == bucket))

    def change(self, change: SetTransitions) -> None:
        self.stored = (self.stored - set(change.replaced)) | set(change.wanted)


@pytest.fixture
def buckets() -> Buckets:
    return Buckets()


@pytest.fixture
def commands(tmp_path: Path, buckets: Buckets) -> CatalogCommands:
    entry = tmp_path / "catalog/shop/sales/orders/prod/topic.yaml"
    entry.parent.mkdir(parents=True)
    entry.write_text(ENTRY)
    (tmp_path / "catalog/catalog.yaml").write_text(LIFECYCLE)
    world = FakePlatform(tmp_path, environ={"KBQ_SOURCE_TOPICS": str(tmp_path / "catalog")})
    staging, lake = Bucket("staging", ""), LakeAddress(bucket=Bucket("lake", "eu"))
    places = StoragePlaces((Bucket("copies", "kbq"),), (lake,), staging)
    return replace(world.parts.catalog_commands, storage=Storage(places, lambda: buckets))


def test_a_plan_sets_what_the_catalog_says_and_then_nothing(
    commands: CatalogCommands, buckets: Buckets
) -> None:
    by_hand = Transition("lake", "eu/shop/", ".parquet", "NEARLINE", 7)
    buckets.stored = {by_hand}
    planned = commands.plan()
    assert [str(change) for change in planned.storage] == [
        "storage class of gs://copies/kbq/backup/….avro: NEARLINE after 30 days",
        "storage class of gs://lake/eu/shop/….parquet: COLDLINE after 180 days;"
        " gs://lake/eu/shop/….parquet: NEARLINE after 60 days (until now 7)",
    ]
    for proposal in commands.proposals(planned):
        proposal.apply()
    assert commands.plan().storage == ()
    assert [each.days for each in sorted(buckets.stored)] == [30, 180, 60]


def test_a_machine_without_buckets_is_told_so(commands: CatalogCommands, tmp_path: Path) -> None:
    here = replace(commands, storage=storage_of(FakePlatform(tmp_path).settings))
    planned = here.plan()
    assert planned.storage == ()
    assert {difference.topic for difference in planned.differences} >= {"lifecycle.backup", "lifecycle.lake"}
