"""Done files: hints for sensors and people, derived from the commit (PROTOCOL E5)."""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Final

from kbq_assets.core.errors import InvalidName
from kbq_assets.core.protocol.done_files import DoneFileName
from kbq_assets.core.protocol.names import DONE, shard_of
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.ports.object_store import ObjectStore

LOGGER: Final = logging.getLogger("kbq.staging")
#: The fault of a topic whose done files the store refuses.
NO_DONE_FILES: Final = "its files are loaded, but it lacks done files"


def list_done_files(store: ObjectStore) -> Iterator[DoneFileName]:
    """Done files with names of the full form. Other names are skipped."""
    for path in store.paths(DONE):
        try:
            yield DoneFileName.parse(path)
        except InvalidName:
            continue


def has_done_files(
    store: ObjectStore, topic: str, known: frozenset[str], shards: Container[int] = ()
) -> bool:
    """Whether a topic has done files, in either form of name, of partitions outside of the ``shards`` that have a
    commit. If so, the topic waits for a bootstrap (E1)."""
    for path in store.paths(f"{DONE}{topic}."):
        try:
            name = DoneFileName.parse_bootstrap(path, known)
        except InvalidName:
            continue
        found, partition = name.topic_partition
        # The prefix may also match another topic's files.
        if found == topic and shard_of(partition) not in shards:
            return True
    return False


def write_done_files(store: ObjectStore, names: Iterable[DoneFileName]) -> Mapping[TopicPartition, Exception]:
    """Create done files unless they exist. Return the errors of files that could not be written, by partition.

    Done files are hints, so a failure stops no run; the next run writes the missing ones. A name that is too long is
    logged and skipped.
    """
    wanted: dict[str, TopicPartition] = {}
    for name in names:
        try:
            wanted[name.format()] = name.topic_partition
        except InvalidName as error:
            LOGGER.warning("no done file for %s: %s", name.topic_partition, error.message)
    failed = store.create_empty(wanted)
    missing = {wanted[path]: failure for path, failure in failed.items()}
    for tp, failure in missing.items():
        LOGGER.warning("done files not written yet: %s of %s; %s: %s", len(failed), len(wanted), tp, failure)
        break
    return missing
