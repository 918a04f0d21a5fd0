"""Batches of files whose runner dies by kill -9: `python -m kbq_assets_tests.crashes.files_killed FOLDER NTH`.

Every run is a process, forked from this one, over a folder of batches and a DuckDB file. The first lists the points of
a run; each later one is killed at one, and two more runs end what it left. Prints the number of points, and what went
wrong. The batches: an ordered table, one that a statement changes, and one whose second batch replaces a partition.
"""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
from pathlib import Path
from typing import Any

import duckdb

from kbq_assets.definitions import parts
from kbq_assets.extras.filebatches.open import open_file_batches
from kbq_assets.pipelines.filebatches.runner import FileBatches
from kbq_assets_tests.crashes.probes import Point, Probe, ProbedPort, in_child, probe_duckdb

CSV = {"sourceFormat": "CSV", "autodetect": True, "skipLeadingRows": 1}
EXTERNAL = {"sourceFormat": "CSV", "autodetect": True, "csvOptions": {"skipLeadingRows": 1}}
DAY = {"writeDisposition": "WRITE_TRUNCATE", "timePartitioning": {"field": "day"}}
ADDITION = "UPDATE {dest_dataset}.{dest_table} AS t SET total = t.total + e.total FROM temp_ext AS e WHERE e.id = t.id"
ROWS: dict[str, list[tuple[object, ...]]] = {
    "SELECT id FROM shop.orders ORDER BY 1": [(1,), (2,), (3,), (4,)],
    "SELECT id, total FROM shop.totals": [(1, 30)],
    "SELECT id, strftime(day, '%Y%m%d') FROM shop.days ORDER BY 1": [(2, "20260102"), (3, "20260101")],
}


def upload(arrivals: Path) -> None:
    """The batches, and their configuration."""

    def put(path: str, text: str = "") -> None:
        (arrivals / path).parent.mkdir(parents=True, exist_ok=True)
        (arrivals / path).write_text(text)

    def batch(path: str, text: str) -> None:
        put(f"{path}/part-0.csv", text)
        put(f"{path}/_SUCCESS")

    put("_config/load.json", json.dumps(CSV))
    put("shop/orders/_config/ORDERME")
    for number in (1, 3):
        batch(f"shop/orders/{number}", f"id\n{number}\n{number + 1}\n")
    put("shop/days/_config/load.json", json.dumps(DAY))
    put("shop/days/_config/ORDERME")
    batch("shop/days/historical/2026/01/01", "id,day\n1,2026-01-01\n")
    batch("shop/days/historical/2026/01/02", "id,day\n2,2026-01-02\n")
    batch("shop/days/incremental/2026/01/01", "id,day\n3,2026-01-01\n")
    put("shop/totals/_config/external.json", json.dumps(EXTERNAL))
    put("shop/totals/_config/bq_transform.sql", ADDITION)
    for total in (10, 20):
        batch(f"shop/totals/{total}", f"id,total\n1,{total}\n")


def opened(home: Path, probe: Probe | None = None) -> FileBatches:
    """A runner; its calls of the store and of DuckDB are points."""
    found = open_file_batches(parts({"KBQ_HOME": str(home), "KBQ_FILES": str(home / "arrivals")}).deployment)
    if probe is None:
        return found
    probe_duckdb(probe)
    store: Any = ProbedPort(found.ports.store, "store", probe)
    return FileBatches(dataclasses.replace(found.ports, store=store))


def prepare(home: Path) -> None:
    """A fresh home."""
    upload(home / "arrivals")

    def create() -> None:
        with duckdb.connect(str(home / "warehouse.duckdb")) as connection:
            connection.execute("CREATE SCHEMA shop; CREATE TABLE shop.totals AS SELECT 1 AS id, 0 AS total")

    assert in_child(create) == 0


def run(home: Path, point: Point | None = None) -> None:
    """Apply all batches; die at a point."""
    probe = Probe(point, signal.SIGKILL)
    opened(home, probe).run()
    (home / "points.json").write_text(json.dumps(probe.passed))


def check(home: Path) -> None:
    """Every batch was applied once."""
    for _ in range(2):
        opened(home).run()
    report = opened(home).status()
    assert not report.needs_person and not report.unfinished, report
    with duckdb.connect(str(home / "warehouse.duckdb"), read_only=True) as connection:
        found = {sql: connection.execute(sql).fetchall() for sql in ROWS}
    assert found == ROWS, found


def main(folder: Path, nth: int) -> int:
    """Kill a run at every nth point."""
    prepare(folder / "listed")
    assert in_child(lambda: run(folder / "listed")) == 0
    assert in_child(lambda: check(folder / "listed")) == 0
    passed: dict[str, int] = json.loads((folder / "listed" / "points.json").read_text())
    points = [Point(kind, number + 1) for kind, count in sorted(passed.items()) for number in range(count)]
    failed = []
    for number, point in enumerate(points[::nth]):
        home = folder / str(number)
        prepare(home)
        killed = in_child(lambda home=home, point=point: run(home, point))  # type: ignore[misc]
        if killed != -signal.SIGKILL or in_child(lambda home=home: check(home)) != 0:  # type: ignore[misc]
            failed.append(f"{point}: ended with {killed}")
    print(json.dumps({"points": len(points), "killed": len(points[::nth]), "failed": failed}))
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
