"""Notices: what is wrong is found, and each notifier is told what it was not told yet.

look    the failed checks, files in quarantine, failed runs, a broker that does not answer; and what is new
plan    pure, per notifier: core.notices
send    notifiers side by side; one that fails is noted, told by the others, and tried again at the next look
record  after sending, by swap: a crash in between tells twice, never not at all
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import reduce
from typing import Final

from kbq_assets.core.errors import KbqError, StateError
from kbq_assets.core.observation.check_names import (
    CHECKS,
    COUNTS_AGREE,
    DATA_FRESH,
    LAG_SHORT,
    PARTITIONS_RUN,
)
from kbq_assets.core.observation.checks import CheckResult
from kbq_assets.core.protocol.names import NOTICES
from kbq_assets.extras.notices import model as notices
from kbq_assets.extras.notices.model import Condition, FailedRun, FailedRuns, Ledger, Message
from kbq_assets.extras.notices.news import (
    SCHEMA_NEWS,
    TABLE_NEWS,
    TOPIC_NEWS,
    Contradictions,
    FindUncatalogued,
    nobody,
    schema_news,
    table_news,
    topic_news,
)
from kbq_assets.extras.notices.port import Notifier
from kbq_assets.pipelines.observation.checks import CheckReport
from kbq_assets.pipelines.observation.status import TableStatus
from kbq_assets.pipelines.protocol import state
from kbq_assets.ports.object_store import ObjectStore

#: A broker that is back within this time is told by nobody.
GRACE_MS: Final = 5 * 60_000
#: When a look no longer waits for its notifiers: Dagster ends a tick after 60 seconds.
SEND_SECONDS: Final = 45.0

#: Kinds that a state which cannot be read hides.
_SEEN_IN_STATE: Final = (
    frozenset({*CHECKS, notices.QUARANTINED, notices.UNREACHABLE} - {COUNTS_AGREE})
    | TABLE_NEWS
    | TOPIC_NEWS
    | SCHEMA_NEWS
)
_COUNTED: Final = "the warehouse"
_LOGGER: Final = logging.getLogger("kbq.notices")


@dataclass(frozen=True)
class NoticePorts:
    """The world of a look. ``uncatalogued``: which of the broker's other topics are news; ``contradictions``: what
    schemas led to that contradict their tables."""

    store: ObjectStore
    notifiers: Sequence[Notifier]
    checks: Callable[[], CheckReport]
    tables: Callable[[], tuple[TableStatus, ...]]
    repeat_ms: int
    uncatalogued: FindUncatalogued = nobody
    contradictions: Callable[[], Contradictions] = Contradictions


@dataclass(frozen=True)
class Sight:
    """What is wrong, or new. ``unseen``: kinds and keys that nothing could be seen of, so that they have not ended."""

    conditions: tuple[Condition, ...]
    unseen: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Delivery:
    """What a notifier took in one look, and why it took no more, if so."""

    notifier: str
    sent: tuple[str, ...] = ()
    failure: str = ""


# Looking --------------------------------------------------------------------------------------------------------------


def look(ports: NoticePorts, now_ms: int) -> Sight:
    """Everything that is wrong now, and what is new. Raises Unavailable where the store does not answer."""
    runs = tuple(run.condition for run in failed_runs(ports.store).runs.values())
    try:
        report, tables, contradictions = ports.checks(), ports.tables(), ports.contradictions()
    except StateError as error:
        broken = Condition(
            notices.BROKEN_STATE, "the staging area", error.message, commands=(error.next_step,)
        )
        return Sight((broken, *runs), _SEEN_IN_STATE)
    follows = _consequences(report)
    found = [c for c in map(_of_check, report.failures) if c.key not in follows]
    found += [*filter(None, map(_quarantined, tables)), *runs]
    found += [*table_news(tables, now_ms), *topic_news(report.others, ports.uncatalogued)]
    found += schema_news(contradictions)
    if report.unknown:
        found.append(_unreachable(report))
    hidden = _hidden_news(report, tables) | (frozenset() if contradictions.complete else SCHEMA_NEWS)
    return Sight(tuple(found), follows | frozenset(report.unknown) | hidden)


def _hidden_news(report: CheckReport, tables: Iterable[TableStatus]) -> frozenset[str]:
    """Kinds of news that some of could not be seen: what was told of them stays told."""
    no_topics = TOPIC_NEWS if report.unknown else frozenset[str]()
    return no_topics | (TABLE_NEWS if any(table.state == "failed" for table in tables) else frozenset())


def _consequences(report: CheckReport) -> frozenset[str]:
    """Keys of what follows from a stop that is told: a topic that is stopped is behind, and its data is old."""
    stopped = (result.subject for result in report.failures if result.check == PARTITIONS_RUN)
    return frozenset(f"{kind}/{topic}" for topic in stopped for kind in (LAG_SHORT, DATA_FRESH))


def _of_check(result: CheckResult) -> Condition:
    # How many partitions are stopped is a size; how long a lag is would be told at every look.
    size = int(result.numbers.get("partitions", 0))
    blocked = "; its files are not loaded until this passes" if result.blocks else ""
    return Condition(
        result.check, result.subject, result.message + blocked, result.severity, tuple(filter(None, result.commands)),
        size=size,
    )  # fmt: skip


def _quarantined(table: TableStatus) -> Condition | None:
    if not table.quarantined_files:
        return None
    text = (
        f"{table.quarantined_files} files that no load job accepts were set aside; the others are loaded. Hours of"
        " their rows are not complete until you go on without them: the second command"
    )
    commands = ("kbq errors list", f"kbq resume --table {table.table}")
    return Condition(
        notices.QUARANTINED, str(table.table), text, "warn", commands,
        size=table.quarantined_files, lasts=False,
    )  # fmt: skip


def _unreachable(report: CheckReport) -> Condition:
    why = next(iter(report.unknown.values()))
    return Condition(notices.UNREACHABLE, "broker", why, commands=("kbq doctor",), grace_ms=GRACE_MS)


def failed_runs(store: ObjectStore) -> FailedRuns:
    """The failed runs that are kept."""
    found = state.find(store, FailedRuns, notices.FAILED_RUNS)
    return FailedRuns() if found is None else found.value


def change_failed_runs(store: ObjectStore, function: Callable[[FailedRuns], FailedRuns]) -> None:
    """Note failed runs, or that their jobs succeeded."""
    if state.find(store, FailedRuns, notices.FAILED_RUNS) is None:
        state.create(store, notices.FAILED_RUNS, FailedRuns())
    state.change(store, FailedRuns, notices.FAILED_RUNS, function)


def note_failed_run(store: ObjectStore, *runs: FailedRun) -> None:
    """Note failed runs."""
    if runs:
        change_failed_runs(store, lambda kept: reduce(FailedRuns.with_run, runs, kept))


def note_counts(store: ObjectStore, text: str, run_id: str, *, agree: bool) -> None:
    """Note what a count of the warehouse found, which is a query and no part of a look."""
    if not agree:
        commands = ("kbq reconcile --counts",)
        run = FailedRun(_COUNTED, run_id, text, store.now_ms(), kind=COUNTS_AGREE, commands=commands)
        note_failed_run(store, run)
    elif _COUNTED in failed_runs(store).runs:
        note_successes(store, (_COUNTED,))


def note_successes(store: ObjectStore, subjects: Iterable[str]) -> None:
    """Note that jobs succeeded after they had failed."""
    if subjects := tuple(subjects):
        change_failed_runs(store, lambda runs: runs.without(subjects))


# Telling --------------------------------------------------------------------------------------------------------------


def tell(ports: NoticePorts) -> tuple[Delivery, ...]:
    """Look, and tell every notifier what it does not know yet. Raises Unavailable where the store does not answer."""
    if not ports.notifiers:
        return ()
    now_ms = ports.store.now_ms()
    sight = look(ports, now_ms)
    teller = _Teller(ports, sight, now_ms, {n.name: _failure(ports.store, n) for n in ports.notifiers})
    return _side_by_side(ports.notifiers, teller.tell_one)


def tell_unrecorded(ports: NoticePorts, condition: Condition, now_ms: int) -> tuple[Delivery, ...]:
    """Tell every notifier of one condition while the store, and with it what was told, is away."""
    plan = notices.plan_notices(
        Ledger(), (dataclasses.replace(condition, grace_ms=0),), now_ms, ports.repeat_ms
    )
    return _side_by_side(ports.notifiers, lambda notifier: _tell_alone(notifier, plan.messages[0].notice))


def _side_by_side(
    notifiers: Sequence[Notifier], tell_one: Callable[[Notifier], Delivery]
) -> tuple[Delivery, ...]:
    """What each notifier took. One that hangs is not waited for."""
    pool = ThreadPoolExecutor(max(1, len(notifiers)), "kbq-notify")
    sending = {notifier.shown: pool.submit(tell_one, notifier) for notifier in notifiers}
    wait(sending.values(), SEND_SECONDS)
    pool.shutdown(wait=False)
    deliveries = tuple(_delivery(shown, future) for shown, future in sending.items())
    for delivery in deliveries:
        if delivery.failure:
            _LOGGER.warning("%s", delivery.failure)
    return deliveries


def tell_test(ports: NoticePorts) -> tuple[Delivery, ...]:
    """Send a test to every notifier."""
    notice = notices.trial_notice(ports.store.now_ms())
    return tuple(_tell_alone(notifier, notice) for notifier in ports.notifiers)


def _tell_alone(notifier: Notifier, notice: notices.Notice) -> Delivery:
    failure = _send(notifier, notice)
    return Delivery(notifier.shown, () if failure else (notice.title,), failure)


def _delivery(shown: str, future: Future[Delivery]) -> Delivery:
    if not future.done():
        return Delivery(shown, failure=f"{shown} did not end within {SEND_SECONDS:.0f} s")
    return future.result()


def _path(notifier: Notifier) -> str:
    return f"{NOTICES}{notifier.name}.json"


def _failure(store: ObjectStore, notifier: Notifier) -> str:
    """Why a notifier could not be told at the last look."""
    try:
        found = state.find(store, Ledger, _path(notifier))
    except StateError as error:
        return error.message
    return found.value.failure if found else ""


@dataclass(frozen=True)
class _Teller:
    """One look's work. ``failures`` are why notifiers could not be told at the last one."""

    ports: NoticePorts
    sight: Sight
    now_ms: int
    failures: dict[str, str]

    def tell_one(self, notifier: Notifier) -> Delivery:
        """Bring one notifier up to date."""
        try:
            return self._tell_one(notifier)
        except KbqError as error:
            return Delivery(notifier.shown, failure=f"{notifier.shown}: {error}")

    def _tell_one(self, notifier: Notifier) -> Delivery:
        store, path = self.ports.store, _path(notifier)
        if state.find(store, Ledger, path) is None:
            state.create(store, path, Ledger())
        before = state.read(store, Ledger, path).value
        found = self._conditions(notifier)
        planned = notices.plan_notices(before, found, self.now_ms, self.ports.repeat_ms, self.sight.unseen)
        sent: list[Message] = []
        failure = ""
        for message in planned.messages:
            if failure := _send(notifier, message.notice):
                break
            sent.append(message)
        state.change(store, Ledger, path, lambda now: _recorded(now, before, planned.ledger, sent, failure))
        return Delivery(notifier.shown, tuple(message.notice.title for message in sent), failure)

    def _conditions(self, notifier: Notifier) -> Iterable[Condition]:
        yield from self.sight.conditions
        for other in self.ports.notifiers:
            if other.name != notifier.name and (why := self.failures[other.name]):
                command = ("kbq notify --test",)
                yield Condition(notices.FAILING_NOTIFIER, other.shown, why, commands=command)


def _recorded(now: Ledger, before: Ledger, planned: Ledger, sent: Iterable[Message], failure: str) -> Ledger:
    """The ledger with this look in it. Where another look wrote meanwhile, what was sent is added to what it wrote."""
    ledger = planned if now == before else now
    for message in sent:
        ledger = message.recorded(ledger)
    # The first words of a failure stay: a ledger is not written at every look.
    kept = (now.failure or failure) if failure else ""
    return dataclasses.replace(ledger, failure=kept)


def _send(notifier: Notifier, notice: notices.Notice) -> str:
    """Send a notice; why it was not accepted, "" where it was."""
    try:
        notifier.send(notice)
    except KbqError as error:
        return str(error)
    except Exception as error:
        # A notifier may be anybody's: what comes out of it must not silence the others. Its words may hold a secret.
        return f"{notifier.shown} failed: {type(error).__name__}"
    return ""
