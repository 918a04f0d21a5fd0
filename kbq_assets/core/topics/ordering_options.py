"""The options for loading a topic in order."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.topics.declaration import option
from kbq_assets.core.topics.option_types import TEXT, OptionType, choice

#: Rows are in order only within each schema.
NONE: Final = "none"
OFFSET: Final = "offset"
#: The same, and an hour's rows load only after all partitions have passed the previous hours.
HOUR: Final = "hour"
#: Treatments of a batch with rows of a complete hour.
APPLY: Final = "apply"
PARK: Final = "park"
#: Or of these rows alone: they go to another table, whose name has this suffix.
TABLE: Final = "table"
LATE_SUFFIX: Final = "_late"
#: Gates: a person who runs `kbq order continue`, or a query that returns bad rows.
PERSON: Final = "person"
SQL: Final = "sql"
#: Prefix of a gate that is an asset check in the orchestrator: `check:orders_are_whole`.
CHECK: Final = "check:"
_CHECK_GATE: Final = re.compile(CHECK + r"[A-Za-z0-9_]{1,100}")
_MARKER: Final = re.compile(r"[A-Za-z0-9_.-]{1,100}")


def _gates(name: str, text: str) -> tuple[str, ...]:
    found = tuple(text.split(",")) if text else ()
    known = all(gate in (PERSON, SQL) or _CHECK_GATE.fullmatch(gate) for gate in found)
    if len(set(found)) != len(found) or not known:
        raise ConfigurationError(
            f"{name}={text}", next_step=f"{name}={SQL}, {PERSON}, {CHECK}<name>, or several of them"
        )
    return found


def _marker(name: str, text: str) -> str:
    if text and not _MARKER.fullmatch(text):
        raise ConfigurationError(f"{name}={text}", next_step="letters, digits, '_', '.' and '-', at most 100")
    return text


@dataclass(frozen=True)
class OrderingOptions:
    """The order in which batches of the topic's tables are loaded."""

    order: str = option(
        NONE,
        choice(NONE, OFFSET, HOUR),
        "`offset`: rows of a partition become visible [in offset order](ordered.md) whatever their schemas, and a "
        "failed batch stops its table; `hour`: the same, and an hour's rows load only [after all partitions have "
        "passed the previous hours](ordered.md#by-hour-of-business-time); `none`: in offset order per schema id",
        place="loading.order",
    )
    gate: tuple[str, ...] = option(
        "",
        OptionType("strings", _gates),
        "with an order: conditions that must hold [before the next batch](ordered.md#gates), such as `sql,person`: "
        "`sql`: `gate_sql` returns no row; `check:<name>`: your own asset check of the table passes in Dagster; "
        "`person`: somebody runs `kbq order continue`",
        shown_default="none",
        place="loading.gate",
    )
    gate_sql: str = option(
        "",
        TEXT,
        "the query of `gate=sql`, in a catalog entry or in a file `gate.sql` next to it; every row that it returns "
        "is a problem; `{{ table }}` is the table",
        place="loading.gate_sql",
    )
    hold_until: str = option(
        "",
        OptionType("string", _marker),
        "with an order: no batch starts until the object `markers/<name>` is in the staging area [or somebody "
        "releases the table](ordered.md#hold-a-table)",
        place="loading.hold_until",
    )

    late_rows: str = option(
        APPLY,
        choice(APPLY, PARK, TABLE),
        "with `order=hour`: rows of an hour that is already complete are loaded and counted (`apply`), stop the "
        "table before their batch [until somebody lets them in](ordered.md#by-hour-of-business-time) (`park`), or go "
        "to the table `<table>_late` (`table`)",
        place="loading.late_rows",
    )

    def __post_init__(self) -> None:
        if self.late_rows != APPLY and self.order != HOUR:
            raise ConfigurationError(
                f"late_rows={self.late_rows}: without order=hour no row is late", next_step="order=hour"
            )
        if self.order == NONE and (self.gate or self.hold_until):
            name = "gate" if self.gate else "hold_until"
            raise ConfigurationError(
                f"{name}: a table without an order has no batches", next_step="order=offset"
            )
        if (SQL in self.gate) != bool(self.gate_sql):
            raise ConfigurationError(
                "gate=sql and gate_sql need each other", next_step="set both, or neither"
            )


def is_late_table(table: TableReference, ordering: Iterable[OrderingOptions]) -> bool:
    """Whether a table is for the late rows of another one, by the options of its topics."""
    return table.table.endswith(LATE_SUFFIX) and any(each.late_rows == TABLE for each in ordering)
