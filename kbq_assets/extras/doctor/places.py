"""Checks the places in the settings: disk space, each warehouse, and its datasets."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from kbq_assets.core.config.locations import BigQueryProject, DuckDbFile, Folder, LakeAddress
from kbq_assets.core.config.settings import Settings
from kbq_assets.core.errors import KbqError
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.names import FIRST_WAREHOUSE
from kbq_assets.core.topics.destinations import is_template
from kbq_assets.core.topics.source_list import SourceEntry
from kbq_assets.extras.doctor.check import Check, Outcome
from kbq_assets.ports.warehouse import Warehouse

GIB = 1024**3
ENOUGH_DISK, LITTLE_DISK = 5 * GIB, 1 * GIB


def existing(path: Path) -> Path:
    """``path``, or its nearest ancestor that exists."""
    return next(candidate for candidate in (path, *path.absolute().parents) if candidate.exists())


def disk_space(path: Path, name: str = "disk") -> Check:
    """Whether a folder's disk has room for the local stack, staged files and the warehouse."""
    free = shutil.disk_usage(existing(path)).free
    found = f"{free / GIB:.1f} GiB free for {path}"
    if free >= ENOUGH_DISK:
        return Check(name, Outcome.OK, found)
    outcome = Outcome.WARN if free >= LITTLE_DISK else Outcome.FAIL
    variable = {"disk": "KBQ_HOME", "staging space": "KBQ_STAGING"}.get(name, "KBQ_WAREHOUSE")
    return Check(name, outcome, found, f"free some space, or set {variable} to a folder on a larger disk")


def disks(by_warehouse: Sequence[Settings]) -> Iterator[Check]:
    """The space on each disk to which KBQ writes. The settings are those of each warehouse."""
    settings = by_warehouse[0]
    places = {"disk": settings.home}
    if isinstance(settings.staging, Folder):
        places["staging space"] = settings.staging.path
    for own in by_warehouse:
        place, name = own.warehouse, f"{prefix(own)}warehouse space"
        if isinstance(place, DuckDbFile):
            places[name] = place.path.parent
        if isinstance(place, LakeAddress) and place.folder is not None:
            places[name] = place.folder
    seen = set()
    for name, path in places.items():
        device = existing(path).stat().st_dev
        if device not in seen:
            seen.add(device)
            yield disk_space(path, name)


def warehouse(settings: Settings, open_warehouse: Callable[[], Warehouse]) -> Check:
    """Whether the chosen warehouse can be read, and whether a DuckDB file or a lake's folder can be created."""
    place, name = settings.warehouse, f"{prefix(settings)}warehouse"
    if isinstance(place, BigQueryProject):
        return Check(name, Outcome.OK, "BigQuery, see kbq doctor --gcp")
    path = place.path if isinstance(place, DuckDbFile) else place.folder
    if path is not None and not os.access(existing(path), os.W_OK):
        fix = "set KBQ_WAREHOUSE to a place to which this user may write"
        return Check(name, Outcome.FAIL, f"{existing(path)} is not writable", fix)
    try:
        found = len(open_warehouse().tables())
    except KbqError as error:
        return Check(name, Outcome.FAIL, error.message, error.next_step)
    return Check(name, Outcome.OK, f"{settings.warehouse_url}: {counted(found, 'table')}")


def datasets_of(entries: Iterable[SourceEntry], warehouse: str) -> list[str]:
    """The datasets of the topics that go to a warehouse, given its stored name. Datasets that records choose are
    unknown beforehand."""
    all_ = (entry.settings.destination for entry in entries)
    own = [each for each in all_ if warehouse in (each.warehouses or (FIRST_WAREHOUSE,))]
    named = {name for each in own for name in (each.dataset.text, each.error_dataset)}
    return sorted(name for name in named if name and not is_template(name))


def prefix(settings: Settings) -> str:
    """The prefix of a check's name: the chosen warehouse, if there are several."""
    return f"{settings.warehouses[settings.chosen].name} " if len(settings.warehouses) > 1 else ""
