"""An erasure during live traffic, with a crash or another process before any of its writes: the person is gone,
everybody else's rows stay, every record is accounted for, and nothing brings the person back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kbq_assets.core.backup.backup_names import BackupFileName
from kbq_assets.core.erasure.model import JOB_PREFIX
from kbq_assets.core.erasure.selection import PersonRecords
from kbq_assets.core.errors import JobAlreadyExists, KbqError, Refused
from kbq_assets.core.loading import replacements
from kbq_assets.core.loading.replacing import Replacing
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.protocol.names import TableReference, table_state_path
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.definitions import Parts
from kbq_assets.pipelines.backup.area import BackupArea
from kbq_assets.pipelines.backup.verify import verify_topic
from kbq_assets.pipelines.erasure import backup_files as erasure_copies
from kbq_assets.pipelines.erasure import rows as erasure_rows
from kbq_assets.pipelines.erasure import topic as erasure_topic
from kbq_assets.pipelines.operate.clean import clean
from kbq_assets.pipelines.protocol import erasures as erasure_log
from kbq_assets.pipelines.protocol import state
from kbq_assets.wire.backup.read import read_chunks
from kbq_assets_tests.fakes.faults import Call, Crash, Outcome
from kbq_assets_tests.fakes.platform import GOOD, POISON, SOURCES, TOPIC, FakePlatform

ORDERS, ERRORS = (TableReference("shop", name) for name in ("orders", "kbq_errors"))
#: What may become of a write, and which other process may run just before it.
OUTCOMES = ("CRASH_BEFORE", "CRASH_AFTER", "CRASH_LATE", "LOST_REPLY", "OWN_RETRY", "UNAVAILABLE")
OTHERS = ("load", "erase", "reset", "clean")
EVENTS = (*OUTCOMES, *OTHERS)
ANNA = b"anna@example.com"


class World:
    """Anna has two rows and an error row. Bert's records come all the time."""

    def __init__(self, folder: Path) -> None:
        self.platform = FakePlatform(folder, sources=SOURCES.strip() + " error_share=1 backup=true\n")
        self.bert: set[tuple[int, int]] = set()
        self.anna = {
            (p, self.platform.kafka.produce(TopicPartition(TOPIC, p), value, key=ANNA))
            for p, value in ((0, GOOD), (0, POISON), (1, GOOD))
        }
        self.cycle()
        # One more of Anna and one of Bert, staged and not loaded.
        for key in (ANNA, b"bert"):
            place = (1, self.platform.kafka.produce(TopicPartition(TOPIC, 1), GOOD, key=key))
            (self.anna if key == ANNA else self.bert).add(place)
        self.parts().extractor.extract()

    def parts(self, faults: Callable[[Call], Outcome] | None = None) -> Parts:
        """The parts of a new process. With ``faults``, its writes may fail."""
        world = self.platform
        if faults is None:
            return world.reopened()
        world.store.faults = world.warehouse.faults = faults
        store, warehouse = world.store.view("eraser"), world.warehouse.view("eraser")
        return world.reopened(store=lambda: store, warehouse=lambda: warehouse)

    def cycle(self) -> None:
        """Bert's next records, extracted and loaded."""
        for partition, value in ((0, GOOD), (1, GOOD), (1, POISON)):
            tp = TopicPartition(TOPIC, partition)
            self.bert.add((partition, self.platform.kafka.produce(tp, value, key=b"bert")))
        parts = self.parts()
        parts.extractor.extract()
        parts.loader.load()

    def reset(self) -> None:
        """Read the topic again, in a new epoch, if nothing waits."""
        parts = self.parts()
        parts.loader.load()
        try:
            parts.operator.reset(TOPIC).apply()
        except Refused:
            return
        self.cycle()

    def rows(self, *, epoch: int = 0) -> list[tuple[int, int]]:
        """Places of all rows and error rows, of one epoch if given."""
        found = (row for table in (ORDERS, ERRORS) for row in self.platform.warehouse.rows(table))
        return sorted((row.partition, row.offset) for row in found if epoch in (0, row.epoch))

    def copies(self) -> list[tuple[int, int]]:
        """Places of the records that the backup has, each file as its commit lists it. Raises AssertionError for one of
        Anna."""
        found, area = [], BackupArea(self.platform.store)
        for commit in state.read_commits(area):
            for file in commit.value.files:
                name = BackupFileName.parse(file.path)
                with area.open_read(file.path) as stream:
                    for chunk, _ in read_chunks(stream, name.epoch, name.range):
                        assert ANNA not in map(chunk.key, range(len(chunk)))
                        partition = name.range.topic_partition.partition
                        found += [(partition, offset) for offset in chunk.offsets.tolist()]
        return sorted(found)

    @property
    def epoch(self) -> int:
        """That of the commit."""
        return max(commit.value.epoch for commit in state.read_commits(self.platform.store))

    def is_whole(self) -> None:
        """Every record is accounted for, while an erasure waits too."""
        reconciler = self.parts().reconciler
        assert reconciler.counts().findings == ()
        assert reconciler.reconcile().findings == ()

    def finish(self) -> None:
        """What an operator does after any crash: resume, until nothing waits."""
        platform, parts = self.platform, self.parts()
        while platform.store.late:
            platform.store.deliver_late()
        while platform.warehouse.late:
            platform.warehouse.deliver_late()
        self.is_whole()
        if not parts.erasures.all():
            act(parts)
        self.cycle()
        for each in parts.erasures.all():
            assert parts.erasures.resume(each.number).phase == "done"
            assert parts.erasures.verify(each.number) == ()
        self.cycle()
        self.is_whole()
        found = self.rows(epoch=self.epoch)
        assert sorted(self.bert) == found
        assert sorted(self.bert) == self.copies()
        assert verify_topic(BackupArea(platform.store), TOPIC).damages == ()
        assert [t for t in (ORDERS, ERRORS) if self.state_of(t).definition.replacing] == []
        self.reset()
        assert sorted(self.bert) == self.rows(epoch=self.epoch)
        self.is_whole()

    def state_of(self, table: TableReference) -> Any:
        return state.read(self.platform.store, TableState, table_state_path(table)).value


def act(parts: Parts) -> None:
    """Begin the erasure of Anna, or continue it."""
    for each in parts.erasures.all():
        parts.erasures.resume(each.number)
        return
    parts.erasures.propose(TOPIC, PersonRecords(frozenset({ANNA})))[1].apply()


class Plan:
    """Lets an event happen before the nth write of an erasure."""

    def __init__(self, world: World, number: int, event: str) -> None:
        self.world, self.number, self.event, self.writes = world, number, event, 0

    def __call__(self, call: Call) -> Outcome:
        if not call.writes:
            return Outcome.OK
        self.writes += 1
        if self.writes != self.number:
            return Outcome.OK
        if self.event in OUTCOMES:
            return Outcome[self.event]
        if self.event == "erase":
            act(self.world.parts())
        elif self.event == "reset":
            self.world.reset()
        elif self.event == "clean":
            clean(self.world.platform.store)
        else:
            self.world.cycle()
        return Outcome.OK


def run(world: World, number: int, event: str) -> int:
    """Erase under a plan; return the number of writes."""
    plan = Plan(world, number, event)
    parts = world.parts(plan)
    try:
        act(parts)
    except (Crash, KbqError):
        pass
    finally:
        world.platform.store.faults = world.platform.warehouse.faults = None
    return plan.writes


@pytest.mark.slow
@pytest.mark.parametrize("event", EVENTS)
def test_an_erasure_survives_an_event_before_each_of_its_writes(tmp_path: Path, event: str) -> None:
    number = 1 + EVENTS.index(event) % 2  # every other write; the next event has the others
    while True:
        folder = tmp_path / str(number)
        folder.mkdir()
        world = World(folder)
        writes = run(world, number, event)
        world.finish()
        if writes < number:
            break
        number += 2
    assert number > 10


@pytest.mark.parametrize(
    ("number", "event"),
    [
        (3, "LOST_REPLY"),
        (7, "erase"),
        (9, "CRASH_BEFORE"),
        (10, "CRASH_LATE"),
        (13, "OWN_RETRY"),
        (15, "load"),
        (11, "clean"),
        (12, "clean"),
    ],
)
def test_an_erasure_survives_some_events(tmp_path: Path, number: int, event: str) -> None:
    world = World(tmp_path)
    run(world, number, event)
    world.finish()


@pytest.mark.parametrize("folder", ["staging/", "backup/"])
def test_an_erasure_is_not_done_while_a_file_with_its_records_cannot_be_deleted(
    tmp_path: Path, folder: str
) -> None:
    world = World(tmp_path)

    def held(call: Call) -> Outcome:
        return (
            Outcome.REFUSED
            if (call.operation, call.target[: len(folder)]) == ("delete", folder)
            else Outcome.OK
        )

    with pytest.raises(Refused, match=f"deleted: {folder}") as refused:
        act(world.parts(held))
    world.platform.store.faults = world.platform.warehouse.faults = None
    assert refused.value.next_step == "kbq erase resume 1"
    assert world.parts().erasures.find(1).phase == "logged"
    world.finish()


def test_a_late_deletion_cannot_run_twice(tmp_path: Path) -> None:
    world = World(tmp_path)
    late = Outcome.CRASH_LATE
    parts = world.parts(lambda call: late if call.operation == "erase" else Outcome.OK)
    with pytest.raises(Crash):
        act(parts)
    world.platform.store.faults = world.platform.warehouse.faults = None
    act(world.parts())
    assert isinstance(world.platform.warehouse.deliver_late(), JobAlreadyExists)
    world.finish()


def test_a_table_that_a_late_process_let_wait_goes_on(tmp_path: Path) -> None:
    """It read the erasure before another process ended the job, and died."""
    world = World(tmp_path)
    act(world.parts())
    late = Replacing(0, f"{JOB_PREFIX}x-1-1", erasure=1)
    path = table_state_path(ORDERS)
    state.change(world.platform.store, TableState, path, lambda now: replacements.begin_replacing(now, late))
    world.cycle()
    assert set(world.rows()) < world.bert
    world.finish()


#: What is left out, and then goes wrong.
MUTANTS: dict[str, tuple[object, str, Callable[..., Any]]] = {
    "X2: commits do not learn of the log": (erasure_log, "raised", lambda commit, version: commit),
    "X1: the log lacks the erasure": (erasure_log, "with_erasure", lambda log, erasure: log),
    "X3: commits are not counted": (erasure_rows, "erased_rows", lambda commit, *rest: commit),
    "X3: the tables never go on": (replacements, "end_replacing", lambda now, job_id, *, done: now),
    "X5: backups are not counted": (erasure_copies, "rewritten", lambda commit, **change: commit),
    "X1: an epoch that began since is not reached": (
        erasure_topic,
        "reaching",
        lambda erasure, commits: erasure,
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_step_that_is_left_out_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutant: str
) -> None:
    monkeypatch.setattr(*MUTANTS[mutant])
    noticed = False
    for number in range(1, 9):
        folder = tmp_path / str(number)
        folder.mkdir()
        world = World(folder)
        try:
            run(world, number, "reset")
            world.finish()
        except (AssertionError, KbqError):
            noticed = True
            break
    assert noticed
