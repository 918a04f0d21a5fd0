"""A tokenizer for SQL that tells words, texts, comments and quoted names apart.

A warehouse must never read a statement differently from KBQ's check. So the tokenizer refuses everything that two
parsers might read differently: nested comments, `$` in DuckDB, and unusual line ends.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from kbq_assets.core.errors import WrongOptions
from kbq_assets.core.statements.dialects import BIGQUERY, Dialect


class Token(NamedTuple):
    """A token of kind `word`, quoted `name`, `text`, or `symbol` (one character)."""

    kind: str
    text: str


#: https://cloud.google.com/bigquery/docs/reference/standard-sql/lexical: a backslash escapes, even in raw strings.
_BIGQUERY: Final = re.compile(
    r"""(?P<space>\s+|--[^\n]*|\#[^\n]*|/\*(?:(?!\*/|/\*).)*\*/)
    |(?P<text>(?:[rR][bB]?|[bB][rR]?)?(?:
        '''(?:[^\\]|\\.)*?'''|\"\"\"(?:[^\\]|\\.)*?\"\"\"
        |'(?!'')(?:[^'\\\n]|\\.)*'|"(?!"")(?:[^"\\\n]|\\.)*"))
    |(?P<name>`(?:[^`\\\n]|\\.)+`)
    |(?P<word>\w+)
    |(?P<symbol>[^'"`])""",
    re.VERBOSE | re.DOTALL,
)
#: https://duckdb.org/docs/stable/sql/data_types/literal_types.html: a quote is escaped by doubling it.
_DUCKDB: Final = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*(?:(?!\*/|/\*).)*\*/)
    |(?P<text>[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*')
    |(?P<name>"(?:[^"]|"")+")
    |(?P<word>\w+)
    |(?P<symbol>[^'"$])""",
    re.VERBOSE | re.DOTALL,
)
#: Characters that only some parsers treat as line ends, and invisible characters.
_AMBIGUOUS: Final = re.compile("\\r(?!\\n)|[\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f-\\x9f\\u2028\\u2029]")


def tokens_of(sql: str, dialect: Dialect) -> Iterator[Token]:
    """The tokens of a text, without spaces and comments. Raises WrongOptions if the text cannot be tokenized."""
    return (token for token, _ in _placed(sql, dialect))


def split(sql: str, dialect: Dialect) -> list[str]:
    """The nonempty statements of a text. Raises WrongOptions as `tokens_of`."""
    found, first, is_empty = list[str](), 0, True
    for token, at in _placed(sql, dialect):
        if token == Token("symbol", ";"):
            found += [] if is_empty else [sql[first:at].strip()]
            first, is_empty = at + 1, True
        else:
            is_empty = False
    return found if is_empty else [*found, sql[first:].strip()]


def _placed(sql: str, dialect: Dialect) -> Iterator[tuple[Token, int]]:
    if found := _AMBIGUOUS.search(sql):
        raise WrongOptions(
            f"sql: {dialect.name} cannot read it from {found.group()!r} on",
            next_step="remove this character",
        )
    pattern, at = _BIGQUERY if dialect is BIGQUERY else _DUCKDB, 0
    while at < len(sql):
        found = pattern.match(sql, at)
        is_open = found is not None and found.lastgroup == "symbol" and sql.startswith("/*", at)
        if found is None or is_open:
            raise WrongOptions(
                f"sql: {dialect.name} cannot read it from {sql[at : at + 20]!r} on",
                next_step="close all texts, names and comments; nested comments are not allowed, nor is $ in DuckDB",
            )
        if found.lastgroup != "space":
            yield Token(str(found.lastgroup), found.group()), at
        at = found.end()
