"""The roles of KBQ's parts, each with credentials of its own."""

from __future__ import annotations

from enum import StrEnum


class Role(StrEnum):
    """A role with its own credentials: `KBQ_EXTRACT_CREDENTIALS` or `KBQ_LOAD_CREDENTIALS`."""

    EXTRACT = "extract"
    LOAD = "load"
