"""An upsert table of a compacted topic, under kill -9: `python -m kbq_assets_tests.crashes.upsert_campaign FOLDER`.

Each round sends changes, often begins to read a range again, and runs extractions and loads in processes that kill
themselves, the kind of point with the fewest deaths first. In the end the table must show the last value that was
sent for each key. Prints what happened; exits with 1 if the table differs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kbq_assets_tests.adapters.kafka.brokers import RealBroker
from kbq_assets_tests.crashes import forks as forking
from kbq_assets_tests.crashes.changes import PARTITIONS, UPSERT, Changes
from kbq_assets_tests.crashes.child import BATCH_RECORDS, passed_file
from kbq_assets_tests.crashes.forks import Forks
from kbq_assets_tests.crashes.probes import Point
from kbq_assets_tests.crashes.scenes import log, order
from kbq_assets_tests.fixtures.local_stack import stack_with_free_ports
from kbq_assets_tests.integration.world import Producers, World

_RUNS: Final = ("extract", "load")
#: Points that a run passes only if it has something to do.
_WORK: Final = {"extract": "store.swap commits, after", "load": "duckdb MERGE, after"}


@dataclass(frozen=True)
class Size:
    """How much happens. ``batch_records`` are those of a chunk; a window has twice as many."""

    keys: int
    changes: int
    rounds: int
    kills: int
    batch_records: int


class Campaign:
    """One topic, one table, and processes that die."""

    def __init__(
        self, producers: Producers, forks: Forks, folder: Path, size: Size, chance: random.Random
    ) -> None:
        self._forks, self._size, self._chance = forks, size, chance
        self._changes = Changes(producers, size.keys)
        environ = {"KBQ_WINDOW_RECORDS": str(2 * size.batch_records), BATCH_RECORDS: str(size.batch_records)}
        sources = f"{self._changes.topic} {UPSERT}\n"
        self.world = World(folder, producers, sources=sources, environ=environ)
        #: The points of the last run of each kind that had work; deaths by run and kind of point.
        self._points: dict[str, dict[str, int]] = {run: {} for run in _RUNS}
        self._deaths: Counter[tuple[str, str]] = Counter()
        self._missed: Counter[tuple[str, str]] = Counter()
        self._seconds: Counter[str] = Counter()

    def run(self) -> dict[str, Any]:
        """The result. Raises AssertionError if the table does not show the last state."""
        size, replays, number = self._size, 0, -1
        while self._changes.sent < size.changes or self._killed("load") < size.kills:
            number += 1
            if self._changes.sent < size.changes:
                self._timed("send", lambda: self._changes.send(size.changes // size.rounds))
            if number % 3 or self._changes.sent == size.changes:
                replays += 1
                self._changes.read_again(self.world, None if number % 3 == 1 else number // 3 % PARTITIONS)
            for run in _RUNS:
                share = size.kills * (number + 1) / size.rounds
                self._die(run, round(share if run == "load" else share / 4))
                self._finish(run)
            print(
                f"round {number}: {self._changes.sent} sent, {self._deaths.total()} kills,"
                f" {self._missed.total()} points missed, {dict(self._seconds)}",
                file=sys.stderr,
            )
        for run in _RUNS:
            self._finish(run)
        rows = self._changes.check(self.world)
        self.world.load()
        return {
            "rows": rows,
            "changes": self._changes.sent,
            "ranges read again": replays,
            "kills": self._deaths.total(),
            "kills of loads": self._killed("load"),
            "kinds of points": len(self._deaths),
            "seconds": {name: round(value) for name, value in self._seconds.items()},
        }

    def _die(self, run: str, until: int) -> None:
        """Kill runs until the given number has died, or one finds nothing left to do at its point."""
        while self._killed(run) < until and (point := self._next(run)) is not None:
            code = self._timed(
                run, lambda: self._forks.run(order(self.world, run, point, signal.SIGKILL)).code
            )
            if code != -signal.SIGKILL:
                assert code == 0, log(self.world, run)
                self._learn(run)
                self._missed[run, point.kind] += 1
                return
            self._deaths[run, point.kind] += 1

    def _killed(self, run: str) -> int:
        return sum(count for (of, _), count in self._deaths.items() if of == run)

    def _next(self, run: str) -> Point | None:
        """A point of the kind with the fewest deaths: mostly the first, which is another one after each death."""
        points = self._points[run]
        if not points:
            return None
        deaths = {kind: self._deaths[run, kind] + self._missed[run, kind] for kind in sorted(points)}
        kind = min(deaths, key=lambda kind: deaths[kind] + self._chance.random())
        nth = self._chance.randint(1, points[kind]) if self._chance.random() < 0.1 else 1
        return Point(kind, nth)

    def _finish(self, run: str) -> None:
        """A run to its end."""
        code = self._timed(run, lambda: self._forks.run(order(self.world, run)).code)
        assert code == 0, log(self.world, run)
        self._learn(run)

    def _learn(self, run: str) -> None:
        """The points of a run that had something to do."""
        passed: dict[str, int] = json.loads(passed_file(self.world.folder, run).read_text())
        if _WORK[run] in passed:
            self._points[run] = passed

    def _timed(self, name: str, act: Any) -> Any:
        began = time.monotonic()
        result = act()
        self._seconds[name] += time.monotonic() - began  # type: ignore[assignment]
        return result


def main() -> None:
    """Run a campaign on a separate stack."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    for name, default in Size(1_000_000, 5_000_000, 25, 75, 100_000).__dict__.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    options = vars(parser.parse_args())
    folder: Path = options.pop("folder")
    stack = stack_with_free_ports(folder / "stack")
    stack.up()
    try:
        producers = Producers(RealBroker(stack.bootstrap_servers), stack.registry_url)
        with forking.forks() as forks:
            began = time.monotonic()
            campaign = Campaign(producers, forks, folder / "home", Size(**options), random.Random(0))
            result = campaign.run()
            result["seconds in all"] = round(time.monotonic() - began)
            result["load average"] = os.getloadavg()[1]
            print(json.dumps(result, indent=2))
    finally:
        stack.down()


if __name__ == "__main__":
    main()
