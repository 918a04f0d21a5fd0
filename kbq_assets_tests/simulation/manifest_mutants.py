"""The code of manifests with one of its rules removed (PROTOCOL M1 to M4)."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any

from kbq_assets.core.errors import PreconditionFailed
from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol.manifest_entries import ManifestEntry
from kbq_assets.core.protocol.manifests import Manifest, whole
from kbq_assets.core.protocol.names import ManifestName
from kbq_assets.pipelines.operate import clean
from kbq_assets.pipelines.protocol import manifests, state
from kbq_assets.pipelines.protocol.manifests import LostManifest
from kbq_assets_tests.simulation.mutants import Mutant

_unwritten: dict[int, list[tuple[str, bytes]]] = defaultdict(list)


class _Later:
    """A store that keeps new manifests for later."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def create(self, path: str, data: bytes) -> int:
        _unwritten[id(self._store)].append((path, data))
        return 0


def _create_later(store: Any, head: Any, manifest: Manifest, generation: int) -> ManifestEntry:
    return create(_Later(store), head, manifest, generation)  # type: ignore[arg-type]


def _swap_then_write(store: Any, old: Any, value: Any, draft: Any = None) -> Any:
    try:
        swapped = swap_commit(store, old, value, draft)
    finally:
        late = _unwritten.pop(id(store), [])
    for path, data in late:
        store.create(path, data)
    return swapped


def _create_under_one_name(store: Any, head: Any, manifest: Manifest, generation: int) -> ManifestEntry:
    data = codec.dumps(manifest)
    size = sum(len(each) for each in manifest.windows.values())
    name = ManifestName(head.topic, head.shard, generation, f"w{size}")
    with contextlib.suppress(PreconditionFailed):
        store.create(name.format(), data)
    return ManifestEntry(name.base, codec.checksum_of(data), len(data), size)


_read_before: list[Any] = []


def _list_after_the_heads(store: Any) -> list[ManifestName]:
    _read_before[:] = state.read_commits(store)
    return list_manifests(store)


def _orphans_of_earlier_heads(listed: Any, commits: Any) -> list[ManifestName]:
    return orphan_manifests(listed, _read_before)


def _whatever_the_generation(
    listed: Collection[ManifestName], heads: Mapping[tuple[str, int], tuple[int, frozenset[str]]]
) -> list[ManifestName]:
    return [n for n in listed if (n.topic, n.shard) in heads and n.base not in heads[n.topic, n.shard][1]]


def _missing_is_empty(*arguments: Any) -> Manifest:
    try:
        return read_manifest(*arguments)
    except LostManifest:
        return Manifest()


def _read_once(store: Any, path: str, kept: Any) -> Any:
    head = state.read_head(store, path)
    return dataclasses.replace(
        head, value=whole(manifests.read_parts(store, head.value, head.value.manifests, kept))
    )


create, swap_commit, read_manifest = manifests._create, state.swap_commit, manifests.read_manifest
list_manifests, orphan_manifests = clean.listed_manifests, clean.orphan_manifests

MANIFEST_MUTANTS = (
    Mutant("a manifest is written after the swap that names it", "M1",
           ((manifests, "_create", _create_later), (state, "swap_commit", _swap_then_write)), seed=20),
    Mutant("two attempts write under one name", "M2", ((manifests, "_create", _create_under_one_name),)),
    Mutant("clean-up ignores the head's generation", "M3",
           ((clean, "plan_manifest_sweep", _whatever_the_generation),), seed=154),
)  # fmt: skip
#: These show in one interleaving of thousands (kbq_assets_tests/pipelines/test_manifests.py).
LIST_AFTER_HEADS = Mutant(
    "clean-up reads heads before it lists manifests",
    "M3",
    (
        (clean, "listed_manifests", _list_after_the_heads),
        (clean, "orphan_manifests", _orphans_of_earlier_heads),
    ),
)
TAKEN_FOR_EMPTY = Mutant(
    "a missing manifest is taken for empty", "M4", ((manifests, "read_manifest", _missing_is_empty),)
)
READ_ONCE = Mutant("a reader stops at what its head named", "M4", ((state, "_read_whole", _read_once),))
