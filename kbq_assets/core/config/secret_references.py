"""References to secrets. Settings have them in place of the secret; they are resolved where the secret is used.

env:NAME        a variable of the environment
file:PATH       a file's text
gsm:NAME        Google Secret Manager: projects/P/secrets/S/versions/V
plugin:NAME:…   a secret from another package, by an entry point's name
"""

from __future__ import annotations

from typing import Final

KINDS: Final = ("env", "file", "gsm", "plugin")
#: For messages.
FORMS: Final = "env:NAME, file:PATH, gsm:projects/P/secrets/S/versions/V or plugin:NAME:…"


def is_reference(value: str) -> bool:
    """Whether the value is a reference to a secret, not a secret."""
    kind, colon, target = value.partition(":")
    return kind in KINDS and bool(colon and target)
