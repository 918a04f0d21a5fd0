"""Formats an exploration with names instead of tuples."""

from __future__ import annotations

from typing import Any

from kbq_assets_tests.model.engine import Exploration, Label
from kbq_assets_tests.model.world import FIRST_NONCE, Commit, Scope, TableState, World


def format_trace(scope: Scope, exploration: Exploration[World]) -> str:
    """One numbered line per step of the way to the violation."""
    lines = (f"{i:6}. {format_label(scope, label)}" for i, label in enumerate(exploration.trace, 1))
    return "\n".join(lines)


def format_label(scope: Scope, label: Label) -> str:
    """A step, with files as `epoch/attempt/table.schema[first,until)`."""
    return " ".join(_format(scope, part) for part in label)


def _format(scope: Scope, part: Any) -> str:
    if isinstance(part, Commit):
        return f"commit(epoch {part.epoch}, next {part.next}, pending {_format(scope, part.pending)})"
    if isinstance(part, TableState):
        return f"state(marks {part.marks}, job {_format(scope, part.entry)}, parked {part.parked})"
    if not isinstance(part, tuple):
        return str(part - FIRST_NONCE if type(part) is int and part >= FIRST_NONCE else part)
    if len(part) == 6 and all(type(item) is int for item in part):
        epoch, first, table, schema, attempt, until = part
        return f"{epoch}/{attempt - FIRST_NONCE}/{scope.tables[table]}.{schema}[{first},{until})"
    if part and part[0] == "job":
        return f"job {scope.tables[part[1]]}-{part[2]}"
    return "(" + ", ".join(_format(scope, item) for item in part) + ")"
