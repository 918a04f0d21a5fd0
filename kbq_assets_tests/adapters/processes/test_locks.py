"""The lock of a home: one holder, and none once its process is dead."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from kbq_assets.adapters.processes.locks import exclusive
from kbq_assets.core.errors import Unavailable

SILENT = Console(quiet=True)
HOLD = """
import sys, time
from pathlib import Path
from rich.console import Console
from kbq_assets.adapters.processes.locks import exclusive
with exclusive(Path(sys.argv[1]), Console(quiet=True), 1):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_held_lock_is_refused_after_the_wait_naming_the_holder(tmp_path: Path) -> None:
    with (
        exclusive(tmp_path / "lock", SILENT, 0),
        pytest.raises(Unavailable, match=f"process {os.getpid()}"),
        exclusive(tmp_path / "lock", SILENT, 0.2),
    ):
        pass


def test_a_lock_ends_with_its_block(tmp_path: Path) -> None:
    for _ in range(2):
        with exclusive(tmp_path / "lock", SILENT, 0):
            pass


def test_a_lock_ends_with_a_killed_holder(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path / "lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        holder.kill()
    with exclusive(tmp_path / "lock", SILENT, 60):
        pass
