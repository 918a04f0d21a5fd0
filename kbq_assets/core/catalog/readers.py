"""Read access to tables, data files of a lake, and backups: `access.readers` in `catalog.yaml`. KBQ only adds
grants."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kbq_assets.core.backup.backup_names import BACKUP
from kbq_assets.core.catalog.lifecycle import LeftToPeople, below, pieces
from kbq_assets.core.catalog.nodes import CatalogProblem, DocumentNode
from kbq_assets.core.config.locations import (
    BigQueryProject,
    Bucket,
    DuckDbFile,
    Folder,
    LakeAddress,
    WarehousePlace,
)

if TYPE_CHECKING:
    from kbq_assets.core.catalog.entries import CatalogEntry

#: Kinds of places.
DATASET: Final = "dataset"
TABLE: Final = "table"
OBJECTS: Final = "objects"
#: Most conditional bindings of one role for a member in a bucket's policy: https://cloud.google.com/iam/quotas
MOST_PREFIXES: Final = 20
_NAME: Final = r"[A-Za-z0-9_-]+"
_PLACE: Final = re.compile(
    rf"dataset/{_NAME}|table/{_NAME}\.{_NAME}|lake(?:/{_NAME}(?:\.{_NAME})?)?"
    r"|backup(?:/[A-Za-z0-9._-]+)?|personal-backup"
)
_SERVICE: Final = ".gserviceaccount.com"
_MEMBER: Final = re.compile(r"(user|group|serviceAccount):[^\s@,:]+@([^\s@,:]+)")
_PLACES: Final = (
    "dataset/DATASET, table/DATASET.TABLE, lake, lake/DATASET, lake/DATASET.TABLE, backup, backup/TOPIC,"
    " personal-backup"
)
_MEMBERS: Final = (
    "user:ana@example.com, group:sales@example.com or serviceAccount:bi@my-project.iam.gserviceaccount.com,"
    " several with commas"
)

#: Members by place in the section.
ReaderRules = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, order=True)
class ReadablePlace:
    """A dataset or table of a project, or the objects in a bucket whose names begin with ``name``."""

    kind: str
    owner: str
    name: str

    def __str__(self) -> str:
        if self.kind == OBJECTS:
            return f"gs://{self.owner}/{self.name}… (and list the bucket's names)"
        return f"{self.kind} {self.owner}.{self.name}"


@dataclass(frozen=True)
class GrantReading:
    """Grant members read access to a place."""

    place: ReadablePlace
    members: tuple[str, ...]

    def __str__(self) -> str:
        return f"let {', '.join(self.members)} read {self.place}"


@dataclass(frozen=True)
class DataPlaces:
    """The locations of tables and backups. ``personal`` is for backups of topics with personal data."""

    warehouses: tuple[WarehousePlace, ...]
    backup: Folder | Bucket
    personal: Folder | Bucket | None = None


def parse_readers(section: Mapping[str, Any] | None) -> ReaderRules:
    """The map `readers` of the section `access`, {} if there is none."""
    readers = (section or {}).get("readers") or {}
    return {place: tuple(map(normal_member, pieces(str(text)))) for place, text in readers.items()}


def check_readers(root: DocumentNode) -> Iterator[CatalogProblem]:
    for place, node in root.fields_at("access.readers").items():
        where = f"access.readers.{place}"
        if not _PLACE.fullmatch(place):
            yield node.problem(where, "is not a place", _PLACES)
        for member in pieces(str(node.value)):
            if not _is_member(member):
                yield node.problem(where, f"{member!r} is not a reader", _MEMBERS)


def wanted_readers(
    rules: ReaderRules, places: DataPlaces, entries: Collection[CatalogEntry], topics: Collection[str]
) -> tuple[dict[ReadablePlace, frozenset[str]], list[LeftToPeople]]:
    """The members to grant by place, and the places that KBQ cannot grant. ``entries`` are the environment's entries,
    ``topics`` the names of all topics."""
    found: dict[ReadablePlace, set[str]] = defaultdict(set)
    refused: set[LeftToPeople] = set()
    for place, members in rules.items():
        for each in _readable(place, places, entries, topics):
            if isinstance(each, str):
                refused.add(LeftToPeople(f"access.readers.{place}", each))
            else:
                found[each] |= {*members}
    for bucket, member in {(p.owner, m) for p, ms in found.items() for m in ms if p.kind == OBJECTS}:
        prefixes = [p for p, ms in found.items() if p.kind == OBJECTS and p.owner == bucket and member in ms]
        widest = [p for p in prefixes if not any(p != o and p.name.startswith(o.name) for o in prefixes)]
        kept = widest if len(widest) <= MOST_PREFIXES else []
        if not kept:
            why = (
                f"{member} would need {len(widest)} prefixes, but a policy allows {MOST_PREFIXES} per member:"
                " use wider places, such as backup or lake/DATASET"
            )
            refused.add(LeftToPeople(f"gs://{bucket}", why))
        for each in prefixes:
            if each not in kept:
                found[each].discard(member)
    return {each: frozenset(found[each]) for each in sorted(found) if found[each]}, sorted(refused)


def plan_readers(
    wanted: Mapping[ReadablePlace, frozenset[str]], live: Mapping[ReadablePlace, frozenset[str] | None]
) -> tuple[list[GrantReading], list[LeftToPeople]]:
    """The missing grants, and the places that do not exist yet. ``live`` has the present readers of each place, None if
    it does not exist."""
    grants: list[GrantReading] = []
    left: list[LeftToPeople] = []
    for place, members in wanted.items():
        present = live[place]
        if present is None:
            why = f"does not exist yet: apply again after its first load, for {', '.join(sorted(members))}"
            left.append(LeftToPeople(str(place), why))
        elif missing := tuple(sorted(members - present)):
            grants.append(GrantReading(place, missing))
    return grants, left


def _readable(
    place: str, places: DataPlaces, entries: Collection[CatalogEntry], topics: Collection[str]
) -> Iterator[ReadablePlace | str]:
    """The datasets, tables or prefixes for a place in the section, or the reason that KBQ cannot grant it."""
    kind, _, name = place.partition("/")
    if kind in (DATASET, TABLE):
        yield from _tables(kind, name, places.warehouses)
    elif kind == "lake":
        datasets = {n for e in entries if (n := e.settings.destination.dataset.text) and "{" not in n}
        yield from _files([name] if name else sorted(datasets), places.warehouses)
    elif kind == "personal-backup":
        yield _copies(places.personal)
    elif not name:
        yield _copies(places.backup)
    else:
        yield from _copies_of(name, places, entries, topics)


def _tables(kind: str, name: str, warehouses: Iterable[WarehousePlace]) -> Iterator[ReadablePlace | str]:
    lakes_alone = True
    for each in warehouses:
        if isinstance(each, BigQueryProject):
            yield ReadablePlace(kind, each.data_project, name)
        elif isinstance(each, DuckDbFile):
            yield f"{each.path} is a DuckDB file, which has no grants: its file permissions control who reads it"
        lakes_alone = lakes_alone and isinstance(each, LakeAddress)
    if lakes_alone:
        yield "KBQ_WAREHOUSE has only lakes, whose tables have no grants: lake/… grants their files"


def _files(names: Iterable[str], warehouses: Iterable[WarehousePlace]) -> Iterator[ReadablePlace | str]:
    """Files of datasets and tables in each lake."""
    lakes = [each for each in warehouses if isinstance(each, LakeAddress)]
    if not lakes:
        yield "KBQ_WAREHOUSE names no lake"
    for each in lakes:
        if each.bucket is not None:
            folders = [name.replace(".", "/") + "/" for name in names]
            yield from (ReadablePlace(OBJECTS, each.bucket.name, below(each.bucket, f)) for f in folders)
        elif each.catalog:
            yield f"the catalog {each.catalog} controls where its files are: grant read access there"
        else:
            yield f"{each.folder} is a folder, which has no grants: its file permissions control who reads it"


def _copies_of(
    topic: str, places: DataPlaces, entries: Collection[CatalogEntry], topics: Collection[str]
) -> Iterator[ReadablePlace | str]:
    """The backup of one topic; nothing for a topic of another environment."""
    entry = next((each for each in entries if each.topic == topic), None)
    if entry is not None:
        # As in `areas.area_of`: topics with personal data have a separate place.
        yield _copies(places.personal if entry.settings.privacy.decisions else places.backup, f"{topic}/")
    elif topic not in topics:
        yield f"{topic} is not a topic of the catalog"


def _copies(place: Folder | Bucket | None, folder: str = "") -> ReadablePlace | str:
    if isinstance(place, Bucket):
        return ReadablePlace(OBJECTS, place.name, below(place, BACKUP + folder))
    if place is None:
        return "KBQ_BACKUP_PERSONAL_LOCATION is not set"
    return f"{place.path} is a folder, which has no grants: its file permissions control who reads it"


def _is_member(text: str) -> bool:
    """Whether a text is a member as IAM and BigQuery write it. The address determines the prefix of an account."""
    matched = _MEMBER.fullmatch(text)
    return matched is not None and (matched[1] == "serviceAccount") == matched[2].lower().endswith(_SERVICE)


def normal_member(member: str) -> str:
    """A member in the form for comparisons: addresses ignore case."""
    kind, _, address = member.partition(":")
    return f"{kind}:{address.lower()}"
