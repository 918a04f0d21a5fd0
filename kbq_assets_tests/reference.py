"""The tables of the documents that come from declarations: `make reference` writes them, a test compares them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from kbq_assets.core.config.settings import VARIABLES

DOCS = Path(__file__).parents[1] / "docs"
CONFIGURATION = DOCS / "configuration.md"


def references() -> Iterator[tuple[Path, str]]:
    """Every document with generated parts, and the text that it should have."""
    text = CONFIGURATION.read_text(encoding="utf-8")
    rows = ((f"`{name}`", each.meaning) for name, each in VARIABLES.items())
    yield CONFIGURATION, _with_table(text, "| variable | meaning (default) |", rows)


def _with_table(text: str, header: str, rows: Iterable[tuple[str, ...]]) -> str:
    """The document with new rows in its table of this header."""
    table = re.compile(rf"(?m)^{re.escape(header)}\n(\|[-|]+\|\n)(\|.*\n)+")
    lines = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    found, count = table.subn(lambda match: f"{header}\n{match[1]}{lines}", text)
    assert count == 1, f"{count} tables {header}"
    return found


if __name__ == "__main__":
    for path, text in references():
        path.write_text(text, encoding="utf-8")
