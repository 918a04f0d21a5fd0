"""Metrics as lines of JSON on standard output, for whoever collects logs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from kbq_assets.extras.metrics.families import Family, document


class LineReporter:
    """One line a report."""

    def report(self, families: Sequence[Family], time_ms: int) -> None:
        """Write it."""
        sys.stdout.write(json.dumps({"kbq": "metrics", **document(families, time_ms)}) + "\n")
        sys.stdout.flush()
