"""The platform opens each side's store with its own credentials, and looks at the staging area before it writes."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from kbq_assets.core.config.google_permissions import Role
from kbq_assets.core.config.settings import Settings
from kbq_assets.core.errors import ConfigurationError, TransientError
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.protocol.names import TableReference, table_state_path
from kbq_assets.pipelines.platform import Platform
from kbq_assets.pipelines.protocol import state
from kbq_assets_tests.fakes.faults import Outcome
from kbq_assets_tests.fakes.memory_store import FaultyMemoryStore
from kbq_assets_tests.fakes.platform import FakePlatform

ORDERS = TableReference("shop", "orders")
CheckStaging = Callable[[Settings, Role], Iterable[str]]


def platform_of(world: FakePlatform, check: CheckStaging) -> Platform:
    return Platform(world.settings, dataclasses.replace(world.reopened().openers, check_staging=check))


def test_an_unsafe_staging_area_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    def unsafe(settings: Settings, side: Role) -> Iterable[str]:
        raise ConfigurationError(f"public, says {side}")

    world = FakePlatform(tmp_path)
    world.produce(1)
    platform = platform_of(world, unsafe)
    with pytest.raises(ConfigurationError, match="public, says extract"):
        platform.extract()
    with pytest.raises(ConfigurationError, match="public, says load"):
        platform.load()
    assert world.objects() == {}
    assert world.engines_opened == 0


def test_warnings_are_logged_once_per_process_and_side(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = FakePlatform(tmp_path)
    platform = platform_of(world, lambda settings, side: [f"not enforced for {side}"])
    caplog.set_level(logging.WARNING, "kbq.staging")
    for _ in range(2):
        world.produce(1)
        platform.extract()
        platform.load()
    assert [r.getMessage() for r in caplog.records] == ["not enforced for extract", "not enforced for load"]


def test_whenever_the_store_goes_away_a_load_tells_what_has_landed(tmp_path: Path) -> None:
    outcomes = []
    for calls in itertools.count():
        (folder := tmp_path / str(calls)).mkdir()
        world, left = FakePlatform(folder), itertools.count(calls, -1)
        world.produce(5)
        world.platform.extract()
        memory = world.store
        memory.faults = lambda call, left=left: Outcome.OK if next(left) > 0 else Outcome.UNAVAILABLE
        world.store = memory.view("kbq")  # type: ignore[assignment]
        try:
            told = world.reopened().load().rows
        except TransientError:
            told = 0
        outcomes.append(told)
        assert told == _loaded_rows(memory), f"after {calls} calls"
        if next(left) > 0:
            break
    assert set(outcomes) == {0, 5}


def _loaded_rows(store: FaultyMemoryStore) -> int:
    found = state.find(store, TableState, table_state_path(ORDERS))
    return sum(found.value.rows.values()) if found else 0


def test_what_cannot_be_asked_now_is_asked_again(tmp_path: Path) -> None:
    asked: list[Role] = []

    def down_once(settings: Settings, side: Role) -> Iterable[str]:
        asked.append(side)
        if len(asked) == 1:
            raise ConfigurationError("down")
        return ()

    platform = platform_of(FakePlatform(tmp_path), down_once)
    with pytest.raises(ConfigurationError):
        platform.load()
    platform.load()
    assert asked == [Role.LOAD, Role.LOAD]
