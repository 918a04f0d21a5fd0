"""Slack, by an incoming webhook: https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kbq_assets.adapters.secrets import resolve
from kbq_assets.extras.notices.model import Notice
from kbq_assets.extras.notices.senders.http import Poster
from kbq_assets.extras.notices.senders.named import Named
from kbq_assets.extras.notices.senders.text import lines

#: Slack cuts longer texts, or refuses them.
MAX_CHARACTERS: Final = 3_800
_SIGNS: Final[Mapping[str, str]] = {"error": ":red_circle:", "warn": ":large_yellow_circle:"}


@dataclass(frozen=True)
class SlackNotifier(Named):
    """A channel."""

    poster: Poster

    def send(self, notice: Notice) -> None:
        """Post a notice. Raises Unavailable, ConfigurationError."""
        url = resolve("KBQ_NOTIFY", self.spec.target)
        self.poster.post(self.shown, url, json.dumps({"text": slack_text(notice)}).encode(), {})


def slack_text(notice: Notice) -> str:
    """A notice in Slack's markup, in which topics and errors cannot write any: no mention, no link."""
    sign = _SIGNS.get(notice.severity, ":white_check_mark:")
    text = "\n".join([f"{sign} *{_escaped(notice.title)}*", *lines(notice, _code, _escaped)])
    return (
        text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}…\n{_code('kbq status')} shows all"
    )


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _code(command: str) -> str:
    return f"`{command}`"
