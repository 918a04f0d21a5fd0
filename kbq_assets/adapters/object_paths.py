"""Valid object paths: the same rule for every store, so that objects can move between stores."""

from __future__ import annotations

from typing import Final

from kbq_assets.core.errors import InvalidName
from kbq_assets.core.protocol.names import MAX_BASE_NAME

#: Google Cloud Storage's limit for a whole path, in bytes.
MAX_PATH: Final = 1024
_NO_NAMES: Final = frozenset(("", ".", ".."))


def check_path(path: str) -> str:
    """Return ``path``, or raise InvalidName."""
    # Stores use names with a leading dot for their own files. Later parts may start with one, as a topic's name may.
    if path.startswith(".") or not path.isprintable() or not _NO_NAMES.isdisjoint(path.split("/")):
        raise _refused(
            path, "relative and printable, without empty parts, '.' and '..', and do not start with a dot"
        )
    data = path.encode()
    if len(data) > MAX_PATH or max(map(len, data.split(b"/"))) > MAX_BASE_NAME:
        raise _refused(path, f"at most {MAX_PATH} bytes long, {MAX_BASE_NAME} between two '/'")
    return path


def is_path(path: str) -> bool:
    """Whether stores accept a path. KBQ writes no other objects, and listings omit them."""
    try:
        check_path(path)
    except InvalidName:
        return False
    return True


def _refused(path: str, rule: str) -> InvalidName:
    return InvalidName(f"{path!r} cannot be the path of an object", next_step=f"paths are {rule}")
