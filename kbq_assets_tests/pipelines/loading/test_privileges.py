"""Least privilege: each side uses exactly the permissions on the store that `google_permissions` lists."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from click.testing import CliRunner

from kbq_assets.core.config.google_permissions import CREATES_IN, DELETES_IN
from kbq_assets.core.config.roles import Role
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.replay.model import Phase
from kbq_assets.definitions import Parts, command_line
from kbq_assets.worker.backup_place import BackupPlace
from kbq_assets.worker.unit import WorkerPorts
from kbq_assets_tests.fakes.engine import InProcessEngine
from kbq_assets_tests.fakes.faults import Call, Outcome
from kbq_assets_tests.fakes.notifier import FakeNotifier
from kbq_assets_tests.fakes.platform import GOOD, POISON, TOPIC, FakePlatform
from kbq_assets_tests.fixtures.tiny_manifests import TINY, tiny_manifests

SOURCES = f"""
{TOPIC} dataset=shop table=orders on_incompatible=variant_column backup=true
clicks dataset=shop table=clicks format=json_columns
"""
#: On Cloud Storage, replacing an object is deleting it.
DELETING = ("delete", "swap")


class Recorded:
    """A platform whose two sides have a store each, and what each side did in which folder."""

    def __init__(self, folder: Path) -> None:
        self.arrivals = folder / "arrivals"
        environ = {"KBQ_FILES": str(self.arrivals)}
        self.world = FakePlatform(folder, sources=SOURCES, keep_records=True, environ=environ)
        self.world.store.faults = self._record
        self.creates: dict[str, set[str]] = defaultdict(set)
        self.deletes: dict[str, set[str]] = defaultdict(set)

    def __call__(self, *arguments: str) -> None:
        """Run a command on a new platform."""
        CliRunner().invoke(command_line(), arguments, obj=self._parts, catch_exceptions=False)

    def _parts(self) -> Parts:
        extract, load = (self.world.store.view(side) for side in Role)
        return self.world.reopened(
            store=lambda: extract,
            load_store=lambda: load,
            engine=self._engine,
            backup=lambda area, role: self.world.store.view(role),
        )

    @contextmanager
    def _engine(self) -> Iterator[InProcessEngine]:
        store = self.world.store.view(Role.EXTRACT)
        yield InProcessEngine(
            WorkerPorts(
                store,
                self.world.kafka,
                self.world.registry,
                self.world.clock,
                backup=lambda topic: BackupPlace(store),
            )
        )

    def _record(self, call: Call) -> Outcome:
        if call.writes:
            done = self.deletes if call.operation in DELETING else self.creates
            done[call.process].add(call.target.partition("/")[0] + "/")
        return Outcome.OK


def _shapes_and_schemas_change(run: Recorded) -> None:
    """Columns are found in JSON; a schema contradicts its table, whose placement is lost before and after reading."""
    world = run.world
    world.kafka.create_topic("clicks", 1)
    for number in range(2):
        world.produce(1, topic="clicks", value=b'{"f%d": 1}' % number)
        run("extract")
    world.registry.schemas[3] = world.registry.schemas[1].replace("long", "string")
    for lost in ((), ("before", "after"), ("before",)):
        if "before" in lost:
            world.store.delete("placements/shop.orders.json")
        world.produce(1, value=b"\x00\x00\x00\x00\x03\x02x")
        run("extract")
        if "after" in lost:
            world.store.delete("placements/shop.orders.json")
        run("load")


def _a_person_is_forgotten(run: Recorded) -> None:
    """A staged file and a backup have the person; the backup is also verified, reset and cleaned."""
    world, here = run.world, TopicPartition(TOPIC, 0)
    world.kafka.produce(here, GOOD, key=b"anna")
    run("extract")
    run("erase", "start", TOPIC, "--key", "anna", "--yes")
    world.registry.down = True
    world.kafka.produce(here, GOOD, key=b"bert")
    run("extract")
    world.registry.down = False
    for command in ("extract", "load"):
        run(command)
    run("backup", "verify")
    run("backup", "reset", "--topic", TOPIC, "--yes")
    run("clean")


def _a_range_is_replayed(run: Recorded) -> None:
    """Until the new rows are accepted, which deletes what a dropped replay leaves too."""
    run("quarantine", "drop", "--table", "shop.orders", "--yes")
    run("replay", "start", TOPIC, "--from", "earliest", "--yes")
    for end in ("promote", "accept"):
        run("replay", end, "1", "--yes")
    assert [replay.phase for replay in run.world.reopened().replays.list()] == [Phase.ACCEPTED]


def _batches_of_files_arrive(run: Recorded) -> None:
    folder = run.arrivals / "shop" / "visits" / "2026-01-05"
    folder.mkdir(parents=True)
    (folder / "part-0.csv").write_text("1,2\n")
    (folder / "_SUCCESS").touch()
    # The fake warehouse knows no job of DuckDB's: the run does not wait for it.
    settings = run.world.settings
    run.world.settings = replace(settings, run=replace(settings.run, load_wait_seconds=0))
    run("files", "run")


def test_each_side_writes_in_the_folders_that_are_its_own(tmp_path: Path) -> None:
    run = Recorded(tmp_path)
    world = run.world
    world.produce(3)
    world.produce(1, value=POISON)
    for command in ("extract", "load", "clean"):
        run(command)
    # A parked table, that is reported, and whose windows go to its backlog.
    run("park", "--table", "shop.orders", "--yes")
    world.notifiers = [FakeNotifier().port]
    run("notify")
    for _ in range(2):
        world.produce(2)
        run("extract")
    run("resume", "--table", "shop.orders", "--yes")
    # A file that no job accepts.
    world.produce(1, partition=1)
    run("extract")
    staged = [entry.path for entry in world.store.list("staging/") if f"/{TOPIC}.1." in entry.path]
    world.warehouse.bad_paths.update(staged)
    run("load")
    world.warehouse.bad_paths.clear()
    _shapes_and_schemas_change(run)
    # So much waits that manifests are written, and merged.
    with tiny_manifests(replace(TINY, tail=2)):
        for _ in range(6):
            world.produce(2)
            run("extract")
        run("load")
        run("extract")
    _a_range_is_replayed(run)
    _a_person_is_forgotten(run)
    _batches_of_files_arrive(run)
    # An orphan of a dead run, and an operator who starts again.
    world.store.create(f"staging/1-dead/{TOPIC}.0.shop.orders.1.0.avro", b"")
    run("clean")
    run("reset", "--topic", TOPIC, "--yes")

    assert {side: tuple(sorted(run.creates[side])) for side in Role} == CREATES_IN
    assert {side: tuple(sorted(run.deletes[side])) for side in Role} == DELETES_IN
