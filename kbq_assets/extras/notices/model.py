"""Conditions (problems and news), and the messages about them.

A problem is reported once, again if it grows or has a new cause, and when it ends. News, such as a new table, is
reported once. Each notifier has a ledger that is written after sending, so a message may arrive twice, but none is
lost. Repetition, grouping and silencing are Alertmanager's task (docs/notices.md).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from kbq_assets.core.observation.check_names import ERROR, WARN
from kbq_assets.core.protocol.codec import Stored, stored_as

INFO: Final = "info"
#: Kinds of conditions other than names of checks. More may be added.
QUARANTINED, FAILED_RUN = "quarantined_files", "failed_run"
UNREACHABLE, BROKEN_STATE, BROKEN_SETTINGS = "unreachable", "broken_state", "broken_settings"
NEW_TABLE, NEW_COLUMNS, NEW_TOPIC = "new_table", "new_columns", "new_topic"
CONTRADICTION, LAKE_BEHIND = "contradicting_schema", "lake_table_behind"
#: Conditions of the installation. They belong to no team.
OF_NO_TOPIC: Final = frozenset({UNREACHABLE, BROKEN_STATE, BROKEN_SETTINGS, NEW_TOPIC})
#: Phases of a condition in a message.
NEW, RESOLVED, TEST = "new", "resolved", "test"
#: Stands for all kinds, if nothing could be observed.
ALL: Final = "*"
#: Number of items that a message names. It only counts the others.
SHOWN_ITEMS: Final = 20
_TEXT: Final = 600


@dataclass(frozen=True)
class Condition:
    """A problem with one object, or news about it.

    ``size``: its extent; if it grows, the condition is reported again, and also if it gets one of its ``causes``.
    ``lasts``: whether its end is reported too. ``mark`` distinguishes events of one subject.
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
    causes: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.subject}" + (f"@{self.mark}" if self.mark else "")

    @property
    def title(self) -> str:
        """The severity, or `resolved`, with kind and subject."""
        return f"{RESOLVED if self.phase == RESOLVED else self.severity}: {self.kind}: {self.subject}"

    @property
    def lines(self) -> Iterator[str]:
        """The title with the text, then a line for each command and for the link."""
        yield f"{self.title}: {self.text[:_TEXT]}" if self.text else self.title
        yield from (f"  next: {command}" for command in self.commands)
        if self.link:
            yield f"  {self.link}"


@dataclass(frozen=True)
class Message:
    """Changes that are sent to a notifier in one message."""

    items: tuple[Condition, ...]
    time_ms: int

    @property
    def title(self) -> str:
        """The title of the first item, and the number of the others."""
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
    """A receiver of messages. ``name`` is the name of its ledger, and ``shown`` the name to display; neither contains a
    secret.

    ``send`` returns when the receiver has the message. It raises KbqError, without a secret. A notifier with a ``team``
    gets only conditions of that team's topics and tables.
    """

    name: str
    shown: str
    send: Callable[[Message], None]
    team: str = ""

    def concerned(
        self, found: Iterable[Condition], teams: Mapping[str, Collection[str]], known: Collection[str] = ()
    ) -> list[Condition]:
        """The conditions that the notifier gets. ``teams`` are the teams of each subject. A ``known`` condition stays
        the team's until it ends: the topics of a table are unknown while its state cannot be read."""
        return [c for c in found if not self.team or c.key in known or self.team in teams.get(c.subject, ())]


@dataclass(frozen=True)
class Reported(Stored):
    """A condition in a ledger."""

    kind: str
    subject: str
    size: int = 0
    lasts: bool = True
    #: those last seen; None if an earlier version reported the condition
    causes: tuple[str, ...] | None = None

    def is_outgrown_by(self, now: Condition) -> bool:
        """Whether the condition must be reported again."""
        return now.size > self.size or not (self.causes is None or set(now.causes) <= set(self.causes))

    def followed_by(self, now: Condition) -> Reported:
        """The same, as it is now. If no cause can be seen, for example in an unreadable state, the last ones stay."""
        causes = now.causes or self.causes or ()
        return dataclasses.replace(self, size=now.size, lasts=now.lasts, causes=causes)


@dataclass(frozen=True)
class Ledger(Stored):
    """`notices/<notifier>.json`: the conditions that were reported to a notifier, by key."""

    reported: Mapping[str, Reported] = field(default_factory=dict, metadata=stored_as("told"))

    def plan(
        self, found: Iterable[Condition], unseen: frozenset[str] = frozenset()
    ) -> tuple[tuple[Condition, ...], Ledger]:
        """The changes to report, and the ledger after them.

        ``unseen`` are kinds and keys that could not be observed. Their conditions stay in the ledger.
        """
        conditions, known = {condition.key: condition for condition in found}, self.reported
        gone = {k: r for k, r in known.items() if k not in conditions and not {ALL, k, r.kind} & unseen}
        items = [c for k, c in conditions.items() if k not in known or known[k].is_outgrown_by(c)]
        items += [Condition(r.kind, r.subject, "", INFO, phase=RESOLVED) for r in gone.values() if r.lasts]
        kept = {k: r for k, r in known.items() if k not in gone}
        seen = {k: known.get(k, Reported(c.kind, c.subject)).followed_by(c) for k, c in conditions.items()}
        return tuple(items), dataclasses.replace(self, reported={**kept, **seen})
