"""Replays that have not read their whole range: they are running, were stopped, or died."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kbq_assets.core.errors import KbqError, TransientError
from kbq_assets.core.replay.model import REPLAYS, Phase, Replay
from kbq_assets.pipelines.protocol.state_cache import StateCache


@dataclass(frozen=True)
class UnfinishedReplay:
    """An unfinished replay. ``subject`` is its topic, or the path of an object that cannot be read."""

    subject: str
    message: str
    commands: tuple[str, ...]

    @property
    def line(self) -> str:
        return f"{self.subject}: {self.message}; next: {' or '.join(self.commands)}"


def unfinished_replays(cache: StateCache) -> Iterator[UnfinishedReplay]:
    """Every unfinished replay, by path. Raises Unavailable."""
    listed = cache.listing(REPLAYS)
    paths = sorted(listed)
    for path, found in zip(paths, cache.read(Replay, paths, listed), strict=True):
        if isinstance(found, TransientError):
            raise found
        if isinstance(found, KbqError):
            yield UnfinishedReplay(path, found.message, (found.next_step,))
        elif found.value.phase == Phase.READING:
            number = found.value.number
            within = f" for warehouse {found.value.warehouse}" if found.value.warehouse else ""
            message = f"replay {number}{within} has not read its whole range"
            commands = (f"kbq replay resume {number}", f"kbq replay drop {number}")
            yield UnfinishedReplay(found.value.topic, message, commands)
