"""The statement of `load: sql`: the user's own template.

    {{ table }}     the table, in SQL
    {{ batch }}     the scratch table with the batch's rows; it has the table's columns
    {{ columns }}   the table's columns, separated by commas

It runs in the transaction that advances the ledger (PROTOCOL S1). So it may only contain queries and DML. DDL, CALL and
scripts could end the transaction, or make changes that a rollback does not undo.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from kbq_assets.core.errors import WrongOptions
from kbq_assets.core.statements.dialects import BIGQUERY, DUCKDB, Dialect
from kbq_assets.core.statements.sql_tokens import Token, tokens_of
from kbq_assets.core.statements.table_statements import SCRATCH
from kbq_assets.core.statements.targets import Target

_ALLOWED: Final = ("DELETE", "INSERT", "MERGE", "SELECT", "UPDATE", "WITH")
_CHANGES: Final = frozenset({"DELETE", "INSERT", "MERGE", "UPDATE"})
_PLACEHOLDER: Final = re.compile(r"\{\{\s*(.*?)\s*\}\}")
_NAMES: Final = ("batch", "columns", "table")
#: KBQ's own names (see side_tables.py).
_OWN: Final = re.compile(r"_kbq_(ledger|batch|deleted)_|kbq_jobs", re.IGNORECASE)


def sql_text(target: Target) -> str:
    """The statement's text, with `SCRATCH` for the name of the scratch table. Raises WrongOptions if the target's
    warehouse would read anything but queries and DML."""
    check_sql(target.rule.sql, (target.dialect,))
    values = {"batch": SCRATCH, "columns": target.listed(), "table": target.name}
    return _PLACEHOLDER.sub(lambda found: values[found.group(1)], target.rule.sql)


def check_sql(template: str, dialects: Iterable[Dialect] = (BIGQUERY, DUCKDB)) -> None:
    """Raise WrongOptions unless a template is valid in at least one of the dialects."""
    names = _PLACEHOLDER.findall(template)
    for name in names:
        if name not in _NAMES:
            raise WrongOptions(f"sql: {{{{ {name} }}}} is unknown", next_step=f"one of {', '.join(_NAMES)}")
    for name, why in (("batch", "the batch's rows would be lost"), ("table", "it would change no row of it")):
        if name not in names:
            raise WrongOptions(f"sql: it lacks {{{{ {name} }}}}: {why}", next_step=f"use {{{{ {name} }}}}")
    problems = []
    for dialect in dialects:
        try:
            _check_statements(list(tokens_of(_PLACEHOLDER.sub(r"kbq_\1", template), dialect)))
            return
        except WrongOptions as error:
            problems.append(error)
    raise problems[0]


def _check_statements(tokens: list[Token]) -> None:
    verbs = []
    for statement in _split(tokens):
        first = next((token for token in statement if token.text != "("), statement[0])
        verbs.append(first.text.upper() if first.kind == "word" else first.text)
        if verbs[-1] not in _ALLOWED:
            raise WrongOptions(
                f"sql: a statement begins with {verbs[-1]}, which its transaction does not allow",
                next_step=f"use {', '.join(_ALLOWED[:-1])} or {_ALLOWED[-1]}; change tables by hand",
            )
    if not _CHANGES & {*verbs}:
        raise WrongOptions(
            "sql: it changes nothing", next_step="use INSERT, UPDATE, DELETE or MERGE on {{ table }}"
        )
    if own := [token.text for token in tokens if token.kind != "text" and _OWN.search(token.text)]:
        raise WrongOptions(f"sql: {own[0]} belongs to KBQ", next_step="leave it out")


def _split(tokens: list[Token]) -> list[list[Token]]:
    """The statements of a text."""
    found: list[list[Token]] = [[]]
    for token in tokens:
        if token == Token("symbol", ";"):
            found.append([])
        else:
            found[-1].append(token)
    return [statement for statement in found if statement]
