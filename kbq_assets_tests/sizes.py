"""Sizes of the large tests: a moderate one for `make test`, the full one for `make test-all` (KBQ_TEST_FULL=1). Some
have a size between the two for CI (KBQ_TEST_TIER=thorough).

A size that has a variable can be set by it alone; then its tier does not matter.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, TypeVar

T = TypeVar("T")

#: Whether the full sizes are wanted. `make test-all` also runs the tests that are marked `slow`.
FULL: Final = os.environ.get("KBQ_TEST_FULL") == "1"
#: Whether CI's sizes are wanted. `make test TIER=thorough` also runs the tests that are marked `thorough`.
THOROUGH: Final = os.environ.get("KBQ_TEST_TIER") == "thorough"


def _size(moderate: int, full: int, variable: str = "", *, thorough: int = 0) -> int:
    if THOROUGH:
        moderate = thorough or moderate
    return int(os.environ.get(variable) or (full if FULL else moderate))


def examples(full: int) -> int:
    """Examples of a property that costs milliseconds each: a quarter of them in `make test`."""
    return full if FULL or THOROUGH else full // 4


def thinned(cases: Sequence[T], nth: int = 2) -> Sequence[T]:
    """All cases of a test in CI, every ``nth`` of them in `make test`: for cases that are alike and take long."""
    return cases if FULL or THOROUGH else cases[::nth]


#: Simulated schedules. 500 notice every mutant by themselves; the rarest shows in the 434th.
SCHEDULES: Final = _size(500, 10_000, "KBQ_TEST_SCHEDULES")
#: What each test of schedules reports about itself.
SCHEDULES_PROPERTY: Final = "simulated schedules"
HOURS_PROPERTY: Final = "simulated hours"
#: Schedules with a variation: restarts, schema variants, replays, checks. Each counts how often its subject occurred.
VARIED_SCHEDULES: Final = _size(8, 100, thorough=24)
#: Schedules with mishaps that an operator repairs: the rarest, rows of another staging area, shows in the 26th.
REPAIRED_SCHEDULES: Final = _size(26, 100)
#: Schedules in which statements change the tables.
STATEMENT_SCHEDULES: Final = _size(8, 1_000, thorough=24)
#: Schedules of error rows that come back in a lake, and of a publication that is late for an erasure.
RETURNED_SCHEDULES: Final = _size(4, 8, thorough=8)
LATE_SCHEDULES: Final = _size(8, 20, thorough=20)
#: Simulated starts of two loaders at once. Without rule L2 a row is doubled within the first ten.
LOADER_STARTS: Final = _size(20, 1_000, thorough=100)
#: Runs of the simulated platform that Hypothesis steers. It finds most of its ways in the first hundred.
MACHINE_RUNS: Final = _size(100, 300)
#: A process dies, or sleeps, at every nth kind of point in its run, beginning at another one for each kind of run and
#: home: runs in homes of several ages pass much the same kinds of points. A point costs two CPU seconds.
EVERY_NTH_POINT: Final = _size(40, 1, thorough=24)
#: The same for loads of each kind of statement, in one process. The kinds begin at points of their own.
EVERY_NTH_STATEMENT_POINT: Final = _size(200, 15, "KBQ_TEST_STATEMENT_POINTS")
#: The same for runs of file batches, only in `make test-all`. There are over 200 points; each costs two CPU seconds.
EVERY_NTH_FILE_POINT: Final = _size(40, 3)
#: The same for a backup, a replay and its promotion. There are over 900 points; each costs three CPU seconds.
EVERY_NTH_REPLAY_POINT: Final = _size(60, 30, "KBQ_TEST_REPLAY_POINTS")
#: The same for a replay of error rows in a lake. There are over 200 points; each costs two CPU seconds.
EVERY_NTH_ERROR_POINT: Final = _size(10, 10, "KBQ_TEST_ERROR_POINTS")
#: The same for replays, promotions and replays of error rows in two warehouses. There are over 2,300 points; each costs
#: eight CPU seconds.
EVERY_NTH_WAREHOUSES_POINT: Final = _size(200, 21, "KBQ_TEST_WAREHOUSES_POINTS")
#: SIGKILLs of an erasure over DuckDB, a lake and a backup.
ERASE_KILLS: Final = _size(30, 30, "KBQ_TEST_ERASE_KILLS")
#: Schedules in which this release and the one before take turns. Each takes ten runs of a tenth of a CPU second.
RELEASE_SCHEDULES: Final = _size(300, 300, "KBQ_TEST_RELEASE_SCHEDULES")
#: Worlds in which processes die twelve times, and starts of all processes at once.
DEATHS: Final = _size(1, 4)
STARTS_AT_ONCE: Final = _size(1, 3)
#: Records of each demo topic that two runs must make alike.
DEMO_RECORDS: Final = _size(5_000, 20_000, thorough=20_000)
#: Histories of an upsert table that is replayed, for each rule. The first four meet each outcome.
KEYED_HISTORIES: Final = _size(4, 8, thorough=8)
#: Small files of a lake that become few.
SMALL_FILES: Final = _size(300, 5_000)
#: Moments at which the demo is killed.
DEMO_KILLS: Final = _size(2, 4)
#: A loader over the local Google servers dies at every nth point of each outcome of a job, beginning at another one for
#: each outcome. The simulator has thousands of such deaths; these show them over the real clients.
GOOGLE_NTH_DEATH: Final = _size(48, 1, thorough=6)
#: Seeds of starts of two loaders over the local Google servers; the simulator has hundreds of starts.
GOOGLE_SEEDS: Final = _size(1, 10)
#: Starts of two loaders in each of these seeds.
GOOGLE_STARTS: Final = _size(8, 20, thorough=20)
#: Random JSON documents that the kernel and Python objects encode.
JSON_DOCUMENTS: Final = _size(20_000, 1_000_000, "KBQ_TEST_JSON_DOCUMENTS")
#: Random Protobuf messages that the kernel and Google's library encode.
PROTOBUF_MESSAGES: Final = _size(10_000, 1_000_000, "KBQ_TEST_PROTOBUF_MESSAGES")
#: Damaged records for the validator. 500 records share a schema: 100,000 still meet 200 schemas.
FUZZ_RECORDS: Final = _size(100_000, 1_000_000, "KBQ_FUZZ")
#: Damaged records for Java's Avro, which takes most of its time to start.
FUZZ_JAVA_RECORDS: Final = _size(5_000, 30_000, "KBQ_FUZZ_JAVA")
#: Cases of the campaign against exceptions that leave their unit; `make fuzz` runs a million.
FUZZ_CASES: Final = _size(5_000, 60_000, "KBQ_FUZZ_CASES", thorough=20_000)
