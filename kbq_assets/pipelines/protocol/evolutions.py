"""What contradicting schemas led to so far: columns beside others, and versions of tables."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from kbq_assets.core.errors import NotFound, StateError
from kbq_assets.core.topics.evolution import PARK, PLACEMENTS, Evolution, Placement, evolutions
from kbq_assets.core.topics.options import TopicSettings
from kbq_assets.pipelines.protocol import state
from kbq_assets.ports.object_store import ObjectStore


def places(settings: Iterable[TopicSettings]) -> bool:
    """Whether schemas that contradict their table go beside it."""
    return any(each.on_incompatible != PARK for each in settings)


def read_evolutions(store: ObjectStore, settings: Iterable[TopicSettings]) -> tuple[Evolution, ...]:
    """All there are, by table; nothing is read where every topic parks. A placement that cannot be read is left out:
    the extractions that need it say so."""
    if not places(settings):
        return ()
    found: list[Evolution] = []
    for path in [entry.path for entry in store.list(PLACEMENTS)]:
        with contextlib.suppress(NotFound, StateError):
            table = path.removeprefix(PLACEMENTS).removesuffix(".json")
            found.extend(evolutions(table, state.read(store, Placement, path).value))
    return tuple(found)
