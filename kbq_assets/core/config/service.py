"""What `kbq serve` is told: how often it looks, and who gets its metrics."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from kbq_assets.core.errors import ConfigurationError

PROMETHEUS: Final = "prometheus"
#: What lag is told per.
LAG_LABELS: Final = ("topic", "partition")
_NAME: Final = re.compile(r"[a-z][a-z0-9_-]*")


@dataclass(frozen=True)
class ReporterChoice:
    """One word of `KBQ_REPORTERS`, ``name`` or ``name:target``. A target may hold a secret: it is in no repr or log."""

    name: str
    target: str = field(default="", repr=False)


@dataclass(frozen=True)
class ServiceSettings:
    """``look_seconds`` lie between two looks at a dependency, ``report_seconds`` between two reports."""

    reporters: tuple[ReporterChoice, ...] = (ReporterChoice(PROMETHEUS),)
    look_seconds: int = 15
    report_seconds: int = 60
    lag_label: str = LAG_LABELS[0]

    @property
    def has_prometheus(self) -> bool:
        """Whether `/metrics` is served."""
        return any(choice.name == PROMETHEUS for choice in self.reporters)


def parse_reporters(text: str) -> tuple[ReporterChoice, ...]:
    """Parse `KBQ_REPORTERS`. Raises ConfigurationError, which never echoes a target."""
    choices = []
    for number, word in enumerate(text.split(","), 1):
        name, _, target = word.strip().partition(":")
        if not _NAME.fullmatch(name):
            raise ConfigurationError(
                f"entry {number} of KBQ_REPORTERS names no reporter",
                next_step="write prometheus, log, webhook:URL or a plug-in's name, with commas between them",
            )
        if name == "webhook" and not target:
            raise ConfigurationError(
                f"entry {number} of KBQ_REPORTERS has no address",
                next_step="write webhook:URL, webhook:env:NAME or webhook:file:PATH",
            )
        choices.append(ReporterChoice(name, target))
    return tuple(choices)
