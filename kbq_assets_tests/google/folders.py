"""Conditional write access of an identity: everything in its own folders, and nothing in others."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from kbq_assets.core.config.google_permissions import CREATES_IN, DELETES_IN
from kbq_assets.core.config.roles import Role
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.ports.object_store import ObjectStore

#: Granted together, by first folder, as the module and the guide grant them.
FOLDERS: Final = {
    role: {folder.split("/")[0] for folder in (*CREATES_IN[role], *DELETES_IN[role])} for role in Role
}
_NOBODY_S: Final = "elsewhere"


class Writer(Protocol):
    """A store's changes."""

    def create(self, path: str, data: bytes) -> int:
        """Create an object."""

    def swap(self, path: str, data: bytes, generation: int) -> int:
        """Replace an object."""

    def delete(self, path: str) -> None:
        """Delete an object."""


def wrong_folders(role: Role, theirs: Writer, owner: ObjectStore, name: str) -> list[str]:
    """The rights that a role lacks, and those that it has too many. ``owner`` may write everywhere; nothing stays."""
    wrongs = []
    for folder in sorted({_NOBODY_S}.union(*FOLDERS.values())):
        path, is_own = f"{folder}/{name}", folder in FOLDERS[role]
        allowed = {"create": _is_allowed(partial(theirs.create, path, b""))}
        if not allowed["create"]:
            owner.create(path, b"")
        generation = owner.get(path).generation
        allowed["replace"] = _is_allowed(partial(theirs.swap, path, b"1", generation))
        allowed["delete"] = _is_allowed(partial(theirs.delete, path))
        owner.delete_many([path])
        wrongs += [f"{change} in {folder}/: {is_}" for change, is_ in allowed.items() if is_ is not is_own]
    return wrongs


def _is_allowed(change: Callable[[], object]) -> bool:
    try:
        change()
    except ConfigurationError:
        return False
    return True
