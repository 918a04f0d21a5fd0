"""Backups and erasures in the simulator: what runs, and what must hold (PROTOCOL B1 to B9, X1 to X6).

A backup has its own store, which is unreachable now and then. Anna's records have her key. Erasures erase them while
everything else goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import fastavro

from kbq_assets.core.backup.areas import area_of
from kbq_assets.core.backup.backup_names import BACKUP, STATE, BackupFileName
from kbq_assets.core.config.settings import parse_settings
from kbq_assets.core.erasure import offset_sets as sets
from kbq_assets.core.erasure.model import Erasure, ErasurePhase
from kbq_assets.core.erasure.selection import PersonRecords
from kbq_assets.core.errors import InvalidName, KbqError
from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol.commits import Commit, PartitionCommit, StagedFile
from kbq_assets.core.protocol.names import COMMITS, QUARANTINE, TOPIC_REGISTRY, TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.pipelines.backup.area import BackupArea
from kbq_assets.pipelines.backup.backups import Backups
from kbq_assets.pipelines.backup.clean import clean_backups
from kbq_assets.pipelines.backup.merge import merge_topic
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.pipelines.erasure.erasures import Erasures
from kbq_assets.pipelines.operate.commands import Proposal, propose_accept_gap, propose_resume
from kbq_assets.pipelines.protocol import state
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.wire.backup.read import read_chunks
from kbq_assets.worker.backup_place import BackupPlace
from kbq_assets_tests.fakes.faults import Call, Outcome
from kbq_assets_tests.fakes.kafka import FakePartition
from kbq_assets_tests.fakes.memory_store import FaultyMemoryStore

if TYPE_CHECKING:
    from kbq_assets.pipelines.spine import Spine
    from kbq_assets_tests.simulation.world import World

ANNA = b"anna"
#: How often an operator resets the backup, where one resets.
_RESET_RATE = 0.15
_SETTINGS = parse_settings({"KBQ_HOME": "/nowhere"})


class BackupStore(FaultyMemoryStore):
    """The place of backups. It notes which incarnation of the topic each epoch is of."""

    def __init__(self, faults: Callable[[Call], Outcome]) -> None:
        super().__init__(self._outcome)
        self._schedule = faults
        self.is_down = False
        self.topic_ids: dict[int, str] = {}
        #: each log that the topic had, by partition and topic id
        self.logs: dict[tuple[TopicPartition, str], FakePartition] = {}
        #: partitions that stopped with their tables
        self.behind: list[str] = []
        #: files that had an erased record when its erasure ended
        self.kept: list[str] = []

    def _outcome(self, call: Call) -> Outcome:
        found = self._schedule(call)
        return Outcome.UNAVAILABLE if self.is_down and found is Outcome.OK else found

    def _store(self, path: str, data: bytes) -> int:
        own = path.removeprefix(STATE)
        if own.startswith(COMMITS) and own != TOPIC_REGISTRY:
            commit = codec.loads(Commit, data, path)
            self.topic_ids[commit.epoch] = commit.topic_id
        return super()._store(path, data)


class _NoSources:
    """The source list of commands that find a backup where it is."""

    def select(self, topics: object) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class _Parts:
    """The part of a spine that erasures use."""

    deployment: Deployment

    def for_warehouse(self, name: str) -> Spine:
        """A schedule of backups has one warehouse."""
        raise NotImplementedError


def has_backup(world: World) -> bool:
    """Whether the topic of a world is backed up."""
    return bool(area_of(world.recipe.settings))


def place_of(world: World, name: str) -> BackupPlace:
    """Where the tasks of a process write copies."""
    return BackupPlace(world.backup.view(name), codec="null")


def clean(world: World, name: str) -> None:
    """One clean-up of the backups, which does not wait for readers of merged files."""
    clean_backups(BackupArea(world.backup.view(name)), 0, replaced_ms=0)


def merge(world: World, name: str) -> None:
    """Small files of the backup become large ones (B10)."""
    area = BackupArea(world.backup.view(name))
    if world.topic in state.topic_registry(area).topics:
        report = merge_topic(area, world.topic, lambda: f"{world.random.getrandbits(64):x}")
        world.met["backup files merged"] += report.before


def fall_silent(world: World) -> None:
    """The place of backups is out of reach; or within reach again."""
    world.backup.is_down = not world.backup.is_down
    world.scheduler.trace.append(f"backups are {'down' if world.backup.is_down else 'up'}")


def lose_schemas(world: World) -> None:
    """The registry forgets a schema, so that the parser stops; or gets everything back."""
    schemas = world.registry.schemas
    if schemas.keys() == world.registry_before.keys():
        del schemas[world.random.choice(sorted(schemas))]
    else:
        schemas.update(world.registry_before)
    world.scheduler.trace.append(f"the registry has schemas {sorted(schemas)}")


# Processes ------------------------------------------------------------------------------------------------------------


def _deployment(world: World, name: str) -> Deployment:
    store, kafka, warehouse = world.store.view(name), world.kafka.view(name), world.warehouse.view(name)
    backup = world.backup.view(name)
    return Deployment(
        _SETTINGS,
        world.clock,
        cast("Any", _NoSources()),
        lambda: store,
        lambda: store,
        lambda: kafka,
        lambda: warehouse,
        lambda role: (),
        lambda area, role: backup,
    )


def _erasures(world: World, name: str) -> Erasures:
    return Erasures(cast("Spine", _Parts(_deployment(world, name))), lambda: world.kafka.view(name))


def erase(world: World, name: str) -> None:
    """Begin the erasure of Anna, or continue the one that is not done."""
    erasures = _erasures(world, name)
    for each in erasures.all():
        if each.phase != ErasurePhase.DONE:
            _forgotten(world, erasures.resume(each.number))
            return
    begun, proposal = erasures.propose(world.topic, PersonRecords(frozenset({ANNA})))
    proposal.apply()
    _forgotten(world, begun)


def finish_erasures(world: World) -> None:
    """Nothing waits any more: every erasure ends."""
    erasures = _erasures(world, "operator")
    for each in erasures.all():
        with suppress(KbqError):  # a table that is parked with a job: the next round resumes it
            _forgotten(world, erasures.resume(each.number))


def _forgotten(world: World, erasure: Erasure) -> None:
    """Note files that something uses and that have a record of an erasure that ended just now: what jobs in flight read
    too, which may be copies (L15), and what is in quarantine."""
    store = world.store
    used = state.files_in_use(store, state.read_commits(store))
    held = {path for path in store.objects if path.startswith(QUARANTINE)}
    world.met["erased beside quarantine"] += bool(held)
    for path in sorted((used.keys() & store.objects.keys()) | held):
        for record in fastavro.reader(store.open_read(path)):
            row = cast("Mapping[str, Any]", record)
            own = erasure.partitions.get(row["_kafka_partition"])
            if own and row["_kbq_epoch"] >= own.since and sets.has(own.offsets, row["_kafka_offset"]):
                world.backup.kept.append(f"{path} has {row}, which erasure {erasure.number} forgot")


def reset(world: World, name: str) -> None:
    """An operator begins a new epoch of the backup."""
    _reset(world, name).apply()
    world.met["backup reset"] += 1


def _reset(world: World, name: str) -> Proposal:
    backups = Backups(_deployment(world, name), lambda: world.registry)
    return backups.reset(world.topic, None, "earliest")


def operate(world: World, name: str) -> bool:
    """An operator resets the backup, or not."""
    if not has_backup(world) or world.random.random() >= _RESET_RATE:
        return False
    reset(world, name)
    return True


def repairs(world: World, store: ObjectStore, kafka: Any) -> Iterator[Callable[[], Proposal]]:
    """What an operator does about stopped partitions of the backup."""
    if not has_backup(world):
        return
    area = BackupArea(store)
    for partition in range(world.partitions):
        yield partial(propose_accept_gap, area, kafka, TopicPartition(world.topic, partition))
    yield lambda: propose_resume(area, world.topic)


def repair(world: World) -> None:
    """An operator who waits lets the backup go on, in a new epoch if the topic was recreated."""
    for propose in repairs(world, world.backup.view("operator"), world.kafka.view("operator")):
        with suppress(KbqError):
            propose().apply()
    if any(commit.topic_id != world.topic_id for commit in commits(world)):
        _reset(world, "operator").apply()
    if any(commit.merges % 2 for commit in commits(world)):  # what a dead merge left stays until the next one
        merge(world, "operator")
    finish_erasures(world)


def commits(world: World) -> list[Commit]:
    """The backup's commits as they are."""
    area = BackupArea(world.backup)
    return [c.value for c in state.read_commits(area)]


# Promises -------------------------------------------------------------------------------------------------------------


def check_alone(world: World) -> list[str]:
    """The parser stops at the record of an unknown schema, and the backup goes on to the end of the log. Before,
    everything is at its end, and the caller gets it there again."""
    schemas = world.registry.schemas
    del schemas[1]
    before = {}
    for partition in range(world.partitions):
        world.produce_one(partition, "2")
        before[partition] = world.kafka.log(TopicPartition(world.topic, partition)).end
        world.produce_one(partition, "1")
        world.produce_one(partition, "2")
    world.run_alone("extractor", world.extract)
    schemas.update(world.registry_before)
    behind = [
        f"{tp} stands at {at.next} of {world.kafka.log(tp).last_stable} while the tables are stopped"
        for tp, at in _partitions(commits(world))
        if tp.partition < world.partitions and at.next != world.kafka.log(tp).last_stable
    ]
    if not any(at.stop for _, at in _partitions(world.commits())):
        behind.append("no table stopped")
    behind += [
        f"{tp} stands at {at.next}, and the record that stops it is at {before[tp.partition]} (E10)"
        for tp, at in _partitions(world.commits())
        if at.stop and at.next != before[tp.partition]
    ]
    world.met["alone"] += 1
    return behind


def _partitions(of: list[Commit]) -> Iterator[tuple[TopicPartition, PartitionCommit]]:
    return ((commit.topic_partition(n), at) for commit in of for n, at in sorted(commit.partitions.items()))


def broken(world: World) -> Iterator[str]:
    """What does not hold of backups and erasures."""
    erasures = _erasures(world, "judge").all()
    yield from (
        f"erasure {each.number} is {each.phase}" for each in erasures if each.phase != ErasurePhase.DONE
    )
    yield from _visible(world, erasures)
    yield from world.backup.kept
    area, listed = BackupArea(world.backup), set[str]()
    for commit in commits(world):
        for number, at in commit.partitions.items():
            tp = commit.topic_partition(number)
            end = world.kafka.log(tp).last_stable if number < world.partitions else 0
            if at.stop or (commit.topic_id == world.topic_id and at.next != end):
                yield f"{tp} stands at {at.next} of {end}: {at.stop}"
            yield from _windows(tp, at)
            for file in (file for window in at.windows for file in window.files):
                listed.add(file.path)
                yield from _contents(world, area, file, erasures)
    for entry in world.backup.list(BACKUP):
        with suppress(InvalidName):
            BackupFileName.parse(entry.path)
            if entry.path not in listed:
                yield f"{entry.path} is an orphan"


def _windows(tp: TopicPartition, at: PartitionCommit) -> Iterator[str]:
    """Windows of one epoch adjoin, except at gaps (B3)."""
    ends: dict[int, int] = {}
    for window in at.windows:
        if len(window.files) != 1:
            yield f"{tp} window {window.first} has {len(window.files)} files"
            continue
        epoch = BackupFileName.parse(window.files[0].path).epoch
        end = after_gaps = ends.get(epoch, window.first)
        for gap in at.accepted_gaps:  # two adjoin if a run recorded one and an operator accepted the other
            after_gaps = max(after_gaps, gap.until) if gap.first <= after_gaps else after_gaps
        if not end <= window.first <= after_gaps:
            yield f"{tp} window {window.first} of epoch {epoch} follows {end}"
        ends[epoch] = window.until
        if sum(window.counts.rows.values()) != window.counts.records - window.counts.erased:
            yield f"{tp} window {window.first} counts {window.counts}"


def _contents(world: World, area: BackupArea, file: StagedFile, erasures: list[Erasure]) -> Iterator[str]:
    """A file has exactly the records that were produced, as they were, without erased ones."""
    name = BackupFileName.parse(file.path)
    tp, topic_id = name.range.topic_partition, world.backup.topic_ids[name.epoch]
    found = {}
    with area.open_read(file.path) as stream:
        for chunk, _ in read_chunks(stream, name.epoch, name.range):
            for row, offset in enumerate(chunk.offsets.tolist()):
                found[offset] = chunk.key(row), chunk.value(row)
    log = world.backup.logs[tp, topic_id]
    wanted = {
        offset: (record.key, record.value)
        for offset, record in log.history.items()
        if name.range.from_offset <= offset < name.range.until_offset
    }
    for erasure in erasures:
        erased = sets.united(
            _erased(erasure, tp, topic_id), erasure.copies.get(f"{tp.partition}/{name.epoch}", ())
        )
        wanted = {offset: record for offset, record in wanted.items() if not sets.has(erased, offset)}
    if found != wanted:
        yield f"{file.path} has {sorted(found)}, not {sorted(wanted)}"


def _erased(erasure: Erasure, tp: TopicPartition, topic_id: str) -> sets.Offsets:
    """The offsets that an erasure forgets of a log."""
    own = erasure.partitions.get(tp.partition)
    return own.offsets if own and erasure.topic_id == topic_id else ()


def excused(world: World, tp: TopicPartition, topic_id: str) -> Callable[[int], bool]:
    """Whether an offset of a log may be missing in tables: it was erased."""
    erasures = _erasures(world, "judge").all() if has_backup(world) else []
    erased = sets.united(*(_erased(each, tp, topic_id) for each in erasures))
    return lambda offset: sets.has(erased, offset)


def left_out(world: World) -> Counter[TableReference]:
    """How many rows erasures left out of staged files that a table loaded afterwards, or more."""
    found = Counter[TableReference]()
    for each in _erasures(world, "judge").all() if has_backup(world) else ():
        found.update({TableReference.parse(table): rows for table, rows in each.rows.items()})
    found.subtract(Counter(table for table, _ in world.warehouse.erased))
    return +found


def _visible(world: World, erasures: list[Erasure]) -> Iterator[str]:
    """No row of an erased record is visible, but for those of epochs before a reset that no search by key finds."""
    for erasure in erasures:
        for table, row in world.warehouse.log:
            own = erasure.partitions.get(row.partition)
            if own and row.epoch >= own.since and sets.has(own.offsets, row.offset):
                yield f"{table} has {row}, which erasure {erasure.number} forgot"


def log_of(world: World, partition: int) -> tuple[tuple[TopicPartition, str], FakePartition]:
    """A partition's log with its key in ``BackupStore.logs``."""
    tp = TopicPartition(world.topic, partition)
    return (tp, world.topic_id), world.kafka.log(tp)
