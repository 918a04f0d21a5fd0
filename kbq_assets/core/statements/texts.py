"""Texts of all kinds of statements except upserts (upsert.py), which depend on their batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from kbq_assets.core.statements.insert_new import insert_new_sql
from kbq_assets.core.statements.rules import DELETE_INSERT, INSERT_NEW, SCD2, SNAPSHOT, SQL
from kbq_assets.core.statements.scd2 import history_sql
from kbq_assets.core.statements.targets import Target
from kbq_assets.core.statements.templates import sql_text
from kbq_assets.core.statements.versions import versions_sql

_TEXTS: Final[Mapping[str, Callable[[Target], str]]] = {
    INSERT_NEW: insert_new_sql,
    DELETE_INSERT: versions_sql,
    SNAPSHOT: versions_sql,
    SQL: sql_text,
    SCD2: history_sql,
}


def text_of(target: Target) -> str:
    """The statement's text, with `SCRATCH` for the name of the scratch table. Raises WrongOptions for SQL that is not
    allowed."""
    return _TEXTS[target.rule.kind](target)
