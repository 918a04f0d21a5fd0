"""The operating system's errors as KBQ's errors."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from typing import Final

from kbq_assets.core.errors import ConfigurationError, KbqError, NotFound, Unavailable

_ABSENT: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR})
_CONFIGURATION: Final = {
    errno.EACCES: "give this user read and write permission on the store's directory",
    errno.EPERM: "give this user read and write permission on the store's directory",
    errno.EROFS: "mount the store's file system for writing",
    errno.EXDEV: "keep the store's whole directory on one file system, without links to others",
    errno.ENOTDIR: "a path cannot be an object and a folder at once: remove the file at that path",
    errno.EISDIR: "a path cannot be an object and a folder at once: remove the folder at that path",
}
_UNAVAILABLE: Final = {
    errno.ENOSPC: "free space on the store's disk",
    errno.EDQUOT: "raise the quota, or free space on the store's disk",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.EIO: "check the disk",
    errno.ENOENT: "check the folder of KBQ_STAGING (kbq doctor), then try again",
}


@contextlib.contextmanager
def reading(operation: str, path: str) -> Iterator[None]:
    """Translate errors of reading an object to NotFound, ConfigurationError or Unavailable."""
    try:
        yield
    except OSError as error:
        if error.errno in _ABSENT:
            raise NotFound(f"{path} does not exist", next_step="list its folder") from error
        raise _translated(operation, path, error) from error


@contextlib.contextmanager
def writing(operation: str, path: str) -> Iterator[None]:
    """Translate errors of writing an object to ConfigurationError or Unavailable."""
    try:
        yield
    except OSError as error:
        raise _translated(operation, path, error) from error


def _translated(operation: str, path: str, error: OSError) -> KbqError:
    message = f"{operation} {path}: {error.strerror}"
    if error.errno in _CONFIGURATION:
        return ConfigurationError(message, next_step=_CONFIGURATION[error.errno])
    return Unavailable(message, next_step=_UNAVAILABLE.get(error.errno or 0, "try again"))
