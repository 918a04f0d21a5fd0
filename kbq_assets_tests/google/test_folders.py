"""The suite's check of two identities detects each permission too few or too many."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import pytest

from kbq_assets.core.config.roles import Role
from kbq_assets.core.errors import ConfigurationError
from kbq_assets_tests.fakes.memory_store import FaultyMemoryStore
from kbq_assets_tests.google.folders import FOLDERS, wrong_folders


@dataclass
class Limited:
    """A store as an identity sees it whose conditions name these folders."""

    store: FaultyMemoryStore
    folders: Collection[str]
    deletes: bool = True

    def create(self, path: str, data: bytes) -> int:
        self._check(path)
        return self.store.create(path, data)

    def swap(self, path: str, data: bytes, generation: int) -> int:
        self._check(path, self.deletes)
        return self.store.swap(path, data, generation)

    def delete(self, path: str) -> None:
        self._check(path, self.deletes)
        self.store.delete(path)

    def _check(self, path: str, is_granted: bool = True) -> None:
        if not is_granted or path.split("/", maxsplit=1)[0] not in self.folders:
            raise ConfigurationError(f"{path}: 403", next_step="grant it")


@pytest.mark.parametrize("role", Role)
def test_rights_of_the_own_folders_alone_are_right_and_nothing_stays(role: Role) -> None:
    store = FaultyMemoryStore()
    assert wrong_folders(role, Limited(store, FOLDERS[role]), store, "kbq_test_1") == []
    assert store.objects == {}


def test_each_right_too_few_or_too_many_is_named() -> None:
    store = FaultyMemoryStore()
    other = FOLDERS[Role.EXTRACT] - {"commits"} | {"tables"}
    assert wrong_folders(Role.EXTRACT, Limited(store, other), store, "kbq_test_1") == [
        *(f"{change} in commits/: False" for change in ("create", "replace", "delete")),
        *(f"{change} in tables/: True" for change in ("create", "replace", "delete")),
    ]
    found = wrong_folders(Role.LOAD, Limited(store, FOLDERS[Role.LOAD], deletes=False), store, "kbq_test_1")
    assert len(found) == 2 * len(FOLDERS[Role.LOAD])
    assert store.objects == {}
