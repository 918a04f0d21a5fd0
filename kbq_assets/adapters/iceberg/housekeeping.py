"""Expires old snapshots, and deletes files that no snapshot needs any more.

Iceberg's own properties set the limits: ``history.expire.max-snapshot-age-ms`` (5 days) and
``history.expire.min-snapshots-to-keep``. Branches and tags keep their snapshots.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Final

from pyarrow import fs
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestEntryStatus, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from kbq_assets.adapters.iceberg import job_records
from kbq_assets.adapters.iceberg.manifests import entries_of, manifests_of
from kbq_assets.core.errors import ConfigurationError

#: Number of snapshots to expire at a time, since each expiry is a commit.
BATCH: Final = 20
GRACE: Final = timedelta(days=3)
MAX_AGE, MIN_SNAPSHOTS = "history.expire.max-snapshot-age-ms", "history.expire.min-snapshots-to-keep"
DEFAULT_AGE: Final = timedelta(days=5)
_MILLISECOND: Final = timedelta(milliseconds=1)
#: The name of a job's data file or of its list of sources: job id, then the attempt's token.
_OWN: Final = re.compile(r"(?:(?P<data>.+)-[0-9a-f]{12}-\d{5,}\.parquet|kbq-(?P<list>.+)-[0-9a-f]{12}\.json)")

#: The name of a manifest or manifest list in Iceberg's libraries. A failed commit leaves some, which contain the
#: minimum and maximum of columns.
_MANIFEST: Final = re.compile(r"(?:[0-9a-f-]{36}-m\d+|snap-\d+-\d+-[0-9a-f-]{36})\.avro")


def keep_house(table: Table, *, batch: int = BATCH, now_ms: int | None = None) -> bool:
    """Expire old snapshots if there are at least ``batch``, then delete orphans. Returns whether there were enough.

    Raises the errors of the catalog and the file system. No job depends on this.
    """
    now = int(time.time() * 1000) if now_ms is None else now_ms
    expired = expirable(table, now)
    if len(expired) < batch:
        return False
    before = set(_manifests(table, expired))
    lists = [snapshot.manifest_list for snapshot in expired]
    with table.maintenance.expire_snapshots() as expiry:
        expiry.by_ids([snapshot.snapshot_id for snapshot in expired])
    table.refresh()
    _delete_unneeded(table, lists, before)
    delete_orphans(table, now)
    return True


def expirable(table: Table, now_ms: int) -> list[Snapshot]:
    """Snapshots that exceed both the table's maximum age and its minimum number, oldest first."""
    age = max_age_ms(table)
    least = max(1, _number(table, MIN_SNAPSHOTS, 1))
    kept = {reference.snapshot_id for reference in table.metadata.refs.values()}
    ordered = sorted(table.snapshots(), key=lambda snapshot: snapshot.timestamp_ms)
    return [s for s in ordered[:-least] if s.timestamp_ms < now_ms - age and s.snapshot_id not in kept]


def max_age_ms(table: Table) -> int:
    """The age at which a table's snapshots expire. Raises ConfigurationError if its property is not a number."""
    return _number(table, MAX_AGE, DEFAULT_AGE // _MILLISECOND)


def _number(table: Table, name: str, default: int) -> int:
    text = table.properties.get(name, str(default))
    try:
        return int(text)
    except ValueError:
        raise ConfigurationError(
            f"the property {name} of {'.'.join(table.name())} is not a number: {text[:50]}",
            next_step="set it to a whole number, or remove it",
        ) from None


def _manifests(table: Table, snapshots: Iterable[Snapshot]) -> Iterator[ManifestFile]:
    for snapshot in snapshots:
        yield from manifests_of(table, snapshot)


def _delete_unneeded(table: Table, lists: Iterable[str], before: set[ManifestFile]) -> None:
    """Delete the manifest lists of expired snapshots, and manifests and data files that only they referred to."""
    remaining = {manifest.manifest_path: manifest for manifest in _manifests(table, table.snapshots())}
    gone = [manifest for manifest in before if manifest.manifest_path not in remaining]
    if gone:
        needed = _data_files(table, remaining.values())
        for path in sorted(_data_files(table, gone) - needed):
            _delete(table, path)
    for path in [*(manifest.manifest_path for manifest in gone), *lists]:
        _delete(table, path)


def _data_files(table: Table, manifests: Iterable[ManifestFile]) -> set[str]:
    return {
        entry.data_file.file_path
        for manifest in manifests
        for entry in entries_of(table, manifest)
        if entry.status != ManifestEntryStatus.DELETED
    }


def delete_orphans(table: Table, now_ms: int) -> list[str]:
    """Delete KBQ's files that no snapshot lists, if they are older than the grace period and belong to a job that has
    ended. Also delete the manifests of failed commits. Returns the deleted paths.

    The files are listed first. If a file is committed after that, it is in the metadata that is read next.
    """
    if not isinstance(table.io, PyArrowFileIO):
        return []
    until_ms = now_ms - GRACE // _MILLISECOND
    found = [path for path, modified_ms in _own_files(table, table.io) if modified_ms < until_ms]
    if not found:
        return []
    table.refresh()
    manifests = {each.manifest_path: each for each in _manifests(table, table.snapshots())}
    needed = _data_files(table, manifests.values()) | job_records.source_lists(table.properties)
    needed |= manifests.keys() | {snapshot.manifest_list for snapshot in table.snapshots()}
    orphans = [path for path in found if path not in needed and _has_ended(table, path)]
    for path in orphans:
        _delete(table, path)
    return orphans


def delete_table(catalog: Catalog, table: Table) -> None:
    """Delete a table that KBQ created for itself. Its files are deleted first, except the metadata to which the catalog
    refers. So an interrupted deletion can be repeated, and leaves no unreachable files."""
    identifier, last = table.name(), table.metadata_location
    if not isinstance(table.io, PyArrowFileIO):
        catalog.purge_table(identifier)
        return
    for path, _ in _files(table, table.io):
        if path != last:
            _delete(table, path)
    with contextlib.suppress(NoSuchTableError):  # another process was faster
        catalog.drop_table(identifier)
    _delete(table, last)


def _own_files(table: Table, io: PyArrowFileIO) -> Iterator[tuple[str, int]]:
    """Paths and modification times of the files that KBQ or its library wrote, judged by their names."""
    for path, modified_ms in _files(table, io):
        name = path.rpartition("/")[2]
        if _OWN.fullmatch(name) or _MANIFEST.fullmatch(name):
            yield path, modified_ms


def _files(table: Table, io: PyArrowFileIO) -> Iterator[tuple[str, int]]:
    """Paths and modification times of all files below the table's location."""
    location = table.location().rstrip("/")
    scheme, netloc, root = io.parse_location(location)
    selector = fs.FileSelector(root, recursive=True, allow_not_found=True)
    for each in io.fs_by_scheme(scheme, netloc).get_file_info(selector):
        if each.is_file and each.mtime is not None:
            yield location + each.path.removeprefix(root), int(each.mtime.timestamp() * 1000)


def _has_ended(table: Table, path: str) -> bool:
    match = _OWN.fullmatch(path.rpartition("/")[2])
    if match is None:
        return True  # a manifest
    return job_records.find(table.properties, match["data"] or match["list"]) is not None


def _delete(table: Table, path: str) -> None:
    with contextlib.suppress(OSError):  # already gone, or deleted later as an orphan
        table.io.delete(path)
