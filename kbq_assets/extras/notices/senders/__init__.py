"""Notifiers: Slack, e-mail, webhooks, and those that other packages bring (entry points of the group `kbq.notifiers`).

Opening one reads no secret and connects to nothing: what is wrong with one shows when it sends, and silences no other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from kbq_assets.core.config.notices import NotifierSpec, NotifySettings
from kbq_assets.extras.notices.port import Notifier
from kbq_assets.extras.notices.senders.http import Poster
from kbq_assets.extras.notices.senders.mail import MailNotifier
from kbq_assets.extras.notices.senders.plugin import PluginNotifier
from kbq_assets.extras.notices.senders.slack import SlackNotifier
from kbq_assets.extras.notices.senders.webhook import WebhookNotifier
from kbq_assets.ports.clock import Clock

_BUILT_IN: Final[Mapping[str, Callable[[NotifierSpec, NotifySettings, Clock], Notifier]]] = {
    "slack": lambda spec, settings, clock: SlackNotifier(spec, Poster(clock)),
    "email": lambda spec, settings, clock: MailNotifier(spec, settings.smtp),
    "webhook": lambda spec, settings, clock: WebhookNotifier(spec, settings.webhook_secret, Poster(clock)),
}


def open_notifiers(settings: NotifySettings, clock: Clock) -> tuple[Notifier, ...]:
    """The notifiers of `KBQ_NOTIFY`, in its order."""
    return tuple(_open(spec, settings, clock) for spec in settings.notifiers)


def _open(spec: NotifierSpec, settings: NotifySettings, clock: Clock) -> Notifier:
    opener = _BUILT_IN.get(spec.kind)
    return PluginNotifier(spec, tuple(_BUILT_IN)) if opener is None else opener(spec, settings, clock)
