"""Where metrics go besides `/metrics`. Installed packages may offer more: entry points of the group `kbq.reporters`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from kbq_assets.extras.metrics.families import Family

#: Each is a callable that takes what follows ``name:`` in `KBQ_REPORTERS` and returns a Reporter.
PLUGINS: Final = "kbq.reporters"


class Reporter(Protocol):
    """Guarantees: called by one thread, never twice at once. A report that fails is dropped: the next has it all."""

    def report(self, families: Sequence[Family], time_ms: int) -> None:
        """Hand over what is known now. May raise anything: it is told in the log, and counted."""
