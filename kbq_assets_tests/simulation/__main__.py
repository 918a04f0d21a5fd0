"""Run many schedules, or one with its trace."""

from __future__ import annotations

import argparse
import sys
import time

from kbq_assets_tests.simulation.schedule import KINDS, ScheduleFailed, commit, run_schedule, simulated_hours
from kbq_assets_tests.simulation.world import in_one_thread


def main() -> int:
    """Run schedules; print the first seed that fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="run this one alone")
    parser.add_argument("--kind", choices=KINDS, help="schedules of this kind, in place of the usual ones")
    parser.add_argument("--trace", action="store_true")
    options = parser.parse_args()
    seeds = (
        range(options.first, options.first + options.schedules) if options.seed is None else [options.seed]
    )
    started, rows, hours = time.monotonic(), 0, 0.0
    for seed in seeds:
        try:
            world = run_schedule(seed, *KINDS.get(options.kind, (None, None)))
        except ScheduleFailed as failure:
            print(failure)
            return 1
        rows += len(world.warehouse.log)
        hours += simulated_hours([world])
        if options.trace:
            print("\n".join(world.scheduler.trace))
    seconds = time.monotonic() - started
    print(f"{len(seeds)} schedules, {hours:.0f} simulated hours, {rows} rows: every promise kept")
    print(f"commit {commit()}, {seconds:.0f} s")
    return 0


if __name__ == "__main__":
    with in_one_thread():
        sys.exit(main())
