"""Conditions that are wrong or new, and the messages about them.

A condition is reported once, again if there is more of it, and when it ends. News, such as a new table, is reported
once. Each notifier has a ledger, written after sending: a message may arrive twice, but none is lost. Repetition,
grouping and silence are Alertmanager's task (docs/notices.md).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from kbq_assets.core.observation.check_names import ERROR, WARN
from kbq_assets.core.protocol.codec import Stored, stored_as

INFO: Final = "info"
#: Kinds of conditions besides the names of the checks. More may be added.
QUARANTINED, FAILED_RUN = "quarantined_files", "failed_run"
UNREACHABLE, BROKEN_STATE, BROKEN_SETTINGS = "unreachable", "broken_state", "broken_settings"
NEW_TABLE, NEW_COLUMNS, NEW_TOPIC = "new_table", "new_columns", "new_topic"
CONTRADICTION, LAKE_BEHIND = "contradicting_schema", "lake_table_behind"
#: Conditions of the installation: they are no team's.
OF_NO_TOPIC: Final = frozenset({UNREACHABLE, BROKEN_STATE, BROKEN_SETTINGS, NEW_TOPIC})
#: Phases of a condition in a message.
NEW, RESOLVED, TEST = "new", "resolved", "test"
#: Everything, as kinds that could not be observed.
ALL: Final = "*"
#: Items that a message names; it counts the others.
SHOWN_ITEMS: Final = 20
_TEXT: Final = 600


@dataclass(frozen=True)
class Condition:
    """Something wrong with, or new about, one object.

    ``size``: how much of it there is; more is reported again. ``lasts``: its end is reported too. ``mark`` tells
    events of one subject apart.
    """

    kind: str
    subject: str
    text: str = ""
    severity: str = ERROR
    commands: tuple[str, ...] = ()
    link: str = ""
    size: int = 0
    lasts: bool = True
    mark: str = ""
    phase: str = NEW

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.subject}" + (f"@{self.mark}" if self.mark else "")

    @property
    def title(self) -> str:
        """Its severity, or that it has ended, with kind and subject."""
        return f"{RESOLVED if self.phase == RESOLVED else self.severity}: {self.kind}: {self.subject}"

    @property
    def lines(self) -> Iterator[str]:
        """The title with the text; then a line for each command and the link."""
        yield f"{self.title}: {self.text[:_TEXT]}" if self.text else self.title
        yield from (f"  next: {command}" for command in self.commands)
        if self.link:
            yield f"  {self.link}"


@dataclass(frozen=True)
class Message:
    """Changes that a notifier is sent at once."""

    items: tuple[Condition, ...]
    time_ms: int

    @property
    def title(self) -> str:
        """The title of its first item, and the number of the others."""
        more = len(self.items) - 1
        return self.items[0].title + (f", and {more} more" if more else "")

    @property
    def severity(self) -> str:
        found = {item.severity for item in self.items}
        return next((severity for severity in (ERROR, WARN) if severity in found), INFO)

    @property
    def text(self) -> str:
        lines = [line for item in self.items[:SHOWN_ITEMS] for line in item.lines]
        more = len(self.items) - SHOWN_ITEMS
        return "\n".join([*lines, f"and {more} more: kbq status, kbq check"] if more > 0 else lines)


@dataclass(frozen=True)
class Notifier:
    """A receiver of messages. ``name`` is its ledger's, ``shown`` its name for people; neither holds a secret.

    ``send`` returns when the receiver has the message. It raises KbqError, without a secret. With a ``team`` it gets
    conditions of that team's topics and tables alone.
    """

    name: str
    shown: str
    send: Callable[[Message], None]
    team: str = ""

    def concerned(self, found: Iterable[Condition], teams: Mapping[str, Collection[str]]) -> list[Condition]:
        """The conditions that it gets. ``teams``: whose a subject is."""
        return [c for c in found if not self.team or self.team in teams.get(c.subject, ())]


@dataclass(frozen=True)
class Reported(Stored):
    """A condition in a ledger."""

    kind: str
    subject: str
    size: int = 0
    lasts: bool = True


@dataclass(frozen=True)
class Ledger(Stored):
    """`notices/<notifier>.json`: the conditions that a notifier knows, by their keys."""

    reported: Mapping[str, Reported] = field(default_factory=dict, metadata=stored_as("told"))

    def plan(
        self, found: Iterable[Condition], unseen: frozenset[str] = frozenset()
    ) -> tuple[tuple[Condition, ...], Ledger]:
        """The changes to report, and the ledger after them.

        ``unseen`` are kinds and keys that could not be observed: their conditions stay.
        """
        conditions, known = {condition.key: condition for condition in found}, self.reported
        gone = {k: r for k, r in known.items() if k not in conditions and not {ALL, k, r.kind} & unseen}
        items = [c for k, c in conditions.items() if k not in known or c.size > known[k].size]
        items += [Condition(r.kind, r.subject, "", INFO, phase=RESOLVED) for r in gone.values() if r.lasts]
        kept = {k: r for k, r in known.items() if k not in gone}
        seen = {
            k: dataclasses.replace(known.get(k, Reported(c.kind, c.subject)), size=c.size, lasts=c.lasts)
            for k, c in conditions.items()
        }
        return tuple(items), dataclasses.replace(self, reported={**kept, **seen})
