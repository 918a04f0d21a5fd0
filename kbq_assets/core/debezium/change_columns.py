"""The columns that a change event adds to its row, with the names that Debezium's own unwrapping uses."""

from __future__ import annotations

from typing import Final

#: The kind of change: `c` create, `u` update, `d` delete, `r` read by a snapshot, `t` truncate.
OP: Final = "__op"
#: Whether the row no longer exists.
DELETED: Final = "__deleted"
#: Names of columns whose value the database did not send. They are null in the event, and must not overwrite anything.
UNAVAILABLE: Final = "__unavailable"
#: The event's source: connector, database, table, time, transaction, position in the log.
SOURCE: Final = "__source"
CHANGE_COLUMNS: Final = (OP, DELETED, UNAVAILABLE, SOURCE)

#: https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-toasted-values
PLACEHOLDER: Final = "__debezium_unavailable_value"

CREATE, UPDATE, DELETE, READ, TRUNCATE, MESSAGE = "c", "u", "d", "r", "t", "m"
#: Kinds of changes that have a row.
OF_ROWS: Final = frozenset({CREATE, UPDATE, DELETE, READ})
