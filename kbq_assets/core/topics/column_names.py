"""Column names in snake_case, for topics with `column_names=snake_case`: `orderId` becomes `order_id`."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from kbq_assets.core.loading.table_notes import OWN_COLUMNS

AS_WRITTEN: Final = "schema"
SNAKE_CASE: Final = "snake_case"

#: Names from the record down to a field.
Path: TypeAlias = tuple[str, ...]

_WORD_BEGINS: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def snake_case(name: str) -> str:
    """A name in snake_case. Keeps underscores, because KBQ's own columns begin with them."""
    return _WORD_BEGINS.sub("_", name).lower()


def compared(name: str, style: str) -> str:
    """The form in which the columns of one record must differ, in a table with a style of column names."""
    return snake_case(name) if style == SNAKE_CASE else name.lower()


def snake_case_names(paths: Iterable[Path]) -> Mapping[Path, str]:
    """The fields to rename, and their new names. If fields of one record would get the same name, they keep their
    own."""
    records: dict[Path, set[str]] = defaultdict(set)
    for path in paths:
        records[path[:-1]].add(path[-1])
    found: dict[Path, str] = {}
    for above, names in records.items():
        count = Counter(snake_case(name) for name in names)
        # A name is not taken if another field of the record already has it.
        new = {name: snake_case(name) for name in names if count[snake_case(name)] == 1}
        found |= {(*above, name): other for name, other in new.items() if other != name}
    return found


def row_columns(fields: Iterable[str], style: str) -> Mapping[str, str]:
    """The fields of a row that get other column names, in a table that also has KBQ's own columns."""
    if style != SNAKE_CASE:
        return {}
    names = snake_case_names((name,) for name in {*fields, *OWN_COLUMNS})
    return {path[0]: name for path, name in names.items()}


def snake_case_path(path: Path, names: Mapping[Path, str]) -> Path:
    return tuple(names.get(path[: depth + 1], name) for depth, name in enumerate(path))
