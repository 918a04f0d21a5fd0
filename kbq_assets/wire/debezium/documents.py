"""Change events in JSON without a schema: documents with the row and the columns that describe the change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kbq_assets.core.debezium.change_columns import (
    CHANGE_COLUMNS,
    DELETE,
    DELETED,
    MESSAGE,
    OF_ROWS,
    OP,
    SOURCE,
    TRUNCATE,
    UNAVAILABLE,
)
from kbq_assets.wire.debezium.envelope import NamesOf, NoRow, as_written
from kbq_assets.wire.debezium.placeholders import IN_JSON
from kbq_assets.wire.records.reasons import Reason


def document_row(document: Any, *, has_order: bool, names_of: NamesOf = as_written) -> Any:
    """The row of a change event. Other documents are returned unchanged. The list of unavailable columns has the names
    that ``names_of`` returns. Raises NoRow."""
    if not _is_event(document):
        return document
    op = document["op"]
    if op == MESSAGE:
        raise NoRow(Reason.NO_CHANGE)
    if op == TRUNCATE and not has_order:
        raise NoRow(Reason.TABLE_TRUNCATED)
    if op != TRUNCATE and op not in OF_ROWS:
        raise NoRow(Reason.INVALID_CHANGE, f"{Reason.INVALID_CHANGE.message}: op={op[:20]!r}")
    row = {} if op == TRUNCATE else _row(document, op)
    if taken := [key for key in row if key.lower() in CHANGE_COLUMNS]:
        raise NoRow(
            Reason.INVALID_CHANGE,
            f"{Reason.INVALID_CHANGE.message}: the column {taken[0]!r} collides with the change's own",
        )
    missing = [key for key, value in row.items() if value in IN_JSON]
    kept = {key: value for key, value in row.items() if key not in missing}
    names = names_of(row) if missing else {}
    unavailable = {UNAVAILABLE: [names.get(key, key) for key in missing]} if missing else {}
    change = {OP: op, DELETED: op == DELETE, **unavailable}
    return {**kept, **change, SOURCE: document["source"]}


def _is_event(document: Any) -> bool:
    return (
        isinstance(document, dict)
        and isinstance(document.get("op"), str)
        and isinstance(document.get("source"), dict)
        and "connector" in document["source"]
    )


def _row(document: Mapping[str, Any], op: str) -> Mapping[str, Any]:
    part = "before" if op == DELETE else "after"
    row = document.get(part)
    if row is None and op == DELETE:
        return {}  # only the key identifies the deleted row
    if not isinstance(row, dict):
        raise NoRow(
            Reason.INVALID_CHANGE, f"{Reason.INVALID_CHANGE.message}: op={op}, without a row in {part}"
        )
    return row
