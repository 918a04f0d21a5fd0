"""kill -9 of runners of file batches, before and after every call of the store and statement of DuckDB."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kbq_assets_tests.sizes import EVERY_NTH_FILE_POINT


@pytest.mark.slow
def test_a_killed_run_applies_every_batch_of_files_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kbq_assets_tests.crashes.files_killed", str(tmp_path)]
    done = subprocess.run([*command, str(EVERY_NTH_FILE_POINT)], capture_output=True, text=True, check=False)
    found = json.loads(done.stdout or "{}")
    assert (done.returncode, found.get("failed")) == (0, []), done.stdout + done.stderr
    assert found["points"] >= 200
    assert found["killed"] >= found["points"] // EVERY_NTH_FILE_POINT
