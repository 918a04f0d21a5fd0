"""Cheaper storage for old objects: the section `lifecycle` of `catalog.yaml`, as bucket rules.

Only backup files (`*.avro` below `backup/`) and data files of a lake (`*.parquet` of a dataset) move to cheaper
classes. State objects, staged files and metadata keep theirs."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kbq_assets.core.backup.backup_names import BACKUP
from kbq_assets.core.catalog.nodes import CatalogProblem, DocumentNode
from kbq_assets.core.config.locations import Bucket, Folder, LakeAddress
from kbq_assets.core.plurals import counted

#: Cloud Storage's classes, from expensive to cheap.
CLASSES: Final = ("NEARLINE", "COLDLINE", "ARCHIVE")
_STEP: Final = re.compile(r"([A-Z]+) +([1-9][0-9]{0,4})")
_PLACE: Final = re.compile(r"backup|lake(?:/[A-Za-z0-9_]+)?")
_HINT: Final = (
    "such as NEARLINE 30, COLDLINE 90: days after an object was written, increasing with each cheaper class"
)

#: Days by storage class, by place in the section.
LifecycleRules = Mapping[str, Mapping[str, int]]


#: Bucket, prefix and suffix of names.
_Objects = tuple[str, str, str]


@dataclass(frozen=True, order=True)
class LeftToPeople:
    """Something in the section, or objects, that people must resolve, with the reason."""

    place: str
    message: str


@dataclass(frozen=True)
class StoragePlaces:
    """The locations of backups, lakes and the staging area."""

    backups: tuple[Folder | Bucket, ...]
    lakes: tuple[LakeAddress, ...]
    staging: Folder | Bucket


@dataclass(frozen=True, order=True)
class Transition:
    """A bucket rule: objects below ``prefix`` whose names end with ``suffix`` get ``storage_class`` after ``days``."""

    bucket: str
    prefix: str
    suffix: str
    storage_class: str
    days: int

    @property
    def objects(self) -> str:
        return f"gs://{self.bucket}/{self.prefix}…{self.suffix}"

    def __str__(self) -> str:
        return f"{self.objects}: {self.storage_class} after {counted(self.days, 'day')}"


@dataclass(frozen=True)
class SetTransitions:
    """Set the ``wanted`` transitions of a bucket. They replace the ``replaced`` ones, which have other days."""

    wanted: tuple[Transition, ...]
    replaced: tuple[Transition, ...] = ()

    @property
    def bucket(self) -> str:
        return self.wanted[0].bucket

    def __str__(self) -> str:
        before = (
            f" (until now {', '.join(str(each.days) for each in self.replaced)})" if self.replaced else ""
        )
        return f"storage class of {'; '.join(map(str, self.wanted))}{before}"


def parse_lifecycle(section: Mapping[str, Any] | None) -> LifecycleRules:
    """The rules of the section `lifecycle`, {} if there is none."""
    return {place: dict(_steps(str(text))) for place, text in (section or {}).items()}


def check_lifecycle(root: DocumentNode) -> Iterator[CatalogProblem]:
    for place, node in root.fields_at("lifecycle").items():
        where = f"lifecycle.{place}"
        if not _PLACE.fullmatch(place):
            message, hint = "is not a place", "backup, lake, or lake/DATASET"
            yield node.problem(where, message, hint)
        steps = [match.groups() for match in map(_STEP.fullmatch, pieces(str(node.value))) if match]
        ranks = [CLASSES.index(name) for name, _ in steps if name in CLASSES]
        days = [int(number) for _, number in steps]
        is_known = len(ranks) == len(pieces(str(node.value)))
        if not is_known or not (_rises(ranks) and _rises(days)):
            yield node.problem(where, f"{node.value!r} is not a lifecycle", _HINT)


def transitions(
    rules: LifecycleRules, places: StoragePlaces, datasets: Collection[str]
) -> tuple[list[Transition], list[LeftToPeople]]:
    """The transitions that the section requests, and the places that cannot have any. ``datasets`` are the datasets of
    the catalog's topics."""
    found: list[Transition] = []
    refused: list[LeftToPeople] = []
    staging = places.staging.name if isinstance(places.staging, Bucket) else ""
    for place, steps in sorted(rules.items()):
        kind, _, dataset = place.partition("/")
        names = [dataset] if dataset else sorted(datasets)
        for objects in _backups(places) if kind == "backup" else _lakes(places, names):
            if isinstance(objects, str):
                refused.append(LeftToPeople(f"lifecycle.{place}", objects))
                continue
            for name, days in steps.items():
                if name == "ARCHIVE" and objects[0] == staging:
                    why = (
                        f"gs://{staging} is the staging bucket, which must have no rules that archive objects"
                    )
                    refused.append(LeftToPeople(f"lifecycle.{place}", why))
                else:
                    found.append(Transition(*objects, name, days))
    return sorted(set(found)), sorted(set(refused))


def plan_lifecycle(
    wanted: Iterable[Transition], live: Mapping[str, Collection[Transition]]
) -> tuple[list[SetTransitions], list[LeftToPeople]]:
    """The changes to buckets, and the transitions of the same objects that are not in the catalog, which people must
    remove."""
    by_objects: dict[_Objects, list[Transition]] = defaultdict(list)
    for each in wanted:
        by_objects[each.bucket, each.prefix, each.suffix].append(each)
    changes: list[SetTransitions] = []
    left: list[LeftToPeople] = []
    for objects, own in by_objects.items():
        known = [t for t in live.get(objects[0], ()) if (t.bucket, t.prefix, t.suffix) == objects]
        classes = {each.storage_class for each in own}
        others = [each for each in known if each not in own]
        if missing := tuple(each for each in own if each not in known):
            changes.append(SetTransitions(missing, tuple(t for t in others if t.storage_class in classes)))
        left += [
            LeftToPeople(
                t.objects,
                f"{t.storage_class} after {counted(t.days, 'day')} is not in catalog.yaml: remove it by hand",
            )
            for t in others
            if t.storage_class not in classes
        ]
    return changes, left


def _backups(places: StoragePlaces) -> Iterator[_Objects | str]:
    """The backup files in each location, or the reason that it has no storage classes."""
    for each in places.backups:
        if isinstance(each, Bucket):
            yield each.name, below(each, BACKUP), ".avro"
        else:
            yield f"{each.path} is a folder, which has no storage classes"


def _lakes(places: StoragePlaces, datasets: Iterable[str]) -> Iterator[_Objects | str]:
    """The data files of datasets in each lake, or the reason that it has no storage classes."""
    if not places.lakes:
        yield "KBQ_WAREHOUSE names no lake"
    for each in places.lakes:
        if each.bucket is not None:
            bucket = each.bucket
            yield from ((bucket.name, below(bucket, f"{dataset}/"), ".parquet") for dataset in datasets)
        elif each.catalog:
            yield f"the catalog {each.catalog} controls where its files are: set their lifecycle there"
        else:
            yield f"{each.folder} is a folder, which has no storage classes"


def below(bucket: Bucket, folder: str) -> str:
    """The name prefix of a folder's objects."""
    return f"{bucket.prefix}/{folder}" if bucket.prefix else folder


def pieces(text: str) -> list[str]:
    """The comma-separated parts of a text."""
    return [piece.strip() for piece in text.split(",")]


def _steps(text: str) -> Iterator[tuple[str, int]]:
    for piece in pieces(text):
        if match := _STEP.fullmatch(piece):
            yield match[1], int(match[2])


def _rises(numbers: list[int]) -> bool:
    return all(a < b for a, b in itertools.pairwise(numbers))
