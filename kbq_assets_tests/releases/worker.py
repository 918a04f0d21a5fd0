"""One release's process: reads orders, a JSON document a line, and answers each with one.

It runs as a file, with the tree of its release in PYTHONPATH. So it uses only what releases have in common. An order is
`{"home", "records", "run"}`: a folder, how many records Kafka has, and `extract`, `load` or `clean`. The answer is
`{"problems"}`: why the run did not do all of its work.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from kbq_assets.adapters.duckdb import DuckDbWarehouse
from kbq_assets.adapters.local_store import LocalObjectStore
from kbq_assets.core.errors import KbqError
from kbq_assets_tests.fakes.platform import GOOD, SOURCES, FakePlatform


def opened(home: Path, records: int) -> Any:
    """The platform of a home."""
    platform = FakePlatform(home, sources=SOURCES, environ={"KBQ_WINDOW_RECORDS": "4"})
    for number in range(records):
        platform.produce(partition=number % 2, value=GOOD)
    platform.store = LocalObjectStore(home / "staging")  # type: ignore[assignment]
    return platform.reopened(warehouse=lambda: DuckDbWarehouse(home / "warehouse.duckdb"))


def problems(order: dict[str, Any]) -> list[str]:
    """What kept a run from its work."""
    parts = opened(Path(order["home"]), order["records"])
    try:
        if order["run"] == "extract":
            report = parts.extractor.extract()
            return [
                *(stop.message for stop in report.stops),
                *report.failures.values(),
                *map(str, report.plan.stops),
            ]
        if order["run"] == "load":
            return [table.message for table in parts.loader.load().tables if table.message]
        parts.operator.clean()
    except KbqError as error:
        return [f"{type(error).__name__}: {error}"]
    return []


def main() -> None:
    """Answer until the input ends."""
    for line in sys.stdin:
        print(json.dumps({"problems": problems(json.loads(line))}), flush=True)


if __name__ == "__main__":
    main()
