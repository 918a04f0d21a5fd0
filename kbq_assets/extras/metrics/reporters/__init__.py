"""Reporters that push: a JSON line, a webhook, or what an installed package offers."""

from __future__ import annotations

from importlib.metadata import entry_points

from kbq_assets.adapters.secrets import resolve
from kbq_assets.core.config.service import ReporterChoice
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.extras.metrics.port import PLUGINS, Reporter
from kbq_assets.extras.metrics.reporters.line import LineReporter
from kbq_assets.extras.metrics.reporters.webhook import WebhookReporter


def open_reporter(choice: ReporterChoice) -> Reporter:
    """The reporter of a choice. Raises ConfigurationError."""
    if choice.name == "log":
        return LineReporter()
    target = resolve("KBQ_REPORTERS", choice.target)
    if choice.name == "webhook":
        return WebhookReporter(target)
    found = list(entry_points(group=PLUGINS, name=choice.name))
    if not found:
        known = sorted({"log", "prometheus", "webhook", *entry_points(group=PLUGINS).names})
        raise ConfigurationError(
            f"KBQ_REPORTERS names {choice.name}, which no installed package offers",
            next_step=f"there are {', '.join(known)}",
        )
    made: Reporter = found[0].load()(target)
    return made
