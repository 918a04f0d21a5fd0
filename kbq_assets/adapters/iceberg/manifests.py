"""Reads manifests and their lists completely.

If a file was cut short, for example by a power failure, pyiceberg takes it for one with fewer entries, or none. A
commit on it would lose the other files' rows, and clean-up would delete these files.
"""

from __future__ import annotations

from typing import Final

from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.manifest import ManifestEntry, ManifestFile
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.snapshots import Snapshot

from kbq_assets.core.errors import CorruptState

#: Numbers in a snapshot's summary. Each file that they count is in a manifest.
_TOTALS: Final = ("total-data-files", "total-delete-files")
_ALL: Final = AlwaysTrue()


def manifests_of(table: Table, snapshot: Snapshot | None) -> tuple[ManifestFile, ...]:
    """A snapshot's manifests. Raises CorruptState if their list was cut short."""
    if snapshot is None:
        return ()
    found = tuple(snapshot.manifests(table.io))
    summary = snapshot.summary.additional_properties if snapshot.summary else {}
    # pyiceberg writes a list as one block, so a list that was cut short has no entry.
    if not found and any(summary.get(name, "0") != "0" for name in _TOTALS):
        raise _cut(table, snapshot.manifest_list)
    return found


def entries_of(table: Table, manifest: ManifestFile) -> list[ManifestEntry]:
    """All entries of a manifest, those of deleted files too. Raises CorruptState if it was cut short."""
    found = manifest.fetch_manifest_entry(table.io, discard_deleted=False)
    counts = manifest.added_files_count, manifest.existing_files_count, manifest.deleted_files_count
    if len(found) < sum(count or 0 for count in counts):
        raise _cut(table, manifest.manifest_path)
    return found


def require_whole(table: Table) -> None:
    """Raise CorruptState if a manifest of the current snapshot, or their list, was cut short."""
    for manifest in manifests_of(table, table.current_snapshot()):
        entries_of(table, manifest)


def planned(table: Table, rows: BooleanExpression = _ALL) -> list[FileScanTask]:
    """The data files that may have certain rows. Raises CorruptState."""
    require_whole(table)
    return list(table.scan(rows).plan_files())


def _cut(table: Table, path: str) -> CorruptState:
    return CorruptState(
        f"{path} of {'.'.join(table.name())} was cut short: it lists fewer files than it had",
        next_step="restore this file, or point the catalog to the last good metadata file (docs/iceberg.md)",
    )
