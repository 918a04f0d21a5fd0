"""`kbq extract` on a cluster, in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kbq_assets.core.names import STAGING
from kbq_assets_tests.integration.world import World

_KBQ = "from kbq_assets.definitions import main; main()"
_REPOSITORY = Path(__file__).resolve().parents[2]


class ClusterRun:
    """A run whose driver is here and whose tasks are on the cluster."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._log = world.folder / "extract.log"
        environ = {**os.environ, **world.environ, "PYTHONPATH": str(_REPOSITORY)}
        command = [sys.executable, "-c", _KBQ, "extract"]
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(command, cwd=world.folder, env=environ, stdout=log, stderr=log)

    @property
    def said(self) -> str:
        """What it has printed."""
        return self._log.read_text()

    def wait_until(self, moment: Callable[[], object]) -> None:
        """Wait for a moment of the run."""
        deadline = time.monotonic() + 180
        while not moment():
            assert self.process.poll() is None, self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(0.01)

    def something_is_staged(self) -> bool:
        """A task has closed its first file."""
        return any(True for _ in self._world.platform.store.list(STAGING))

    def exit_code(self) -> int:
        """What it ends with."""
        return self.process.wait(240)

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Spark's events of one kind, from its log."""
        return [event for event in self._events() if event["Event"] == f"SparkListener{kind}"]

    def _events(self) -> Iterator[dict[str, Any]]:
        for path in (self._world.folder / "spark-events").rglob("*"):
            if path.is_file() and "app-" in path.name and not path.name.startswith((".", "appstatus")):
                for line in path.read_text().splitlines():
                    yield json.loads(line)

    def end(self) -> None:
        """End it, if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait(30)
