"""Metrics in addition to `/metrics`: as lines of JSON for a collector of logs, and by POST to an address."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kbq_assets.adapters.clock import SystemClock
from kbq_assets.adapters.http import parse_address, post_json
from kbq_assets.adapters.secrets import resolve
from kbq_assets.core.config.service import WEBHOOK, ReporterChoice
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.extras.metrics.families import Family, document
from kbq_assets.ports.clock import Clock


class Reporter(Protocol):
    """Guarantees: one thread calls it, one call at a time. A report that fails is dropped: the next has all values."""

    def report(self, families: Sequence[Family], time_ms: int) -> None:
        """Send the present values. Whatever it raises is logged and counted."""


def open_reporter(choice: ReporterChoice) -> Reporter:
    """The reporter of a choice. Raises ConfigurationError."""
    return (
        WebhookReporter(resolve("KBQ_REPORTERS", choice.target)) if choice.name == WEBHOOK else LineReporter()
    )


class LineReporter:
    """A line of JSON on standard output for each report."""

    def report(self, families: Sequence[Family], time_ms: int) -> None:
        """Print it."""
        sys.stdout.write(json.dumps({"kbq": "metrics", **document(families, time_ms)}) + "\n")
        sys.stdout.flush()


@dataclass(frozen=True)
class WebhookReporter:
    """A POST for each report. The address may hold a secret: no message shows it."""

    url: str = field(repr=False)
    clock: Clock = field(default_factory=SystemClock, repr=False)

    def __post_init__(self) -> None:
        if parse_address(self.url) is None:
            raise ConfigurationError(
                "the webhook of KBQ_REPORTERS is not an http or https address", next_step="write webhook:URL"
            )

    def report(self, families: Sequence[Family], time_ms: int) -> None:
        """Post it. Raises Unavailable, ConfigurationError."""
        body = json.dumps(document(families, time_ms)).encode()
        post_json(self.clock, "the webhook of KBQ_REPORTERS", self.url, body)
