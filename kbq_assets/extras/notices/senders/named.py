"""What every notifier is known by."""

from __future__ import annotations

from dataclasses import dataclass

from kbq_assets.core.config.notices import NotifierSpec


@dataclass(frozen=True)
class Named:
    """A notifier of `KBQ_NOTIFY`, by its words there."""

    spec: NotifierSpec

    @property
    def name(self) -> str:
        """Its ledger's name."""
        return self.spec.name

    @property
    def shown(self) -> str:
        """What may be shown: an address, a host or a kind, or the reference to a URL that is a secret."""
        return self.spec.shown
