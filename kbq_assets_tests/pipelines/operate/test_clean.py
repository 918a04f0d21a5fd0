"""What clean-up deletes besides orphans and done files."""

from __future__ import annotations

import dataclasses

import pytest

from kbq_assets.core.errors import UnsupportedFormat
from kbq_assets.core.extraction.cost import COSTS, KEPT_DAYS, Usage, cost_lines, costs_path
from kbq_assets.pipelines.backup.clean import clean_backups
from kbq_assets.pipelines.operate.clean import clean
from kbq_assets_tests.fakes.memory_store import FaultyMemoryStore
from kbq_assets_tests.pipelines.backup.test_extraction import BACKED_UP, bench
from kbq_assets_tests.pipelines.bench import TOPIC

DAY_MS = 86_400_000


def test_costs_are_kept_for_their_days_and_then_deleted() -> None:
    store = FaultyMemoryStore()
    for days in (0, KEPT_DAYS - 1, KEPT_DAYS + 1, KEPT_DAYS + 30):
        started_ms = store.now_ms() - days * DAY_MS
        store.create(costs_path(f"r{days}", started_ms), cost_lines([Usage("t")], f"r{days}", started_ms))
    clean(store)
    kept = {entry.path.rpartition("-")[2] for entry in store.list(COSTS)}
    assert kept == {"r0.jsonl", f"r{KEPT_DAYS - 1}.jsonl"}


@pytest.mark.parametrize(
    "path", [f"commits/{TOPIC}.json", "tables/d.A.json", f"backup/@/commits/{TOPIC}.json"]
)
def test_an_older_release_deletes_nothing_where_a_newer_one_works(path: str) -> None:
    world = bench()
    world.settings = BACKED_UP
    world.produce(1, 1)
    world.extract()
    world.load()
    world.produce(1)
    world.extract()
    store = world.backups if path.startswith("backup/") else world.store
    found = store.objects[path]
    store.objects[path] = dataclasses.replace(found, data=b'{"format":99}')
    for place in (world.store, world.backups):
        for orphan in (
            "staging/1-dead/shop.events.0.d.A.1.0.avro",
            f"backup/{TOPIC}/dead/1_0_{0:020}_{0:020}.avro",
        ):
            place.create(orphan, b"x")
    before = set(store.objects)
    with pytest.raises(UnsupportedFormat, match="format 99"):
        if path.startswith("backup/"):
            clean_backups(world.backup_area, days=1)
        else:
            clean(world.store)
    assert set(store.objects) == before
