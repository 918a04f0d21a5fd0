"""An extraction on a cluster in a separate process, with `kbq extract` or Dagster's job."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from kbq_assets.core.protocol.names import STAGING
from kbq_assets_tests.integration.world import World

KBQ = "import sys; from kbq_assets.definitions import main; sys.argv[1:] = ['extract']; main()"
DAGSTER = """
import sys
from kbq_assets.definitions import defs

job = defs.resolve_job_def("extract_job")
sys.exit(not job.execute_in_process(raise_on_error=False).success)
"""
_REPOSITORY = Path(__file__).resolve().parents[2]


class ClusterRun:
    """A run whose driver is here and whose tasks are on the cluster."""

    def __init__(self, world: World, program: str = KBQ) -> None:
        self._world = world
        self._log = world.folder / "extract.log"
        environ = {**os.environ, **world.environ, "PYTHONPATH": str(_REPOSITORY)}
        command = [sys.executable, "-c", program]
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(command, cwd=world.folder, env=environ, stdout=log, stderr=log)

    @property
    def said(self) -> str:
        """What it has printed."""
        return self._log.read_text()

    def wait_until(self, moment: Callable[[], object]) -> bool:
        """Wait for a moment of the run. False if it ended well before anybody had seen one: it was faster."""
        deadline = time.monotonic() + 300
        while not moment():
            if self.process.poll() is not None:
                assert self.process.returncode == 0, self.said
                return False
            assert time.monotonic() < deadline, self.said
            time.sleep(0.01)
        return True

    def something_is_staged(self) -> bool:
        """A task has closed its first file."""
        return any(True for _ in self._world.parts.deployment.store.list(STAGING))

    def exit_code(self) -> int:
        """What it ends with."""
        return self.process.wait(600)

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
        self.process.wait(120)


class Start(Protocol):
    """Starts a run."""

    def __call__(self, world: World, program: str = KBQ) -> ClusterRun:
        """By `KBQ` or `DAGSTER`."""
        ...
