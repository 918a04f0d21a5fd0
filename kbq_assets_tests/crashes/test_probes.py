"""The points of a run depend on what it does, not on the time that it takes."""

from __future__ import annotations

import json
from pathlib import Path

from kbq_assets.adapters.duckdb import database
from kbq_assets.adapters.duckdb.database import DuckDbDatabase
from kbq_assets_tests.crashes.probes import Probe, in_child, probe_duckdb


def test_a_session_whose_parts_take_long_closes_its_file_once(tmp_path: Path) -> None:
    found = tmp_path / "points.json"

    def run() -> None:
        setattr(database, "_MOST_SECONDS_OPEN", 0.0)  # noqa: B010 - every part takes longer
        own, probe = DuckDbDatabase(tmp_path / "w.duckdb"), Probe()
        probe_duckdb(probe)
        with own.session():
            for _ in range(3):
                with own.session(), own.writing() as connection:
                    connection.execute("CREATE TABLE IF NOT EXISTS t (id INTEGER)")
        found.write_text(json.dumps(probe.passed))

    assert in_child(run) == 0
    assert json.loads(found.read_text())["duckdb DETACH, after"] == 2  # its creation is the other one
