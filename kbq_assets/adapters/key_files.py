"""Key files: readable only by their owner, and written atomically."""

from __future__ import annotations

import os
from pathlib import Path

from kbq_assets.core.errors import ConfigurationError, Refused

_OWNER_ONLY = 0o600
_EVERYBODY = 0o644


def create(path: Path, text: str, *, public: bool = False) -> None:
    """Write a new file. Raises Refused if the path exists, ConfigurationError if it cannot be written."""
    try:
        descriptor = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _EVERYBODY if public else _OWNER_ONLY
        )
    except FileExistsError:
        raise Refused(
            f"{path} already exists", next_step="name another file: an overwritten key cannot be recovered"
        ) from None
    except OSError as error:
        raise _not_written(path, error) from error
    _write(descriptor, path, text)


def replace(path: Path, text: str) -> None:
    """Replace a file atomically. Raises ConfigurationError."""
    new = path.with_name(f".{path.name}.new")
    try:
        new.unlink(missing_ok=True)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY)
    except OSError as error:
        raise _not_written(path, error) from error
    _write(descriptor, new, text)
    try:
        new.replace(path)
    except OSError as error:
        raise _not_written(path, error) from error


def read(path: Path) -> str:
    """A file's text. Raises ConfigurationError."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"{path} cannot be read: {type(error).__name__}", next_step="name a key file"
        ) from None


def _write(descriptor: int, path: Path, text: str) -> None:
    """Write a new file, or remove it on failure. Raises ConfigurationError."""
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        path.unlink(missing_ok=True)
        raise _not_written(path, error) from error


def _not_written(path: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"{path} was not written: {error.strerror}", next_step="name a file in an existing folder"
    )
