"""Where people are told what happened: a chat, a mailbox, another system."""

from __future__ import annotations

from typing import Protocol

from kbq_assets.extras.notices.model import Notice


class Notifier(Protocol):
    """Guarantees: a notice that `send` returns from was accepted by the other side; a call ends within a minute,
    whatever the other side does; no secret is in a name or a message."""

    @property
    def name(self) -> str:
        """What its ledger goes by: another target has another name."""

    @property
    def shown(self) -> str:
        """What people know it by, without a secret."""

    def send(self, notice: Notice) -> None:
        """Deliver a notice; it may arrive twice. Raises Unavailable where the same call may succeed later,
        ConfigurationError where somebody must mend something first."""
