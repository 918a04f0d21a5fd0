"""Sorts a listing of the source into success objects, configuration, and objects that control a table (PROTOCOL F1).

A batch is a directory with a success object. Its files are the objects in and below this directory, except those of a
deeper batch. As in Google's tool, these do not count as files: objects in `_config/` and `_backlog/`, empty objects,
and names that begin with a dot. Names that begin with an underscore do not count either, because Spark and Hive use
them for their own files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

CONFIG: Final = "_config"
BACKLOG_FOLDER: Final = "_backlog"
LOCK: Final = "_bqlock"
BACKFILL: Final = "_BACKFILL"


@dataclass(frozen=True)
class ListedObject:
    """An object of the source. A new content gets a new generation."""

    path: str
    size: int
    generation: int
    updated_ms: int = 0

    @property
    def folder(self) -> str:
        """Its directory, "" at the root."""
        return self.path.rpartition("/")[0]

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


@dataclass(frozen=True)
class FoundBatch:
    """A directory with a success object of this generation, uploaded at ``uploaded_ms`` (0: unknown)."""

    path: str
    generation: int
    uploaded_ms: int = 0


@dataclass(frozen=True)
class SourceListing:
    """The objects of a source that are not data: batches by directory, configuration by directory and name, and
    generations of the objects that control tables, by path."""

    batches: Mapping[str, FoundBatch] = field(default_factory=dict)
    configs: Mapping[str, Mapping[str, ListedObject]] = field(default_factory=dict)
    signs: Mapping[str, int] = field(default_factory=dict)

    def sign(self, prefix: str, name: str) -> int:
        """The generation of an object at a table's prefix, 0 if there is none."""
        return self.signs.get(f"{prefix}/{name}", 0)


def find_batches(objects: Iterable[ListedObject], success: str, signs: Collection[str]) -> SourceListing:
    """Sort the objects of a listing. ``success`` is the name of success objects, ``signs`` are the names of objects
    that control tables."""
    batches: dict[str, FoundBatch] = {}
    configs: dict[str, dict[str, ListedObject]] = {}
    found: dict[str, int] = {}
    for each in objects:
        folders, name = each.path.split("/")[:-1], each.name
        if CONFIG in folders:
            if folders[-1] == CONFIG and name:
                configs.setdefault(each.folder.rpartition(CONFIG)[0].rstrip("/"), {})[name] = each
        elif BACKLOG_FOLDER in folders:
            found[each.path] = each.generation
        elif name == CONFIG and each.size:  # no folder: its batches must not load without their configuration
            configs.setdefault(each.folder, {})[CONFIG] = each
        elif name == success:
            batches[each.folder] = FoundBatch(each.folder, each.generation, each.updated_ms)
        elif name in signs and (each.size or name != LOCK):  # ignore an empty lock, as Google's tool does
            found[each.path] = each.generation
    return SourceListing(batches, configs, found)


def files_of(
    batch: str, objects: Iterable[ListedObject], others: Collection[str], not_data: Collection[str]
) -> tuple[ListedObject, ...]:
    """The files of a batch among the objects below its directory, in order. ``others`` are the directories of all
    batches, ``not_data`` names of objects that are not files."""
    deeper = {other for other in others if other != batch and _is_below(other, batch)}
    return tuple(
        each
        for each in objects
        if each.size
        and _is_below(each.path, batch)
        and each.name not in not_data
        and not each.name.startswith((".", "_"))
        and not {CONFIG, BACKLOG_FOLDER} & set(each.path.split("/"))
        and not any(_is_below(each.path, other) for other in deeper)
    )


def _is_below(path: str, folder: str) -> bool:
    return not folder or path.startswith(f"{folder}/")
