"""What a forked process does: one run of the platform over probed ports."""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from kbq_assets.adapters.duckdb import load
from kbq_assets.adapters.duckdb.database import DuckDbDatabase
from kbq_assets.adapters.kafka.fetch.source import FetchSource
from kbq_assets.adapters.kafka.librdkafka import LibrdkafkaSource
from kbq_assets.adapters.kafka.reader import FetchOrOther
from kbq_assets.core.errors import KbqError
from kbq_assets.core.extraction.turns import SliceLimits
from kbq_assets.pipelines.extraction import publisher
from kbq_assets.pipelines.protocol import manifests
from kbq_assets.wire.warm import warm_up
from kbq_assets_tests.crashes.probes import Point, Probe, ProbedPort, probe_duckdb
from kbq_assets_tests.fixtures.tiny_manifests import TINY
from kbq_assets_tests.integration.platform import open_parts

#: How a run may end that is not killed: it did its work, or it says in KBQ's words why not.
DONE, SAID_WHY, BROKEN = 0, 3, 1
#: Records a batch: few, so that windows and jobs have a middle to die in. Slices are short enough that partitions are
#: read in several, some of them ahead of the position.
_BATCH_RECORDS: Final = 8
#: What a run imports when it needs it, which would cost each fork half a CPU second. PyArrow imports pandas.
_MODULES: Final = (
    "kbq_assets.adapters.settings_file",
    "kbq_assets.adapters.warehouses",
    "kbq_assets.pipelines.extraction.extractor",
    "kbq_assets.pipelines.loading.loader",
    "kbq_assets.pipelines.operate.operator",
    "kbq_assets.worker.task",
    "pandas",
)
#: A variable with another number of records a batch, for campaigns with many records.
BATCH_RECORDS: Final = "KBQ_TEST_BATCH_RECORDS"


@dataclass(frozen=True)
class Order:
    """One run: `extract`, `load` or `clean`. ``signal`` is sent to itself at ``point``."""

    run: str
    environ: Mapping[str, str]
    point: Point | None = None
    signal: int = 0

    @property
    def home(self) -> Path:
        """The platform's folder, where the run leaves its log and the points it has passed."""
        return Path(self.environ["KBQ_HOME"])

    def encode(self) -> str:
        """As a line."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, line: str) -> Order:
        """From a line."""
        fields = json.loads(line)
        point = fields.pop("point")
        return cls(**fields, point=Point(*point) if point else None)


def passed_file(home: Path, run: str) -> Path:
    """The points that the last run of this kind in a home passed, by kind."""
    return home / f"passed-{run}.json"


def preload() -> None:
    """Everything that is slow and starts no thread."""
    warm_up()
    for module in _MODULES:
        importlib.import_module(module)


def run(order: Order) -> int:
    """Run to the end, unless the signal comes first; return the exit code."""
    log = os.open(order.home / f"{order.run}.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    probe = Probe(order.point, order.signal)
    code = BROKEN
    try:
        print(_run_of(order, probe)())
        code = DONE
    except KbqError as error:
        print(error)
        code = SAID_WHY
    except BaseException:
        traceback.print_exc()
    passed_file(order.home, order.run).write_text(json.dumps(probe.passed))
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _run_of(order: Order, probe: Probe) -> Callable[[], object]:
    batch = int(order.environ.get(BATCH_RECORDS, _BATCH_RECORDS))
    setattr(load, "_INSERT_ROWS", batch * 5 // 8)  # noqa: B010 - a constant, to the type checker
    setattr(manifests, "LIMITS", TINY)  # noqa: B010 - the process ends after this run
    # A run that takes a second must pass the same points as a quicker one.
    setattr(publisher, "SECONDS_BETWEEN_SWAPS", math.inf)  # noqa: B010
    probe_duckdb(probe)
    if order.signal == signal.SIGSTOP:
        # Others do the work of a loader that sleeps between two steps, as in BigQuery. A session would lock them out.
        setattr(DuckDbDatabase, "session", lambda _: nullcontext())  # noqa: B010

    def probed(port: Any, name: str) -> Any:
        if isinstance(port, FetchOrOther | LibrdkafkaSource):
            kind = LibrdkafkaSource if isinstance(port, LibrdkafkaSource) else FetchSource
            port = kind(order.environ["KBQ_KAFKA_BOOTSTRAP_SERVERS"], chunk_records=batch)
        return ProbedPort(port, name, probe)

    parts = open_parts(order.environ, wrap=probed)
    extractor = parts.extractor
    extractor.__dict__["limits"] = dataclasses.replace(
        extractor.limits, slices=SliceLimits(positions=batch * 3 // 2, least=batch * 3 // 4)
    )
    runs: dict[str, Callable[[], object]] = {
        "extract": extractor.extract,
        "load": parts.loader.load,
        "clean": parts.operator.clean,
    }
    return runs[order.run]
