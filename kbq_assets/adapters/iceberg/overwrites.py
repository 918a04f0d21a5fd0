"""A snapshot that removes data files and adds others."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pyiceberg.exceptions import ValidationException
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, TableProperties, Transaction
from pyiceberg.utils.properties import property_as_bool

from kbq_assets.adapters.iceberg.manifests import manifests_of, require_whole


def replace_files(
    table: Table,
    transaction: Transaction,
    summary: Mapping[str, str],
    old: Collection[DataFile],
    added: Collection[DataFile],
) -> None:
    """Add a snapshot to a table's transaction. Raises ValidationException if the table does not have an ``old`` file,
    CorruptState if a file that the snapshot builds on was cut short.

    To find the old files, pyiceberg 0.12 reads manifests in threads. It skips those of other partitions with an
    evaluator that all threads share, although it is not thread-safe. So it can skip the manifest of an old file, and
    then raises ValidationException, as if the file were missing. The second attempt skips no manifest.
    """
    _check(table, is_rewritten=bool(old))
    if not old:
        with transaction.update_snapshot(dict(summary)).merge_append() as append:
            for file in added:
                append.append_data_file(file)
        return
    try:
        _overwrite(transaction, summary, old, added, every_manifest=False)
    except ValidationException:
        _overwrite(transaction, summary, old, added, every_manifest=True)


def _overwrite(
    transaction: Transaction,
    summary: Mapping[str, str],
    old: Collection[DataFile],
    added: Collection[DataFile],
    *,
    every_manifest: bool,
) -> None:
    with transaction.update_snapshot(dict(summary)).overwrite() as producer:
        if every_manifest:
            producer.delete_by_predicate(AlwaysTrue())  # selects manifests; files are removed by name
        for file in old:
            producer.delete_data_file(file)
        for file in added:
            producer.append_data_file(file)


def _check(table: Table, *, is_rewritten: bool) -> None:
    """Raise CorruptState if a snapshot would lose what a file lacks that was cut short: the list of manifests, or a
    manifest, if the snapshot has others instead."""
    merge, default = TableProperties.MANIFEST_MERGE_ENABLED, TableProperties.MANIFEST_MERGE_ENABLED_DEFAULT
    if is_rewritten or property_as_bool(table.properties, merge, default):
        require_whole(table)
    else:
        manifests_of(table, table.current_snapshot())
