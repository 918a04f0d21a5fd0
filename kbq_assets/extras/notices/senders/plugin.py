"""Notifiers of other packages: an entry point of the group `kbq.notifiers`, named as in `KBQ_NOTIFY`.

It is a function from the target, as `KBQ_NOTIFY` has it (a reference to a secret is resolved), to an object with
`send(notice)`, which raises where the notice was not accepted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Final

from kbq_assets.adapters.secrets import resolve
from kbq_assets.core.errors import ConfigurationError, KbqError, Unavailable
from kbq_assets.extras.notices.model import Notice
from kbq_assets.extras.notices.senders.named import Named

GROUP: Final = "kbq.notifiers"


@dataclass(frozen=True)
class PluginNotifier(Named):
    """Somebody else's notifier. ``known`` are the built-in kinds, for the message where there is none of this kind."""

    known: tuple[str, ...]

    def send(self, notice: Notice) -> None:
        """Let it send. Raises Unavailable, ConfigurationError."""
        factory = self._factory()
        target = resolve("KBQ_NOTIFY", self.spec.target)
        try:
            factory(target).send(notice)
        except KbqError:
            raise
        except Exception as error:
            # Somebody else's code: anything may come out of it, and its words may hold the target.
            raise Unavailable(
                f"{self.shown} does not take notices: {type(error).__name__}",
                next_step=f"see the package that brings {self.spec.kind!r}; it is tried again at the next look",
            ) from None

    def _factory(self) -> Any:
        found = entry_points(group=GROUP)
        for point in found:
            if point.name == self.spec.kind:
                return point.load()
        raise ConfigurationError(
            f"KBQ_NOTIFY names an unknown notifier {self.spec.kind!r}",
            next_step=_one_of(self.known, found.names),
        )


def _one_of(built_in: Iterable[str], installed: Iterable[str]) -> str:
    return f"one of {', '.join([*built_in, *sorted(installed)])}; others are packages with an entry point {GROUP}"
