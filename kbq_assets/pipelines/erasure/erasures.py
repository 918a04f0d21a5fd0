"""Erasures of one deployment: plan, run, resume, verify (PROTOCOL X1 to X6).

    begin     write the erasure, with the records that it erases
    log       enter it into the erasure log, then into every commit: no process reads or publishes the records again
    replays   refuse to continue while a replay has copies
    rows      for each warehouse: make tables wait, rewrite staged files, delete rows from all tables in one transaction
              (in a lake, in one commit per table). A warehouse that fails delays no other one
    copies    rewrite backup files that have some of the records
    clean     delete files of dead runs, and old backup files
    done      once a search finds nothing

Every step can be repeated, and any process can continue, so a crash costs only time.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

from kbq_assets.core.config.roles import Role
from kbq_assets.core.erasure.model import (
    ERASURES,
    Erasure,
    ErasurePhase,
    erasure_path,
    parse_erasure_path,
)
from kbq_assets.core.erasure.offset_sets import size
from kbq_assets.core.erasure.selection import PersonRecords
from kbq_assets.core.errors import NotFound, PreconditionFailed, Refused, TransientError
from kbq_assets.core.loading.file_warehouses import REMOVED
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol import codec
from kbq_assets.pipelines.backup.area import BackupArea
from kbq_assets.pipelines.backup.clean import clean_backups, void_merges
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.pipelines.erasure.covered_warehouse import ErasedWarehouse
from kbq_assets.pipelines.erasure.topic import (
    ErasedTopic,
    backup_areas,
    check_replays,
    delete_loaded,
    is_of_topic,
)
from kbq_assets.pipelines.operate.clean import clean
from kbq_assets.pipelines.operate.commands import Proposal
from kbq_assets.pipelines.protocol import erasures as log
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.spine import Spine
from kbq_assets.ports.backup_copies import OpenCopies
from kbq_assets.ports.kafka import RecordSource

if TYPE_CHECKING:
    from kbq_assets.pipelines.erasure.backup_files import TopicBackup


@dataclass(frozen=True)
class Erasures:
    """Erases records from everything that a deployment stores, in all of its warehouses."""

    spine: Spine
    open_source: Callable[[], RecordSource]
    #: opens Spark for many bytes of backups; None: this process does the work
    open_copies: OpenCopies | None = None

    @property
    def live(self) -> Deployment:
        """The deployment with its first warehouse."""
        return self._first.deployment

    @cached_property
    def _first(self) -> Spine:
        settings = self.spine.deployment.settings
        return (
            self.spine.for_warehouse(settings.warehouses[0].name) if settings.warehouse_area else self.spine
        )

    @cached_property
    def _places(self) -> tuple[ErasedWarehouse, ...]:
        """All warehouses, beginning with the first."""
        others = map(self.spine.for_warehouse, self.live.settings.other_warehouses)
        return tuple(map(ErasedWarehouse.of, (self._first, *others)))

    def find(self, number: int) -> Erasure:
        """An erasure. Raises NotFound."""
        found = state.find(self.live.store, Erasure, erasure_path(number))
        if found is None:
            raise NotFound(f"there is no erasure {number}", next_step="kbq erase list")
        return found.value

    def all(self) -> list[Erasure]:
        """All erasures, in order. None is ever deleted."""
        return [self.find(number) for number in self._numbers()]

    def _numbers(self) -> list[int]:
        parsed = (parse_erasure_path(path) for path in self.live.store.paths(ERASURES))
        return sorted(number for number in parsed if number is not None)

    def propose(
        self, topic: str, chosen: PersonRecords, by_hand: Collection[str] = ()
    ) -> tuple[Erasure, Proposal]:
        """An erasure and its proposal. Applying the proposal erases the records. ``by_hand`` are tables with the user's
        own SQL, where the user deletes rows of several records. Raises Refused for records that cannot be erased."""
        from kbq_assets.pipelines.erasure.search import Search  # imports numpy

        self._check_alone(topic)
        check_replays(self.live, topic, f"kbq erase start {topic}")
        of_sql = self._check_sql(topic, by_hand)
        number = max(self._numbers(), default=0) + 1
        search = Search(self._places, self.open_source())
        erasure, gaps = search.run(number, ErasedTopic.read(self.live, topic), chosen)
        gaps = (*gaps, *(f"{table}: rows that your SQL made from several records" for table in of_sql))
        lines = (*self._plan(erasure), *(f"not searched: {line}" for line in gaps))
        return erasure, Proposal(f"erasure {number} of {topic}", lines, lambda: self._start(erasure))

    def _plan(self, erasure: Erasure) -> Iterable[str]:
        """Lines about an erasure's tables and files, and about the places that it cannot reach."""
        erased = counted(erasure.records, "record")
        yield f"erases {erased}, and keeps those of the same person from these positions on:"
        for number, each in sorted(erasure.partitions.items()):
            yield f"  {erasure.topic}[{number}]: {counted(size(each.offsets), 'record')} below {each.until}"
        for place in self._places:
            yield from place.plan(erasure)
        copies = [at for area in self._areas(erasure) for at in self._copies(area, erasure).left(erasure)]
        if copies:
            records = sum(size(found) for _, found in copies)
            rewritten = counted(len(copies), "file is", "files are")
            yield f"backup: {rewritten} rewritten without {counted(records, 'record')}"
        known = state.table_registry(self.live.load_store).warehouses
        removed = sorted(name for name, status in known.items() if status == REMOVED)
        yield from beyond_reach(self._places, removed, erasure)

    def _check_sql(self, topic: str, by_hand: Collection[str]) -> list[str]:
        """The tables that the user's own SQL maintains. Raises Refused if the user did not name one of them."""
        found = [table for place in self._places for table in place.sql_tables(topic)]
        for table in found:
            if table not in by_hand:
                raise Refused(
                    f"{table} is maintained by your own SQL, so KBQ does not know which records its rows come from",
                    next_step="delete rows that it made from several records by hand (docs/erasure.md), and add"
                    f" --by-hand '{table}': the erasure deletes only rows that have a record's position",
                )
        return found

    def _check_alone(self, topic: str) -> None:
        """Raise Refused while another erasure of the topic is not done (X1)."""
        for other in self.all():
            if other.topic == topic and other.phase != ErasurePhase.DONE:
                raise Refused(
                    f"erasure {other.number} of {topic} is not done",
                    next_step=f"kbq erase resume {other.number}",
                )

    def _start(self, erasure: Erasure) -> None:
        if not erasure.records:
            raise Refused(
                "there are no such records, or all are erased",
                next_step="check the key or the column's value",
            )
        try:
            self.live.store.create(erasure_path(erasure.number), codec.dumps(erasure))
        except PreconditionFailed as conflict:
            raise Refused(
                f"erasure {erasure.number} was started by another process", next_step="run the command again"
            ) from conflict
        self.resume(erasure.number)

    # Steps --------------------------------------------------------------------------------------------------------

    def resume(self, number: int) -> Erasure:
        """Continue until the erasure is done. Raises Refused and Unavailable, with the next step."""
        erasure, live = self.find(number), self.live
        if erasure.phase == ErasurePhase.DONE:
            for place in self._places:
                place.delete(number)  # nothing is left; this frees tables that a late process made wait
            return erasure
        if erasure.phase == ErasurePhase.BEGUN:
            version = log.enter(live.store, erasure)
            for store in (live.store, *self._areas(erasure)):
                log.raise_commits(store, erasure.topic, version)
            self._enter(number, ErasurePhase.BEGUN, ErasurePhase.LOGGED)
        again = f"kbq erase resume {number}"
        check_replays(live, erasure.topic, again)
        problems = [error for place in self._places if (error := place.delete(number))]
        self._rewrite(erasure)
        if problems:
            raise min(problems, key=lambda error: isinstance(error, TransientError))
        self._check_deleted(erasure, again)
        if found := self.verify(number):
            raise Refused(f"erasure {number} is not done: {found[0]}", next_step=again)
        return self._enter(number, ErasurePhase.LOGGED, ErasurePhase.DONE)

    def _check_deleted(self, erasure: Erasure, again: str) -> None:
        """Delete files of dead runs, and old backup files. Raises Refused if one of the topic is left."""
        failures = [*delete_loaded(self.live, erasure), *clean(self.live.load_store).failures]
        for area in backup_areas(self.live, erasure.topic, Role.LOAD):
            void_merges(area, erasure.topic)
            failures += clean_backups(area, 0, replaced_ms=0).failures
        if left := [failure for failure in failures if is_of_topic(failure, erasure.topic)]:
            raise Refused(f"{counted(len(left), 'file')} could not be deleted: {left[0]}", next_step=again)

    def _areas(self, erasure: Erasure) -> list[BackupArea]:
        return backup_areas(self.live, erasure.topic)

    def _copies(self, area: BackupArea, erasure: Erasure) -> TopicBackup:
        from kbq_assets.pipelines.erasure.backup_files import TopicBackup  # imports numpy

        return TopicBackup.of(area, erasure.topic, self.live.settings.backup.codec, self.open_copies)

    def _rewrite(self, erasure: Erasure) -> None:
        """Rewrite backup files without the records, and count the files."""
        for area in self._areas(erasure):
            files = self._copies(area, erasure).rewrite(erasure, lambda: uuid.uuid4().hex[:20])
            if files:
                counted = partial(_with_files, files=files)
                state.change(self.live.store, Erasure, erasure_path(erasure.number), counted)

    def verify(self, number: int) -> tuple[str, ...]:
        """Lines about places that still have records of an erasure; empty once it is done. Raises Unavailable."""
        erasure = self.find(number)
        rows = (line for place in self._places for line in place.left(erasure))
        known = log.read_log(self.live.store, erasure.topic)
        is_logged = known is not None and known.version >= number
        missing = () if is_logged else (f"the erasure log of {erasure.topic} does not have it",)
        copies = (
            f"{file.path}: {counted(size(found), 'record')}"
            for area in self._areas(erasure)
            for file, found in self._copies(area, erasure).left(erasure)
        )
        return (*missing, *rows, *copies)

    def _enter(self, number: int, before: ErasurePhase, phase: ErasurePhase) -> Erasure:
        def change(erasure: Erasure) -> Erasure:
            if erasure.phase != before:
                return erasure
            if phase != ErasurePhase.DONE:
                return erasure.at(phase)
            times = dataclasses.replace(erasure.times, ended_ms=self.live.store.now_ms())
            return dataclasses.replace(erasure.at(phase), times=times)

        return state.change(self.live.store, Erasure, erasure_path(number), change).value


def _with_files(erasure: Erasure, *, files: int) -> Erasure:
    return dataclasses.replace(
        erasure, first=dataclasses.replace(erasure.first, files=erasure.first.files + files)
    )


def beyond_reach(
    places: Iterable[ErasedWarehouse], removed: Iterable[str], erasure: Erasure
) -> Iterable[str]:
    """Lines of a plan about places that KBQ cannot reach, and how long records stay there."""
    yield "beyond reach: Kafka, until the topic's retention or a tombstone removes the records"
    for place in places:
        yield from place.keeps(erasure)
    for name in removed:
        yield f"beyond reach: the tables of warehouse {name}, which was removed"
    yield "beyond reach: deleted objects of a bucket, until its soft delete and old versions expire"
    yield "beyond reach: tables that are derived from these"
