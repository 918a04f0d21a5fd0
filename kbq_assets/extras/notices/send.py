"""Sends changes to notifiers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Final

from kbq_assets.core.errors import KbqError
from kbq_assets.core.observation.check_names import COUNTS_AGREE
from kbq_assets.core.protocol.names import NOTICES
from kbq_assets.extras.notices.model import ALL, INFO, OF_NO_TOPIC, TEST, Condition, Ledger, Message, Notifier
from kbq_assets.extras.notices.observe import Observation, Observed, observe
from kbq_assets.pipelines.protocol import state
from kbq_assets.ports.object_store import ObjectStore

#: Time limit for sending in a poll, because Dagster ends a tick after 60 seconds.
SEND_SECONDS: Final = 45.0
#: A poll does not count the warehouse's rows. Dagster's sensor observes the counts of others.
_NO_COUNTS: Final = Observation(unseen=frozenset({COUNTS_AGREE}))
_LOGGER: Final = logging.getLogger("kbq.notices")


@dataclass(frozen=True)
class NoticePorts:
    """The sources of notices, the notifiers, and the store of their ledgers."""

    store: ObjectStore
    observed: Observed
    notifiers: Sequence[Notifier]


@dataclass(frozen=True)
class Delivery:
    """The text sent to one notifier ("" for nothing), and the error ("" for none)."""

    notifier: str
    sent: str = ""
    failure: str = ""


def send_changes(ports: NoticePorts, more: Observation = _NO_COUNTS) -> tuple[Delivery, ...]:
    """Send each notifier the changes since its last message. Raises Unavailable if the store does not answer."""
    if not ports.notifiers:
        return ()
    now_ms = ports.store.now_ms()
    found = observe(ports.observed, now_ms) + more
    teams = _teams(ports, found)

    def send(notifier: Notifier) -> Delivery:
        return _send_changes(ports.store, notifier, found, teams, now_ms)

    return _to_each(ports.notifiers, send)


def _teams(ports: NoticePorts, found: Observation) -> Mapping[str, Collection[str]]:
    """The teams of each subject; empty if no notifier has a team. Teams are read from state and settings, so if nothing
    could be observed, they are unknown, and their notifiers wait."""
    if ALL in found.unseen or not any(notifier.team for notifier in ports.notifiers):
        return {}
    return ports.observed.teams({each.subject for each in found.conditions if each.kind not in OF_NO_TOPIC})


def send_now(notifiers: Sequence[Notifier], message: Message) -> tuple[Delivery, ...]:
    """Send a message to each notifier, without ledgers."""

    def send(notifier: Notifier) -> Delivery:
        notifier.send(message)
        return Delivery(notifier.shown, message.title)

    return _to_each(notifiers, send)


def trial_message(now_ms: int) -> Message:
    """The message of `kbq notify --test`."""
    return Message((Condition(TEST, "kbq", "notices reach you here", INFO, phase=TEST),), now_ms)


def _send_changes(
    store: ObjectStore,
    notifier: Notifier,
    found: Observation,
    teams: Mapping[str, Collection[str]],
    now_ms: int,
) -> Delivery:
    path = f"{NOTICES}{notifier.name}.json"
    stored = state.find(store, Ledger, path)
    before = Ledger() if stored is None else stored.value
    items, after = before.plan(notifier.concerned(found.conditions, teams, before.reported), found.unseen)
    message = Message(items, now_ms)
    if items:
        notifier.send(message)
    if after != before:
        if stored is None:
            state.create(store, path, Ledger())
        state.change(store, Ledger, path, lambda _: after)
    return Delivery(notifier.shown, message.title if items else "")


def _to_each(notifiers: Sequence[Notifier], send: Callable[[Notifier], Delivery]) -> tuple[Delivery, ...]:
    """One delivery for each notifier. If one fails or hangs, the others still get theirs."""
    pool = ThreadPoolExecutor(max(1, len(notifiers)), "kbq-notify")
    sending = {notifier.shown: pool.submit(send, notifier) for notifier in notifiers}
    wait(sending.values(), SEND_SECONDS)
    pool.shutdown(wait=False)
    deliveries = tuple(_delivery(shown, future) for shown, future in sending.items())
    for failure in failures(deliveries):
        _LOGGER.warning("%s", failure)
    return deliveries


def failures(deliveries: Iterable[Delivery]) -> tuple[str, ...]:
    """The errors of notifiers that did not accept their messages."""
    return tuple(f"{d.notifier}: {d.failure}" for d in deliveries if d.failure)


def _delivery(shown: str, future: Future[Delivery]) -> Delivery:
    if not future.done():
        return Delivery(shown, failure=f"no answer within {SEND_SECONDS:.0f} s")
    if (error := future.exception()) is None:
        return future.result()
    # The text of another error may contain a secret.
    return Delivery(shown, failure=str(error) if isinstance(error, KbqError) else type(error).__name__)
