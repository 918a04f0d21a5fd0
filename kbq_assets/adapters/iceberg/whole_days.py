"""Files with all hours and schema versions of a day, in addition to files by hour (PROTOCOL C9).

Iceberg allows files with different partition specs in one table. The coarse spec is the table's spec without hours and
schema versions. It is never the default, so load jobs continue to write files by hour."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AssertLastAssignedPartitionId,
    SetDefaultSpecUpdate,
    UpdatesAndRequirements,
    UpdateTableMetadata,
)
from pyiceberg.transforms import HourTransform

from kbq_assets.adapters.iceberg.overwrites import replace_files
from kbq_assets.adapters.iceberg.schema import SCHEMA_VERSION
from kbq_assets.core.compaction.model import Rewritten

_FINE: Final = (SCHEMA_VERSION,)


def coarse_spec(metadata: TableMetadata) -> PartitionSpec | None:
    """A table's coarse spec, with the id that it has or would get. None if the table has no partitions by day or month,
    none that are finer, or others too."""
    own = metadata.spec().fields
    kept = [each for each in own if each.name not in _FINE and not isinstance(each.transform, HourTransform)]
    if len(kept) != 1 or len(own) == 1:
        return None
    wanted = PartitionSpec(*kept, spec_id=max(metadata.specs()) + 1)
    return next((each for each in metadata.specs().values() if each.fields == wanted.fields), wanted)


def add_coarse_spec(table: Table) -> None:
    """Add the coarse spec to a table in a separate commit, which does not move its main branch. Raises
    CommitFailedException."""
    spec = coarse_spec(table.metadata)
    if spec is not None and spec.spec_id not in table.specs():
        with table.transaction() as transaction, _AddSpec(transaction, spec):
            pass


def replace(
    table: Table,
    transaction: Transaction,
    summary: Mapping[str, str],
    old: Iterable[DataFile],
    results: Sequence[Rewritten],
    added: Sequence[DataFile] = (),
) -> None:
    """Remove the ``old`` files. Add the files of ``results`` that have rows, and the ``added`` files, which have the
    table's default spec. Takes one commit, with one snapshot per spec."""
    own = table.metadata.default_spec_id
    coarse = [each for each in results if each.task.group.coarse]
    fine = [each for each in results if not each.task.group.coarse]
    joined = {path for each in coarse for path in each.task.group.paths}
    removed = list(old)
    if fine or added or not coarse:
        rest = [file for file in removed if file.file_path not in joined]
        _snapshot(table, transaction, summary, rest, fine, added)
    if coarse:
        spec = coarse_spec(table.metadata)
        assert spec is not None
        with _UseSpec(transaction, spec.spec_id):
            pass
        own_files = [file for file in removed if file.file_path in joined]
        _snapshot(table, transaction, summary, own_files, coarse)
        with _UseSpec(transaction, own):
            pass


def _snapshot(
    table: Table,
    transaction: Transaction,
    summary: Mapping[str, str],
    old: Iterable[DataFile],
    results: Iterable[Rewritten],
    added: Iterable[DataFile] = (),
) -> None:
    metadata = transaction.table_metadata
    rewritten = [
        parquet_file_to_data_file(table.io, metadata, each.path) for each in results if each.after.rows
    ]
    replace_files(table, transaction, summary, list(old), [*rewritten, *added])


class _AddSpec(UpdateTableMetadata["_AddSpec"]):
    def __init__(self, transaction: Transaction, spec: PartitionSpec) -> None:
        super().__init__(transaction)
        self._spec = spec

    def _commit(self) -> UpdatesAndRequirements:
        last = self._transaction.table_metadata.last_partition_id
        return (
            (AddPartitionSpecUpdate(spec=self._spec),),
            (AssertLastAssignedPartitionId.model_validate({"last-assigned-partition-id": last}),),
        )


class _UseSpec(UpdateTableMetadata["_UseSpec"]):
    """Makes a spec apply to the files that are added next in a transaction."""

    def __init__(self, transaction: Transaction, spec_id: int) -> None:
        super().__init__(transaction)
        self._spec_id = spec_id

    def _commit(self) -> UpdatesAndRequirements:
        return (SetDefaultSpecUpdate.model_validate({"spec-id": self._spec_id}),), ()
