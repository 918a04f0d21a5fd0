"""Signals that end one run: what it made is deleted first, and its caller sees the signal."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

_RUN = """
import os, signal, sys, tempfile
from kbq_assets.cli.interrupts import clean_up_first
signal.signal(int(sys.argv[1]), signal.SIG_IGN if sys.argv[3] else signal.SIG_DFL)
with clean_up_first(), tempfile.TemporaryDirectory(dir=sys.argv[2]):
    os.kill(os.getpid(), int(sys.argv[1]))
print("went on")
"""


@pytest.mark.parametrize(
    ("number", "is_ignored", "code", "said"),
    [
        (signal.SIGTERM, "", -signal.SIGTERM, ""),
        (signal.SIGHUP, "", -signal.SIGHUP, ""),
        (signal.SIGHUP, "yes", 0, "went on\n"),  # nohup
    ],
)
def test_a_run_that_a_signal_ends_leaves_no_temporary_files(
    number: int, is_ignored: str, code: int, said: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", _RUN, str(int(number)), str(tmp_path), is_ignored]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, said, "")
    assert list(tmp_path.iterdir()) == []
