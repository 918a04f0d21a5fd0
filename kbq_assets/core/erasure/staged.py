"""Erasure in staged files: replaces an old file by a new one in lists of files, for one warehouse (PROTOCOL X3). Pure
functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from kbq_assets.core.erasure.model import RewrittenFile
from kbq_assets.core.protocol.commits import Commit, StagedFile
from kbq_assets.core.protocol.names import FIRST_WAREHOUSE


def with_rewritten(commit: Commit, each: RewrittenFile, warehouse: str) -> Commit:
    """The commit with the new file for a warehouse. Other warehouses keep the old file, because they erase by
    themselves and may be loading it. If a reset gave up the old file, the new one is given up too."""
    for number, found in commit.partitions.items():
        windows = tuple(
            dataclasses.replace(
                w, files=tuple(new for old in w.files for new in _split(old, each, warehouse))
            )
            for w in found.windows
        )
        if windows != found.windows:
            commit = commit.with_partition(number, dataclasses.replace(found, windows=windows))
    if each.old in commit.given_up and each.new.path not in commit.given_up:
        commit = dataclasses.replace(commit, given_up=(*commit.given_up, each.new.path))
    return commit


def for_warehouse(file: StagedFile, warehouse: str) -> StagedFile:
    return dataclasses.replace(file, warehouses=() if warehouse == FIRST_WAREHOUSE else (warehouse,))


def _split(file: StagedFile, each: RewrittenFile, warehouse: str) -> Iterator[StagedFile]:
    if file.path != each.old or warehouse not in file.wanted_by:
        yield file
        return
    if others := tuple(name for name in file.wanted_by if name != warehouse):
        yield dataclasses.replace(file, warehouses=() if others == (FIRST_WAREHOUSE,) else others)
    yield each.new
