"""Settings that point to secrets: ``env:NAME`` and ``file:PATH`` are looked up where they are used.

So no secret travels with the settings to Spark workers or into Dagster's run records.
"""

from __future__ import annotations

import os
from pathlib import Path

from kbq_assets.core.errors import ConfigurationError


def resolve(setting: str, value: str) -> str:
    """The value that a setting stands for; any other text stands for itself. Raises ConfigurationError."""
    kind, separator, target = value.partition(":")
    if not separator or kind not in ("env", "file"):
        return value
    found = os.environ.get(target) if kind == "env" else _content(target)
    if found is None:
        where = f"environment variable {target} is not set" if kind == "env" else f"{target} cannot be read"
        raise ConfigurationError(
            f"{setting} refers to {value}: {where}",
            next_step="it is needed where the client runs: on the driver and on every Spark worker",
        )
    return found


def _content(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError):
        return None
