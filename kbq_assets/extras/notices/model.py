"""What people are told: conditions that are found in the state, the notices they make, and what was told already.

A condition is something wrong with one object; it is told when it is new, again after a time while it lasts, and
when it has ended. News, such as a new table, is a condition that is told once. Conditions of one kind that are told at
once are one notice: an outage is a message, not four hundred. Each notifier has a ledger of its own, written after
sending: a notice may come twice, never not at all.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kbq_assets.core.observation import check_names as names

FAILED_RUNS: Final = "notices/_runs.json"
NEW, STILL, RESOLVED, TEST = "new", "still", "resolved", "test"
#: Kinds beside the names of the checks. Others may come: a kind is a word, its titles are for reading.
QUARANTINED: Final = "quarantined_files"
FAILED_RUN: Final = "failed_run"
UNREACHABLE: Final = "unreachable"
BROKEN_STATE: Final = "broken_state"
FAILING_NOTIFIER: Final = "failing_notifier"
#: Kinds of news: nothing is wrong, and they are told once.
NEW_TABLE: Final = "new_table"
NEW_COLUMNS: Final = "new_columns"
NEW_TOPIC: Final = "new_topic"
CONTRADICTION: Final = "contradicting_schema"
INFO: Final = "info"

#: Items that a notice names; the others are counted.
SHOWN_ITEMS: Final = 20
_TEXT: Final = 600
#: What has grown is told again, but not at every look.
GROWN_PAUSE_MS: Final = 10 * 60_000
#: A time this far in the future was written by a clock that was wrong.
_SKEW_MS: Final = 60_000

_SINGLE_RUNS: Final = 50
_SINGLE_RUNS_MS: Final = 7 * 24 * 3600 * 1000

_TITLES: Final[Mapping[str, tuple[str, str]]] = {
    names.CONTIGUOUS: (
        "Offsets of {} do not follow each other",
        "Offsets of {} topics do not follow each other",
    ),
    names.PARTITIONS_RUN: ("Extraction of {} is stopped", "Extraction of {} topics is stopped"),
    names.ERRORS_FEW: ("Many records of {} are bad", "Many records of {} topics are bad"),
    names.LAG_SHORT: ("{} is behind", "{} topics are behind"),
    names.COMMITS_SMALL: ("The commit of {} is large", "The commits of {} topics are large"),
    names.ROWS_MATCH: ("Rows of {} do not match", "Rows of {} tables do not match"),
    names.TABLES_LOAD: ("{} is not loaded", "{} tables are not loaded"),
    names.COUNTS_AGREE: ("Counts of {} do not agree", "Counts of {} warehouses do not agree"),
    names.DATA_FRESH: ("Data of {} is old", "Data of {} topics is old"),
    QUARANTINED: ("Files of {} are in quarantine", "Files of {} tables are in quarantine"),
    FAILED_RUN: ("{} failed", "{} jobs failed"),
    UNREACHABLE: ("The {} does not answer", "{} services do not answer"),
    BROKEN_STATE: ("The state in {} is broken", "The state in {} places is broken"),
    FAILING_NOTIFIER: ("Notices do not reach {}", "Notices do not reach {} notifiers"),
    NEW_TABLE: ("{} is a new table", "{} new tables"),
    NEW_COLUMNS: ("Columns of {} have changed", "Columns of tables have changed, {} times"),
    CONTRADICTION: ("A schema contradicts {}", "Schemas contradict tables, {} times"),
    NEW_TOPIC: ("{} is not in the catalogue", "{} topics are not in the catalogue"),
}


@dataclass(frozen=True)
class Condition:
    """Something wrong with one object.

    ``size`` is how much of it there is: more of it is told anew. ``lasts``: it is repeated, and its end is told; what
    does not last is told once. ``grace_ms``: it is told only after it has lasted that long. ``mark`` tells events of
    one subject apart.
    """

    kind: str
    subject: str
    text: str
    severity: str = names.ERROR
    commands: tuple[str, ...] = ()
    link: str = ""
    size: int = 0
    lasts: bool = True
    grace_ms: int = 0
    mark: str = ""

    @property
    def key(self) -> str:
        """What it is known by from one look to the next."""
        return f"{self.kind}/{self.subject}" + (f"@{self.mark}" if self.mark else "")


@dataclass(frozen=True)
class Told:
    """A condition in a ledger. ``told_ms`` is 0 while its grace lasts. Times are the store's."""

    kind: str
    subject: str
    text: str
    severity: str
    since_ms: int
    told_ms: int = 0
    size: int = 0
    lasts: bool = True


@dataclass(frozen=True)
class Ledger:
    """`notices/<notifier>.json`: what a notifier was told, and why it cannot be told more, if so."""

    told: Mapping[str, Told] = field(default_factory=dict)
    failure: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class FailedRun:
    """A run of the orchestrator that failed: of a job (it ``lasts`` until a later one succeeds), or one that somebody
    asked for. Or, of another ``kind``, one that found something wrong."""

    subject: str
    run_id: str
    text: str
    at_ms: int
    link: str = ""
    lasts: bool = True
    kind: str = FAILED_RUN
    commands: tuple[str, ...] = ("kbq status", "kbq check")

    @property
    def condition(self) -> Condition:
        """What is told of it."""
        return Condition(
            self.kind, self.subject, self.text, commands=self.commands, link=self.link, lasts=self.lasts
        )


@dataclass(frozen=True)
class FailedRuns:
    """`notices/_runs.json`: the last failed run of each job, and single ones for some days."""

    runs: Mapping[str, FailedRun] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    def with_run(self, run: FailedRun) -> FailedRuns:
        """Note a failed run; single ones that are old, or too many, are forgotten."""
        oldest = run.at_ms - _SINGLE_RUNS_MS
        kept = {k: r for k, r in self.runs.items() if r.lasts or r.at_ms > oldest}
        single = sorted((k for k, r in kept.items() if not r.lasts), key=lambda k: kept[k].at_ms)
        for key in single[: max(0, len(single) + 1 - _SINGLE_RUNS)]:
            del kept[key]
        return dataclasses.replace(self, runs={**kept, run.subject: run})

    def without(self, subjects: Iterable[str]) -> FailedRuns:
        """Forget jobs that succeeded."""
        gone = frozenset(subjects)
        return dataclasses.replace(self, runs={k: r for k, r in self.runs.items() if k not in gone})


@dataclass(frozen=True)
class Item:
    """One condition in a notice."""

    subject: str
    text: str
    since_ms: int
    commands: tuple[str, ...] = ()
    link: str = ""


@dataclass(frozen=True)
class Notice:
    """One message: what happened, to which objects, what to do. ``count`` are its items, of which some are shown."""

    kind: str
    phase: str
    severity: str
    title: str
    items: tuple[Item, ...]
    count: int
    time_ms: int


@dataclass(frozen=True)
class Message:
    """A notice, and what its ledger says once it is sent."""

    notice: Notice
    told: Mapping[str, Told] = field(default_factory=dict)
    forgotten: frozenset[str] = frozenset()

    def recorded(self, ledger: Ledger) -> Ledger:
        """The ledger after the notice was accepted."""
        kept = {key: told for key, told in ledger.told.items() if key not in self.forgotten}
        return dataclasses.replace(ledger, told={**kept, **self.told}, failure="")


@dataclass(frozen=True)
class NoticePlan:
    """What to send, one after the other, and the ledger before anything is sent."""

    ledger: Ledger
    messages: tuple[Message, ...]


def plan_notices(
    ledger: Ledger,
    found: Iterable[Condition],
    now_ms: int,
    repeat_ms: int,
    unseen: frozenset[str] = frozenset(),
) -> NoticePlan:
    """What is to be told. ``unseen`` are kinds and keys that nothing could be seen of: they have not ended."""
    conditions = {condition.key: condition for condition in found}
    gone = {k: t for k, t in ledger.told.items() if k not in conditions and not {k, t.kind} & unseen}
    seen = {k: _seen(c, ledger.told.get(k), now_ms) for k, c in conditions.items()}
    silent = {k for k, t in gone.items() if not (t.lasts and t.told_ms)}
    noted = {k: t for k, t in ledger.told.items() if k not in silent} | seen
    phases: dict[tuple[str, str], list[tuple[Condition, Told]]] = defaultdict(list)
    for key, condition in conditions.items():
        if phase := _phase(condition, seen[key], now_ms, repeat_ms):
            phases[condition.kind, phase].append((condition, seen[key]))
    messages = [_message(kind, phase, members, now_ms) for (kind, phase), members in phases.items()]
    messages += _endings([t for k, t in gone.items() if k not in silent], now_ms)
    return NoticePlan(dataclasses.replace(ledger, told=noted), tuple(messages))


def _seen(condition: Condition, before: Told | None, now_ms: int) -> Told:
    if before is not None:
        return dataclasses.replace(before, size=min(before.size, condition.size))
    c = condition
    return Told(c.kind, c.subject, c.text[:_TEXT], c.severity, now_ms, 0, c.size, c.lasts)


def _phase(condition: Condition, told: Told, now_ms: int, repeat_ms: int) -> str:
    """Whether a condition is to be told, and as what; "" for not now."""
    if not told.told_ms:
        waited = now_ms - told.since_ms
        return NEW if waited >= condition.grace_ms or waited < -_SKEW_MS else ""
    age = now_ms - told.told_ms
    if condition.size > told.size and (age >= GROWN_PAUSE_MS or age < -_SKEW_MS):
        return NEW
    is_due = condition.lasts and (age >= repeat_ms or age < -_SKEW_MS)
    return STILL if is_due else ""


def _message(kind: str, phase: str, members: list[tuple[Condition, Told]], now_ms: int) -> Message:
    items = [Item(c.subject, c.text[:_TEXT], t.since_ms, c.commands, c.link) for c, t in members]
    severities = {c.severity for c, _ in members}
    severity = next(s for s in (names.ERROR, names.WARN, INFO) if s in severities)
    told = {
        c.key: dataclasses.replace(t, text=c.text[:_TEXT], told_ms=now_ms, size=c.size) for c, t in members
    }
    return Message(_notice(kind, phase, severity, items, now_ms), told)


def _endings(ended: list[Told], now_ms: int) -> Iterator[Message]:
    by_kind: dict[str, list[Told]] = defaultdict(list)
    for told in ended:
        by_kind[told.kind].append(told)
    for kind, members in by_kind.items():
        items = [Item(t.subject, t.text, t.since_ms) for t in members]
        forgotten = frozenset(f"{kind}/{t.subject}" for t in members)
        yield Message(_notice(kind, RESOLVED, INFO, items, now_ms), forgotten=forgotten)


def _notice(kind: str, phase: str, severity: str, items: list[Item], now_ms: int) -> Notice:
    one, many = _TITLES.get(kind, ("{}: " + kind.replace("_", " "), "{} times " + kind.replace("_", " ")))
    title = one.format(items[0].subject) if len(items) == 1 else many.format(len(items))
    lead = {STILL: "Still: ", RESOLVED: "Resolved: "}.get(phase, "")
    return Notice(kind, phase, severity, lead + title, tuple(items[:SHOWN_ITEMS]), len(items), now_ms)


def trial_notice(now_ms: int) -> Notice:
    """What `kbq notify --test` sends."""
    item = Item("kbq", "This is a test: notices reach you here.", now_ms, ("kbq status",))
    return Notice(TEST, TEST, INFO, "A test of KBQ's notices", (item,), 1, now_ms)
