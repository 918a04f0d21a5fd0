"""Extraction with a backup, dead at every call that it makes: nothing is lost, doubled or altered, in either output.

Next to the simulator, whose schedules have no backups yet: each point is one call to store, broker or backup, before or
after it takes effect, and a later run finds what the dead one left.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from kbq_assets.core.extraction.units import WindowLimits
from kbq_assets.pipelines.backup.clean import clean_backups
from kbq_assets.pipelines.backup.verify import verify_topic
from kbq_assets_tests.fakes.faults import Call, Crash, Outcome
from kbq_assets_tests.pipelines.backup.test_extraction import BACKED_UP, copied, files, produced
from kbq_assets_tests.pipelines.bench import TOPIC, TP, A, Bench
from kbq_assets_tests.sizes import FULL

_DEATHS = (Outcome.CRASH_BEFORE, Outcome.CRASH_AFTER)


def world_of(apart: bool) -> Bench:
    """Two windows are there, more is unread; ``apart``: the tables are behind the backup."""
    world = Bench(BACKED_UP, window=WindowLimits(records=2))
    world.produce(1, 1, 1)
    world.extract()
    if apart:
        world.produce(99, 1)
        world.extract()
        world.registry.schemas[99] = world.registry.schemas[1]
    world.produce(1, 1, 1)
    world.kafka.gap(TP, 2)
    world.store.time_ms += 3_600_000
    return world


def dying_at(world: Bench, number: int, death: Outcome) -> list[Call]:
    """Let the extractor die in its call of this number; the calls so far."""
    calls: list[Call] = []

    def fault(call: Call) -> Outcome:
        calls.append(call)
        return death if len(calls) == number else Outcome.OK

    world.faults = fault
    return calls


def deaths(apart: bool) -> Iterator[tuple[int, Outcome]]:
    """Every call of one run, with both ways to die in it."""
    world = world_of(apart)
    calls = dying_at(world, 0, Outcome.OK)
    world.extract()
    return iter([(n, death) for n in range(1, len(calls) + 1) for death in _DEATHS])


def assert_whole(world: Bench) -> None:
    """Both outputs have each record once, whichever process died before; unlisted files are cleaned up."""
    assert copied(world) == produced(world)
    assert world.backup_commit().partitions[0].next == world.kafka.log(TP).end
    assert world.commit().partitions[0].next == world.kafka.log(TP).end
    found = verify_topic(world.backup_area, TOPIC)
    assert (found.damages, found.records) == ((), len(produced(world)))
    clean_backups(world.backup_area, days=0)
    stored = {path for path in world.backups.objects if path.startswith(f"backup/{TOPIC}/")}
    assert stored == {file.path for file in files(world)}
    world.load()
    assert sorted(world.offsets(A)) == sorted(world.kafka.committed(TP))


def run_again(world: Bench) -> None:
    world.faults = lambda call: Outcome.OK
    for _ in range(3):
        world.store.time_ms += 3_600_000
        world.extract()


@pytest.mark.parametrize("apart", [False, True], ids=["one reading", "two readings"])
def test_a_run_that_dies_anywhere_leaves_both_outputs_whole(apart: bool) -> None:
    points = list(deaths(apart))
    assert len(points) >= 60  # both ways together: over 100
    for number, death in points[apart :: 1 if FULL else 9]:
        world = world_of(apart)
        dying_at(world, number, death)
        with pytest.raises(Crash):
            world.extract()
        run_again(world)
        assert_whole(world)


@pytest.mark.parametrize("operation", ["swap", "create"])
def test_a_lost_reply_of_the_backup_doubles_nothing(operation: str) -> None:
    for number in itertools.count(1):
        world = world_of(False)
        seen: list[Call] = []

        def fault(call: Call, seen: list[Call] = seen, number: int = number) -> Outcome:
            if call.process == "backup" and call.operation == operation:
                seen.append(call)
                return Outcome.LOST_REPLY if len(seen) == number else Outcome.OK
            return Outcome.OK

        world.faults = fault
        world.extract()
        run_again(world)
        assert_whole(world)
        if len(seen) < number:
            assert number > 1
            return
