"""The columns that a change event adds to its row, named as Debezium's own unwrapping names them."""

from __future__ import annotations

from typing import Final

#: The kind of change: `c` create, `u` update, `d` delete, `r` read by a snapshot, `t` truncate.
OP: Final = "__op"
#: Whether the row no longer exists.
DELETED: Final = "__deleted"
#: The names of columns whose value the database did not send; they are null here, and must overwrite nothing.
UNAVAILABLE: Final = "__unavailable"
#: The event's source: connector, database, table, time, transaction, position in the log.
SOURCE: Final = "__source"
CHANGE_COLUMNS: Final = (OP, DELETED, UNAVAILABLE, SOURCE)

#: https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-toasted-values
PLACEHOLDER: Final = "__debezium_unavailable_value"

CREATE, UPDATE, DELETE, READ, TRUNCATE, MESSAGE = "c", "u", "d", "r", "t", "m"
#: Changes that have a row.
OF_ROWS: Final = frozenset({CREATE, UPDATE, DELETE, READ})
