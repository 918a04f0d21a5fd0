"""Source files as syntax trees, for tests of the architecture."""

from __future__ import annotations

import ast
import gc
from pathlib import Path


def parse_source(path: Path) -> ast.Module:
    """The syntax tree of a file.

    The garbage collector pauses: a finalizer that logs a traceback parses source lines, and CPython 3.11.7 fails if one
    parse runs inside another (gh-106905).
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    finally:
        if was_on:
            gc.enable()
