"""The objects of ended replays: everything below their staging areas (PROTOCOL R1, R7)."""

from __future__ import annotations

from kbq_assets.core.errors import Refused, TransientError, Unavailable
from kbq_assets.core.protocol.names import TABLE_REGISTRY, TOPIC_REGISTRY
from kbq_assets.core.replay.model import Replay
from kbq_assets.ports.object_store import ObjectStore


def has_objects(store: ObjectStore, replay: Replay) -> bool:
    """Whether a replay's staging area has any object."""
    return any(True for _ in store.paths(f"{replay.area}/"))


def delete_objects(store: ObjectStore, replay: Replay, again: str) -> None:
    """Delete the staging area of a replay. Raises Refused and Unavailable if an object stays; ``again`` repeats it."""
    paths = list(store.paths(f"{replay.area}/"))
    # Without its registries, a repetition could not read the states of what is left.
    registries = {f"{replay.area}/{TABLE_REGISTRY}", f"{replay.area}/{TOPIC_REGISTRY}"}
    failures = store.delete_many([path for path in paths if path not in registries])
    for path, error in failures.items() or store.delete_many(sorted(registries & {*paths})).items():
        kind = Unavailable if isinstance(error, TransientError) else Refused
        raise kind(f"{path} of replay {replay.number} was not deleted: {error}", next_step=again)
