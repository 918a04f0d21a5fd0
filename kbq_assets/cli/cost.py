"""``kbq plan --cost``: Cloud Storage operations per cycle and month, with their list price."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kbq_assets.cli.render import number
from kbq_assets.core.extraction import operations
from kbq_assets.core.extraction.operations import CLASS_A_REGIONS, PRICES_OF, Operations
from kbq_assets.core.extraction.planning import ExtractionPlan
from kbq_assets.core.loading.batches import LoadBatch
from kbq_assets.pipelines.extraction.extractor import Extractor


@dataclass(frozen=True)
class CycleCost:
    """The operations of one kind of run, and the seconds between two such runs."""

    name: str
    operations: Operations
    every_seconds: float

    @property
    def month(self) -> Operations:
        return operations.per_month(self.operations, self.every_seconds)


def costs_of(
    extractor: Extractor, planned: ExtractionPlan | None, batches: Sequence[LoadBatch] | None
) -> list[CycleCost]:
    """The cost of the planned runs, assuming that every cycle is like them."""
    run, limits = extractor.deployment.settings.run, extractor.limits
    tables = operations.tables_of(batches or ())
    commits = operations.commits_of(planned) if planned else 0
    cycles = []
    if planned is not None:
        extracts = operations.of_extraction(
            planned, commits, tables, limits.window, done_files=limits.done_files
        )
        cycles.append(CycleCost("extract", extracts, run.extract_seconds))
    if batches is not None:
        cycles.append(CycleCost("load", operations.of_load(batches, commits, tables), run.load_seconds))
    return cycles


def cost_json(cycle: CycleCost) -> dict[str, object]:
    """One kind of run as a document. Dollars are per month."""
    month = cycle.month
    return {
        "run": cycle.name,
        "every_seconds": cycle.every_seconds,
        "class_a": cycle.operations.class_a,
        "class_b": cycle.operations.reads,
        "done_files": cycle.operations.done_files,
        "month_class_a": month.class_a,
        "month_class_b": month.reads,
        "month_usd_region": round(month.dollars(), 2),
        "month_usd_multi_region": round(month.dollars(CLASS_A_REGIONS), 2),
    }


def cost_lines(cycles: Sequence[CycleCost]) -> Iterator[str]:
    total = sum((cycle.month for cycle in cycles), Operations())
    for cycle in cycles:
        counts = cycle.operations
        yield (
            f"cost of one {cycle.name}: {number(counts.class_a)} class A and {number(counts.reads)} class B operations,"
            f" {number(counts.done_files)} of them done files; every {number(round(cycle.every_seconds))} s"
        )
    yield (
        f"a month of such cycles: {number(total.class_a)} class A, {number(total.reads)} class B:"
        f" {total.dollars():,.2f} USD in a region, {total.dollars(CLASS_A_REGIONS):,.2f} USD in a multi- or dual-region"
        f" (list prices of {PRICES_OF}; without storage, transfer and BigQuery's reads)"
    )
