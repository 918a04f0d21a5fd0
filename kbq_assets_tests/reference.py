"""The parts of the documents that come from declarations: `make reference` writes them, a test compares them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from kbq_assets.core.catalog.validation import json_schema
from kbq_assets.core.config.settings import VARIABLES
from kbq_assets.core.topics.declaration import Option
from kbq_assets.core.topics.topic_settings import OPTIONS

DOCS = Path(__file__).parents[1] / "docs"
CONFIGURATION = DOCS / "configuration.md"
SCHEMA = DOCS / "catalog.schema.json"


def references() -> Iterator[tuple[Path, str]]:
    """Every document with generated parts, and the text that it should have."""
    text = CONFIGURATION.read_text(encoding="utf-8")
    variables = ((f"`{name}`", each.meaning) for name, each in VARIABLES.items())
    text = _with_table(text, "| variable | meaning (default) |", variables)
    options = ((f"`{name}`", _default(each), each.help) for name, each in OPTIONS.items())
    yield CONFIGURATION, _with_table(text, "| option | default | meaning |", options)
    yield SCHEMA, json.dumps(json_schema(), indent=2) + "\n"


def _default(option: Option) -> str:
    return option.shown_default or (f"`{option.default}`" if option.default else "none")


def _with_table(text: str, header: str, rows: Iterable[tuple[str, ...]]) -> str:
    """The document with new rows in its table of this header."""
    table = re.compile(rf"(?m)^{re.escape(header)}\n(\|[-|]+\|\n)(\|.*\n)+")
    cells = ([cell.replace("|", "\\|") for cell in row] for row in rows)
    lines = "".join(f"| {' | '.join(row)} |\n" for row in cells)
    found, count = table.subn(lambda match: f"{header}\n{match[1]}{lines}", text)
    assert count == 1, f"{count} tables {header}"
    return found


if __name__ == "__main__":
    from kbq_assets_tests.mutants import PAGE, page  # they load the simulator

    for path, text in (*references(), (PAGE, page())):
        path.write_text(text, encoding="utf-8")
