"""What clean-up deletes next to orphans and done files."""

from __future__ import annotations

from kbq_assets.core.extraction.cost import COSTS, KEPT_DAYS, Usage, cost_lines, costs_path
from kbq_assets.pipelines.operate.clean import clean
from kbq_assets_tests.fakes.memory_store import FaultyMemoryStore

DAY_MS = 86_400_000


def test_costs_are_kept_for_their_days_and_then_deleted() -> None:
    store = FaultyMemoryStore()
    for days in (0, KEPT_DAYS - 1, KEPT_DAYS + 1, KEPT_DAYS + 30):
        started_ms = store.now_ms() - days * DAY_MS
        store.create(costs_path(f"r{days}", started_ms), cost_lines([Usage("t")], f"r{days}", started_ms))
    clean(store)
    kept = {entry.path.rpartition("-")[2] for entry in store.list(COSTS)}
    assert kept == {"r0.jsonl", f"r{KEPT_DAYS - 1}.jsonl"}
