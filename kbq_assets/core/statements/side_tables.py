"""Names of the tables that a statement needs next to its target. They do not count as tables of records.

_kbq_batch_<job id>_<target>    the scratch table of a batch, named after the load job that fills it (S3)
_kbq_ledger_<target>            the last batch that was applied (S1)
_kbq_deleted_<target>           keys that were deleted, and the record that deleted each
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from kbq_assets.core.protocol.names import TableReference

#: The prefix of scratch tables. No other table has it.
SCRATCH_PREFIX: Final = "_kbq_batch_"
_LEDGER_PREFIX: Final = "_kbq_ledger_"
_DELETED_PREFIX: Final = "_kbq_deleted_"
#: The longest name of a table (core/protocol/names.py).
_LONGEST: Final = 200


def scratch_table(target: TableReference, job_id: str) -> TableReference:
    """The scratch table for a load job of ``target``."""
    return TableReference(target.dataset, f"{SCRATCH_PREFIX}{job_id.removeprefix('kbq-').replace('-', '_')}")


def scratch_number(name: str, uuid: str) -> int | None:
    """The sequence number in the name of a table's scratch table; None for other names."""
    prefix = f"{SCRATCH_PREFIX}{uuid}_"
    number = name.removeprefix(prefix)
    return int(number) if name.startswith(prefix) and number.isdecimal() else None


def ledger_table(target: TableReference) -> TableReference:
    """The ledger of a target. Each target has its own ledger table, because BigQuery aborts concurrent transactions
    that change the same table, whatever the rows."""
    return _companion(target, _LEDGER_PREFIX)


def deleted_table(target: TableReference) -> TableReference:
    """The table with a target's deleted keys."""
    return _companion(target, _DELETED_PREFIX)


def _companion(target: TableReference, prefix: str) -> TableReference:
    name = prefix + target.table
    if len(name) > _LONGEST:  # keep names distinct
        digest = blake2b(target.table.encode(), digest_size=8).hexdigest()
        name = f"{name[: _LONGEST - len(digest) - 1]}_{digest}"
    return TableReference(target.dataset, name)
