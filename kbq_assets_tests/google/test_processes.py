"""Servers end when their parent ends, however it ends."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import psutil

from kbq_assets_tests.fixtures.local_stack import free_ports

STARTS_AND_DIES = """
import os, signal, sys
from pathlib import Path
from kbq_assets_tests.google.processes import ServerProcess

port, folder = sys.argv[1:]
command = (sys.executable, "-m", "http.server", port, "--bind", "127.0.0.1", "--directory", folder)
server = ServerProcess(command, {}, Path(folder, "log"), f"http://127.0.0.1:{port}")
server.start()
print(server.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_server_does_not_outlive_a_killed_test_run(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    died = subprocess.run(
        [sys.executable, "-c", STARTS_AND_DIES, str(port), str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert died.returncode == -9, died.stderr
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(died.stdout)).wait(timeout=120)
    assert not psutil.pid_exists(int(died.stdout))
