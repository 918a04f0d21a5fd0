"""A notice as text, and as a document for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from kbq_assets.extras.notices.model import RESOLVED, Item, Notice

#: The form of the document; fields may be added to it.
VERSION = 1


def lines(
    notice: Notice, command: Callable[[str], str] = str, text: Callable[[str], str] = str
) -> Iterator[str]:
    """A line per item and per command. ``text`` and ``command`` dress up what is from outside."""
    for item in notice.items:
        since = f" (since {moment(item.since_ms)})" if item.since_ms < notice.time_ms else ""
        yield f"• {text(item.subject)}: {text(item.text)}{since}"
        if notice.phase != RESOLVED:
            yield from (f"    next: {command(text(c))}" for c in item.commands)
        if item.link:
            yield f"    {text(item.link)}"
    if notice.count > len(notice.items):
        yield f"… and {notice.count - len(notice.items)} more: {command('kbq status')}, {command('kbq check')}"


def document(notice: Notice) -> dict[str, Any]:
    """What a webhook gets."""
    return {
        "version": VERSION,
        "kind": notice.kind,
        "phase": notice.phase,
        "severity": notice.severity,
        "title": notice.title,
        "count": notice.count,
        "time": moment(notice.time_ms),
        "items": [_item(item) for item in notice.items],
    }


def _item(item: Item) -> dict[str, Any]:
    return {
        "subject": item.subject,
        "text": item.text,
        "since": moment(item.since_ms),
        "commands": list(item.commands),
        "link": item.link or None,
    }


def moment(time_ms: int) -> str:
    """A time in ISO 8601, in UTC, to the second."""
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
