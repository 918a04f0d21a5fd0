"""The structure of a change event: an envelope around the row before and after the change."""

from __future__ import annotations

from kbq_assets.core.avro import tree as avro


def is_envelope(root: avro.AvroType) -> bool:
    """Whether a schema is of change events, which have an operation and a source with a connector."""
    if not isinstance(root, avro.RecordType) or not {"op", "source"} <= root.fields.keys():
        return False
    source = record_of(root.fields["source"].type)
    return source is not None and "connector" in source.fields and _is_text(root.fields["op"].type)


def _is_text(node: avro.AvroType) -> bool:
    """Whether a type is a string, or a union of one and null."""
    branches = node.branches if isinstance(node, avro.Union) else (node,)
    return {avro.branch_name(each) for each in branches} - {"null"} == {"string"}


def record_of(node: avro.AvroType) -> avro.RecordType | None:
    """The record type of a record, or of a union of one record and null; None for other types."""
    branches = node.branches if isinstance(node, avro.Union) else (node,)
    others = [each for each in branches if not avro.is_null(each)]
    return others[0] if len(others) == 1 and isinstance(others[0], avro.RecordType) else None
