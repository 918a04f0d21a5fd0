"""A notifier that keeps its messages, and fails on request."""

from __future__ import annotations

from dataclasses import dataclass, field

from kbq_assets.extras.notices.model import Message, Notifier


@dataclass
class FakeNotifier:
    """``port`` is the notifier. ``error`` is raised instead of taking a message. ``team`` is whom it is for."""

    name: str = "fake-1"
    error: BaseException | None = None
    taken: list[Message] = field(default_factory=list)
    team: str = ""

    @property
    def port(self) -> Notifier:
        return Notifier(self.name, f"fake:{self.name}", self.send, self.team)

    def send(self, message: Message) -> None:
        if self.error is not None:
            raise self.error
        self.taken.append(message)

    @property
    def titles(self) -> list[str]:
        """The titles of all items since the last call."""
        titles = [item.title for message in self.taken for item in message.items]
        self.taken.clear()
        return titles
