"""Kill KBQ for some minutes while producers never stop, then count: `make torture`.

It has its own broker, registry and home below `.kbq/torture`. The result is a table and a file.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

import kbq_assets.defs
from kbq_assets.worker.warm import warm_up
from kbq_assets_tests.crashes import forks as forking
from kbq_assets_tests.crashes.child import BATCH_RECORDS
from kbq_assets_tests.defs.test_automation import WORKSPACE, serving
from kbq_assets_tests.fixtures.local_stack import REPOSITORY, stack_with_free_ports
from kbq_assets_tests.integration.platform import open_parts
from kbq_assets_tests.torture import counting, lanes
from kbq_assets_tests.torture.lanes import Campaign
from kbq_assets_tests.torture.producing import Feeds, topics

_HOME = REPOSITORY / ".kbq" / "torture"
_RESULT = REPOSITORY / "benchmarks" / "results" / "torture.json"


def main() -> int:
    """Run a campaign. Returns 1 if a record was lost, doubled or changed, or if something failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--daemon", action=argparse.BooleanOptionalAction, default=True, help="Dagster's daemon too"
    )
    parser.add_argument(
        "--spark", action=argparse.BooleanOptionalAction, default=True, help="`kbq extract` too"
    )
    parser.add_argument("--result", type=Path, default=_RESULT)
    options = parser.parse_args()
    warm_up()  # once: lanes that compile the same kernels side by side would not begin in time
    shutil.rmtree(_HOME, ignore_errors=True)
    stack = stack_with_free_ports(_HOME / "stack")
    stack.up()
    try:
        feeds = Feeds(stack.bootstrap_servers, stack.registry_url, topics(), options.seed)
        result = torture(feeds, options.minutes * 60, daemon=options.daemon, spark=options.spark)
    finally:
        stack.down()
    options.result.parent.mkdir(parents=True, exist_ok=True)
    options.result.write_text(json.dumps(result, indent=2) + "\n")
    show(result)
    return 0 if result["passed"] else 1


def torture(feeds: Feeds, seconds: float, *, daemon: bool, spark: bool) -> dict[str, Any]:
    """The result of a campaign on a running stack."""
    campaign = Campaign(_environ(feeds), feeds.seed, seconds)
    kinds = ("extract", "extract", "load", "load", "clean")
    chosen = [functools.partial(lanes.forked_lane, campaign, run, n) for n, run in enumerate(kinds)]
    feeds.start()
    try:
        with _served(campaign) if daemon else contextlib.nullcontext():
            more = [lanes.daemon_lane] * daemon + [lanes.spark_lane] * spark
            lanes.run_lanes(campaign, [*chosen, *(functools.partial(lane, campaign) for lane in more)])
    finally:
        feeds.stop()
    with forking.forks() as forks:
        recovery = lanes.recover(campaign, forks)
    records = counting.served(
        feeds.bootstrap_servers, {topic.name: topic.partitions for topic in feeds.topics}
    )
    wanted = counting.expected(records, feeds.schemas)
    count = counting.compare(wanted, counting.stored(campaign.home / "warehouse.duckdb"), len(records))
    accounted = open_parts(campaign.environ).reconciler.reconcile().accounted
    kept = len(records) == feeds.acknowledged.total()
    tally = campaign.tally
    return {
        "passed": count.exact and accounted and kept and not tally.faults,
        "kills": tally.total("killed") + tally.total("killed a process of the run"),
        "stops": tally.total("stopped"),
        "count": dataclasses.asdict(count),
        "acknowledged": feeds.acknowledged.total(),
        "kbq reconcile": "accounted" if accounted else "not accounted",
        "seconds of recovery": round(recovery, 1),
        "by lane": dict(sorted(tally.done.items())),
        "faults": tally.faults,
        "minutes": round(seconds / 60, 1),
        "cores": os.cpu_count(),
        "load average": os.getloadavg()[1],
        "memory_gb": round(psutil.virtual_memory().total / 1e9),
        "commit": subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=False,
        ).stdout.strip(),
        "command": f"make torture TORTURE_ARGS='{' '.join(sys.argv[1:])}'",
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _environ(feeds: Feeds) -> dict[str, str]:
    home = _HOME / "home"
    home.mkdir(parents=True)
    sources = home / "topics.txt"
    sources.write_text("".join(f"{topic.name} {topic.options}\n" for topic in feeds.topics))
    return {
        "KBQ_HOME": str(home),
        "KBQ_SOURCE_TOPICS": str(sources),
        "KBQ_KAFKA_BOOTSTRAP_SERVERS": feeds.bootstrap_servers,
        "KBQ_REGISTRY_URL": feeds.registry_url,
        "KBQ_REGISTRY_TIMEOUT_SECONDS": "120",
        "KBQ_RUN_SECONDS": "20",
        "KBQ_WINDOW_RECORDS": "2000",
        "KBQ_EXTRACT_SECONDS": "15",
        "KBQ_LOAD_SECONDS": "15",
        "KBQ_POLL_SECONDS": "1",
        "KBQ_LOAD_WAIT_SECONDS": "15",
        BATCH_RECORDS: "400",
    }


@contextlib.contextmanager
def _served(campaign: Campaign) -> Iterator[None]:
    """What `kbq ui` runs on this home: daemon, code server, runs, webserver. It restarts what is killed."""
    configuration = campaign.home / "configuration"
    configuration.mkdir()
    shutil.copy(Path(kbq_assets.defs.__file__).parent / "home" / "dagster.yaml", configuration)
    (configuration / "workspace.yaml").write_text(WORKSPACE)
    with serving(campaign.home, {**os.environ, **campaign.environ}, configuration):
        yield


def show(result: dict[str, Any]) -> None:
    """Print the result as a table."""
    table = Table(title="passed" if result["passed"] else "FAILED")
    table.add_column("what")
    table.add_column("value", justify="right")
    for name, value in result.items():
        rows = value.items() if isinstance(value, dict) else [("", value)]
        for inner, each in rows:
            table.add_row(f"{name} {inner}".strip(), str(each))
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
