"""A table's statements in its state (PROTOCOL, Statements)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from kbq_assets.core.protocol.codec import Stored
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.statements.load_switch import LoadSwitch
from kbq_assets.core.statements.rules import APPEND, StatementRule
from kbq_assets.core.statements.side_tables import scratch_table

#: Placeholder for the scratch table's name in a text that is rendered before its load job has an id.
SCRATCH: Final = "{{ batch }}"


@dataclass(frozen=True)
class BatchStatement(Stored):
    """The statement of the batch in flight. While ``loaded_by`` is "", the load job is in flight; then the statement
    is."""

    #: the batch's number in the ledger
    number: int
    rule: StatementRule
    #: the SQL, with `SCRATCH` for the name of the scratch table
    text: str
    #: id of the load job that filled the scratch table; "" while it is in flight
    loaded_by: str = ""
    #: rows that the load job loaded
    rows: int = 0

    def scratch(self, target: TableReference, job_id: str) -> TableReference:
        """The scratch table, of the load job in flight or of the previous one."""
        return scratch_table(target, self.loaded_by or job_id)

    def sql(self, scratch: str) -> str:
        return self.text.replace(SCRATCH, scratch)


@dataclass(frozen=True)
class TableStatements(Stored):
    """The statements of a table so far."""

    #: the rule by which the table's rows were written
    rule: StatementRule = field(default_factory=StatementRule)
    #: the last batch in the ledger, as far as this state knows
    applied: int = 0
    #: rows of batches that an operator skipped
    skipped_rows: int = 0
    #: bytes billed for the last statement, and for all
    billed: int = 0
    billed_in_all: int = 0
    #: the last day, since 1970, on which a statement was billed, and the bytes of that day
    day: int = 0
    billed_that_day: int = 0
    #: whether rows were appended since the last statement; None: an earlier release did not record it
    appended: bool | None = None
    #: the last change of `load`
    switch: LoadSwitch | None = None

    @property
    def kind(self) -> str:
        """The `load` of the last batch, as far as this state knows."""
        return APPEND if self.appended else self.rule.kind

    @property
    def converts(self) -> bool:
        """Whether the next statement must convert appended rows."""
        return self.rule.appends or bool(self.appended)

    def billed_on(self, day: int) -> int:
        """The bytes billed on a day, which must be the last billed day or later."""
        return self.billed_that_day if day <= self.day else 0


def digest_of(sql: str) -> str:
    return blake2b(sql.encode(), digest_size=16).hexdigest()


def applied(
    known: TableStatements, done: BatchStatement, *, skipped: bool, rows: int, billed: int, day: int = 0
) -> TableStatements:
    """The statements after a batch that is in the ledger. ``day`` is when it was billed."""
    return dataclasses.replace(
        known,
        # A skipped batch did not convert the table's rows.
        rule=known.rule if skipped and known.rule.appends else done.rule,
        applied=done.number,
        skipped_rows=known.skipped_rows + (rows if skipped else 0),
        billed=billed,
        billed_in_all=known.billed_in_all + billed,
        day=max(day, known.day),
        billed_that_day=known.billed_on(day) + billed,
        appended=known.appended if skipped else False,
        switch=known.switch if skipped else _taken(known.switch, done.rule.kind),
    )


def after_append(known: TableStatements) -> TableStatements:
    """The statements after an appended batch. A table without statements stays without, even if a change to one waits,
    because the change may be reverted."""
    appended = None if known.rule.appends else True
    return dataclasses.replace(known, appended=appended, switch=_taken(known.switch, APPEND))


def _taken(switch: LoadSwitch | None, kind: str) -> LoadSwitch | None:
    """The change of `load`, marked as taken if a batch of ``kind`` is the first one under it."""
    is_new = switch is not None and switch.after.kind == kind
    return dataclasses.replace(switch, taken=True) if switch is not None and is_new else switch


def excess(wanted: int, used: int, limit: int) -> str:
    """Why a statement that bills ``wanted`` bytes exceeds the daily limit; "" if it does not. 0 means no limit."""
    if not limit or used + wanted <= limit:
        return ""
    today = f"{used:,} were billed today, and " if used else ""
    text = f"its statement would be billed {wanted:,} bytes; {today}bytes_per_day={limit:,}"
    return f"{text}: it never fits" if wanted > limit else text
