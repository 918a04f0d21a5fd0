"""The bounds of a case."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

CPU_SECONDS: Final = 2.0
MEMORY_BYTES: Final = 200 * 1024 * 1024


@contextmanager
def bounded(case: str, most_seconds: float = CPU_SECONDS, most_bytes: int = MEMORY_BYTES) -> Iterator[None]:
    """Fail if a case takes more than the bounds. ``case`` says how to repeat it."""
    cpu, memory = time.process_time(), _peak_bytes()
    yield
    seconds, grown = time.process_time() - cpu, _peak_bytes() - memory
    assert seconds <= most_seconds, f"{case} took {seconds:.1f} CPU seconds"
    assert grown <= most_bytes, f"{case} took {grown / 2**20:.0f} MB"


def _peak_bytes() -> int:
    """The largest memory that this process ever had: it only grows."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
