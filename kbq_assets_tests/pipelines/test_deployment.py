"""The platform opens each side's store with its own credentials, and checks the staging area before it writes."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from kbq_assets.core.config.roles import Role
from kbq_assets.core.errors import ConfigurationError, TransientError
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.protocol.names import TableReference, table_state_path
from kbq_assets.definitions import Parts
from kbq_assets.pipelines.protocol import state
from kbq_assets_tests.fakes.faults import Outcome
from kbq_assets_tests.fakes.memory_store import FaultyMemoryStore
from kbq_assets_tests.fakes.platform import FakePlatform

ORDERS = TableReference("shop", "orders")
Examine = Callable[[Role], Iterable[str]]


def parts_of(world: FakePlatform, examine: Examine) -> Parts:
    return world.reopened(examine_staging=examine)


def test_an_unsafe_staging_area_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    def unsafe(role: Role) -> Iterable[str]:
        raise ConfigurationError(f"public, says {role}")

    world = FakePlatform(tmp_path)
    world.produce(1)
    parts = parts_of(world, unsafe)
    with pytest.raises(ConfigurationError, match="public, says extract"):
        parts.extractor.extract()
    with pytest.raises(ConfigurationError, match="public, says load"):
        parts.loader.load()
    assert world.objects() == {}
    assert world.engines_opened == 0


def test_warnings_are_logged_once_per_process_and_side(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = FakePlatform(tmp_path)
    parts = parts_of(world, lambda role: [f"not enforced for {role}"])
    caplog.set_level(logging.WARNING, "kbq.staging")
    for _ in range(2):
        world.produce(1)
        parts.extractor.extract()
        parts.loader.load()
    assert [r.getMessage() for r in caplog.records] == ["not enforced for extract", "not enforced for load"]


def test_whenever_the_store_goes_away_a_load_reports_what_it_loaded(tmp_path: Path) -> None:
    outcomes = []
    for calls in itertools.count():
        (folder := tmp_path / str(calls)).mkdir()
        world, left = FakePlatform(folder), itertools.count(calls, -1)
        world.produce(5)
        world.parts.extractor.extract()
        memory = world.store
        memory.faults = lambda call, left=left: Outcome.OK if next(left) > 0 else Outcome.UNAVAILABLE
        world.store = memory.view("kbq")  # type: ignore[assignment]
        try:
            reported = world.reopened().loader.load().rows
        except TransientError:
            reported = 0
        outcomes.append(reported)
        assert reported == _loaded_rows(memory), f"after {calls} calls"
        if next(left) > 0:
            break
    assert set(outcomes) == {0, 5}


def _loaded_rows(store: FaultyMemoryStore) -> int:
    found = state.find(store, TableState, table_state_path(ORDERS))
    return sum(found.value.rows.values()) if found else 0


def test_what_cannot_be_asked_now_is_asked_again(tmp_path: Path) -> None:
    asked: list[Role] = []

    def down_once(role: Role) -> Iterable[str]:
        asked.append(role)
        if len(asked) == 1:
            raise ConfigurationError("down")
        return ()

    parts = parts_of(FakePlatform(tmp_path), down_once)
    with pytest.raises(ConfigurationError):
        parts.loader.load()
    parts.loader.load()
    assert asked == [Role.LOAD, Role.LOAD]
