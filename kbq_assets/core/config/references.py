"""References to secrets: what settings hold in a secret's place, resolved where it is used.

env:NAME        a variable of the environment
file:PATH       a file's text
gsm:NAME        Google Secret Manager: projects/P/secrets/S/versions/V
plugin:NAME:…   what another package knows, under a name of its own
"""

from __future__ import annotations

from typing import Final

KINDS: Final = ("env", "file", "gsm", "plugin")
#: For messages.
FORMS: Final = "env:NAME, file:PATH, gsm:projects/P/secrets/S/versions/V or plugin:NAME:…"


def is_reference(value: str) -> bool:
    """Whether a value refers to a secret, and is none."""
    kind, colon, target = value.partition(":")
    return kind in KINDS and bool(colon and target)
