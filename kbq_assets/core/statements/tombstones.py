"""Recognizes staged tombstones."""

from __future__ import annotations

from typing import Final

from kbq_assets.core.avro import tree as avro
from kbq_assets.core.loading.table_notes import has_own_columns_alone
from kbq_assets.core.loading.tables import columns_of

#: The records that KBQ stages for null values, without and with decoded keys.
TOMBSTONE, KEYED_TOMBSTONE = "Tombstone", "kbq_key.Tombstone"
_NAMES: Final = (TOMBSTONE, KEYED_TOMBSTONE)


def are_tombstones(schema: str) -> bool:
    """Whether a staged schema is that of tombstones. A producer's record without fields has another name."""
    if not has_own_columns_alone(columns_of(schema)):
        return False
    root = avro.parse(avro.load_schema(schema))
    return isinstance(root, avro.RecordType) and root.name in _NAMES
