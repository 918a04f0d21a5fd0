"""A notifier that keeps what it is told, and fails when a test says so."""

from __future__ import annotations

from dataclasses import dataclass, field

from kbq_assets.extras.notices.model import Notice


@dataclass
class FakeNotifier:
    """The `Notifier` port. ``error`` is raised instead of taking a notice; ``after`` notices were taken by then."""

    name: str = "fake-1"
    error: BaseException | None = None
    after: int = 0
    taken: list[Notice] = field(default_factory=list)

    @property
    def shown(self) -> str:
        return f"fake:{self.name}"

    def send(self, notice: Notice) -> None:
        if self.error is not None and len(self.taken) >= self.after:
            raise self.error
        self.taken.append(notice)

    @property
    def titles(self) -> list[str]:
        """What was told, and forget it."""
        titles = [notice.title for notice in self.taken]
        self.taken.clear()
        return titles
