"""A server for a test run: started on a free port, killed with -9, restarted on its data, never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kbq_assets.adapters.processes.daemons import last_lines

# The shell lives as long as its input, which ends with this process however it dies; then the server is killed.
_WATCHDOG = '"$@" >>"$KBQ_LOG" 2>&1 </dev/null & echo $!; read -r _; kill -9 $! 2>/dev/null'


@dataclass
class ServerProcess:
    """One program. ``ready_url`` answers once it serves."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    log: Path
    ready_url: str
    watchdog: subprocess.Popen[str] | None = None
    pid: int = 0

    def start(self) -> None:
        """Start it and wait until it serves. Raises RuntimeError with the end of its log."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.watchdog = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHDOG, "sh", *self.command],
            env={**self.environment, "KBQ_LOG": str(self.log)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.watchdog.stdout is not None
        self.pid = int(self.watchdog.stdout.readline())
        self._wait_until_ready(300)

    def kill(self) -> None:
        """``kill -9``: what it was doing is cut short; its data stays."""
        watchdog, self.watchdog = self.watchdog, None
        if watchdog is None:
            return
        os.kill(self.pid, signal.SIGKILL)
        # Closes the watchdog's input and waits for it.
        watchdog.communicate()

    def _wait_until_ready(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not _answers(self.ready_url):
            if time.monotonic() > deadline or not _is_alive(self.pid):
                self.kill()
                raise RuntimeError(f"{self.command[0]} does not serve:\n{last_lines(self.log, 30)}")
            time.sleep(0.05)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10):
            return True
    except urllib.error.HTTPError as error:
        error.close()
        return False
    except OSError:
        return False


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
