"""Sizes of the large tests: a moderate one for `make test`, the full one for `make test-all` (KBQ_TEST_FULL=1).

A size that has a variable can be set by it alone; then its tier does not matter.
"""

from __future__ import annotations

import os
from typing import Final

#: Whether the full sizes are wanted. `make test-all` also runs the tests that are marked `slow`.
FULL: Final = os.environ.get("KBQ_TEST_FULL") == "1"


def _size(moderate: int, full: int, variable: str = "") -> int:
    return int(os.environ.get(variable) or (full if FULL else moderate))


#: Simulated schedules. Every mutant has a seed below 100 that notices it: 500 leave a margin of five.
SCHEDULES: Final = _size(500, 3_000, "KBQ_TEST_SCHEDULES")
#: Schedules with a variation: restarts, schema variants, replays, checks. Each counts how often its subject occurred.
VARIED_SCHEDULES: Final = _size(40, 100)
#: Simulated starts of two loaders at once. Without rule L2 a row is doubled within the first ten.
LOADER_STARTS: Final = _size(200, 1_000)
#: Damaged records for the validator. 500 records share a schema: 100,000 still meet 200 schemas.
FUZZ_RECORDS: Final = _size(100_000, 1_000_000, "KBQ_FUZZ")
#: Damaged records for Java's Avro, which takes most of its time to start.
FUZZ_JAVA_RECORDS: Final = _size(5_000, 30_000, "KBQ_FUZZ_JAVA")
