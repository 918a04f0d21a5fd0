"""The stored schema variants: variant columns and table versions (core/topics/evolution.py)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from kbq_assets.core.errors import NotFound, StateError
from kbq_assets.core.topics.evolution import PARK, VARIANTS, Evolution, TableVariants, evolutions
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.pipelines.protocol import state
from kbq_assets.ports.object_store import ObjectStore


def has_variants(settings: Iterable[TopicSettings]) -> bool:
    return any(each.destination.on_incompatible != PARK for each in settings)


def read_evolutions(store: ObjectStore, settings: Iterable[TopicSettings]) -> tuple[Evolution, ...]:
    """All variants, ordered by table. If every topic parks, nothing is read. Unreadable objects are skipped: the
    extractions that need them report the error."""
    return stored_evolutions(store) if has_variants(settings) else ()


def stored_evolutions(store: ObjectStore) -> tuple[Evolution, ...]:
    """All variants, whatever the topics' options are now. Unreadable objects are skipped."""
    found: list[Evolution] = []
    for path in list(store.paths(VARIANTS)):
        with contextlib.suppress(NotFound, StateError):
            table = path.removeprefix(VARIANTS).removesuffix(".json")
            found.extend(evolutions(table, state.read(store, TableVariants, path).value))
    return tuple(found)
