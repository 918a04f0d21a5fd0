"""Done files: hints for sensors and people, derived from the commit (PROTOCOL E5)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kbq_assets.core.errors import InvalidName, PreconditionFailed
from kbq_assets.core.names import DONE, DoneFileName
from kbq_assets.pipelines.state import parallel
from kbq_assets.ports.object_store import ObjectStore


def list_done_files(store: ObjectStore) -> Iterator[DoneFileName]:
    """Done files of the full form; other names are left alone."""
    for entry in store.list(DONE):
        try:
            yield DoneFileName.parse(entry.path)
        except InvalidName:
            continue


def topics_with_done_files(store: ObjectStore, known: frozenset[str]) -> set[str]:
    """Which of the known topics have done files, of either form: those of no commit wait for a bootstrap (E1)."""
    topics = set()
    for entry in store.list(DONE):
        try:
            topics.add(DoneFileName.parse_bootstrap(entry.path, known).topic_partition.topic)
        except InvalidName:
            continue
    return topics & known


def write_done_files(store: ObjectStore, names: Iterable[DoneFileName]) -> None:
    """Create done files; one that exists is fine."""

    def write(name: DoneFileName) -> None:
        try:
            store.create(name.format(), b"")
        except PreconditionFailed:
            return

    parallel(write, names)
