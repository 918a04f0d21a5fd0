"""kill -9 of a backup, a merge of its files, a replay from it, its promotion, rollback and acceptance, before and after
every call of the store, statement of DuckDB, and change of a lake's catalog and files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kbq_assets_tests.sizes import EVERY_NTH_ERROR_POINT, EVERY_NTH_REPLAY_POINT


@pytest.mark.slow
@pytest.mark.parametrize("case", ["appends", "upserts", "lake"])
def test_a_killed_replay_ends_with_every_row_in_its_table_once(tmp_path: Path, case: str) -> None:
    command = [sys.executable, "-m", "kbq_assets_tests.crashes.replays_killed", str(tmp_path)]
    done = subprocess.run(
        [*command, str(EVERY_NTH_REPLAY_POINT), case], capture_output=True, text=True, check=False
    )
    found = json.loads(done.stdout or "{}")
    assert (done.returncode, found.get("failed")) == (0, []), done.stdout + done.stderr
    assert found["points"] >= 800
    assert found["killed"] >= found["points"] // EVERY_NTH_REPLAY_POINT


@pytest.mark.slow
def test_a_killed_replay_of_error_rows_in_a_lake_ends_with_every_record_in_a_table_once(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-m", "kbq_assets_tests.crashes.error_replays_killed", str(tmp_path)]
    done = subprocess.run([*command, str(EVERY_NTH_ERROR_POINT)], capture_output=True, text=True, check=False)
    found = json.loads(done.stdout or "{}")
    assert (done.returncode, found.get("failed")) == (0, []), done.stdout + done.stderr
    assert found["killed"] >= 20
