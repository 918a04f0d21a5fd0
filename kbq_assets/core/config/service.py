"""Settings of `kbq serve`: how often it polls, and who gets its metrics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from kbq_assets.core.config.variables import choice, variable, whole
from kbq_assets.core.errors import ConfigurationError

PROMETHEUS, WEBHOOK = "prometheus", "webhook"
_REPORTERS: Final = (PROMETHEUS, "log", WEBHOOK)
#: What a lag metric is labeled by.
LAG_LABELS: Final = ("topic", "partition")


@dataclass(frozen=True)
class ReporterChoice:
    """One word of `KBQ_REPORTERS`, ``name`` or ``name:target``. A target may hold a secret: no repr or log shows it."""

    name: str
    target: str = field(default="", repr=False)


def parse_reporters(text: str) -> tuple[ReporterChoice, ...]:
    """Parse `KBQ_REPORTERS`. Raises ConfigurationError, which never echoes a target."""
    choices = []
    for number, word in enumerate(text.split(","), 1):
        name, _, target = word.strip().partition(":")
        if name not in _REPORTERS:
            raise ConfigurationError(
                f"entry {number} of KBQ_REPORTERS does not name a reporter",
                next_step="write prometheus, log or webhook:URL, with commas between them",
            )
        if name == WEBHOOK and not target:
            raise ConfigurationError(
                f"entry {number} of KBQ_REPORTERS has no address",
                next_step="write webhook:URL, webhook:env:NAME or webhook:file:PATH",
            )
        choices.append(ReporterChoice(name, target))
    return tuple(choices)


@dataclass(frozen=True)
class ServiceSettings:
    """``look_seconds`` pass between two polls of a dependency, ``report_seconds`` between two reports."""

    reporters: tuple[ReporterChoice, ...] = variable(
        "KBQ_REPORTERS",
        "who gets metrics: prometheus, log, webhook:URL, with commas",
        (ReporterChoice(PROMETHEUS),),
        lambda _, value: parse_reporters(value),
        shown_default=PROMETHEUS,
        show=lambda choices: ",".join(choice.name for choice in choices),
    )
    look_seconds: int = variable(
        "KBQ_SERVE_SECONDS",
        "seconds between the service's polls of state and broker; at least 5",
        15,
        whole(5),
    )
    report_seconds: int = variable(
        "KBQ_REPORT_SECONDS",
        "seconds between reports of log and webhook; at least 5",
        60,
        whole(5),
    )
    lag_label: str = variable(
        "KBQ_LAG_LABEL",
        "label granularity of lag metrics: topic or partition",
        LAG_LABELS[0],
        choice(*LAG_LABELS),
    )

    @property
    def has_prometheus(self) -> bool:
        """Whether `/metrics` is served."""
        return any(choice.name == PROMETHEUS for choice in self.reporters)
