"""The definitions for the automation's tests: those of the platform, without Spark, with runs that can be held.

While `hold.<port>.<call>` exists in KBQ_HOME, a process that makes that call writes its process id to `held` and waits.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg

from kbq_assets.defs.extraction.engine import ENGINE
from kbq_assets.ports.engine import ExtractionEngine
from kbq_assets_tests.integration.platform import open_parts


class Holdable:
    """A port whose calls can be held."""

    def __init__(self, port: Any, name: str) -> None:
        self._port = port
        self._name = name
        self._folder = Path(os.environ["KBQ_HOME"])

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(self._port, attribute)
        hold = self._folder / f"hold.{self._name}.{attribute}"
        if not callable(found) or not hold.exists():
            return found
        return self._held(hold, found)

    def _held(self, hold: Path, found: Any) -> Any:
        (self._folder / "held").write_text(str(os.getpid()))
        while hold.exists():
            time.sleep(0.1)
        return found


def _definitions() -> dg.Definitions:
    parts = open_parts(os.environ, wrap=Holdable)

    class Engine(dg.ConfigurableResource[ExtractionEngine]):
        """An engine of the held parts."""

        @contextmanager
        def yield_for_execution(self, context: dg.InitResourceContext) -> Iterator[ExtractionEngine]:
            with parts.adapters.engine() as opened:
                yield opened

    return parts.definitions(resources={ENGINE: Engine()})


def __getattr__(name: str) -> Any:
    if name == "defs":
        return _definitions()
    raise AttributeError(name)
