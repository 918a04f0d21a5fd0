"""Finds the records of a person: in Kafka by key, in tables by column.

This module imports numpy, so commands import it only when they need it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from kbq_assets.core.backup.backup_names import BackupFileName
from kbq_assets.core.erasure import offset_sets as sets
from kbq_assets.core.erasure.forgotten_records import epochs_of_log, is_present
from kbq_assets.core.erasure.model import ErasedPartition, Erasure, ErasureTimes
from kbq_assets.core.erasure.offset_sets import MOST_OFFSETS, offsets_of
from kbq_assets.core.erasure.positions import RecordPosition
from kbq_assets.core.erasure.selection import PersonRecords, variants_in
from kbq_assets.core.errors import NotFound, Refused, TransientError, Unavailable, UnreadableBatch
from kbq_assets.core.protocol.commits import PartitionCommit
from kbq_assets.core.protocol.offsets import BrokerOffsets, OffsetRange, TopicPartition
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.pipelines.erasure.backup_files import TopicBackup
from kbq_assets.pipelines.erasure.covered_warehouse import ErasedWarehouse
from kbq_assets.pipelines.erasure.topic import (
    ErasedTopic,
    backup_areas,
    check_same_log,
    is_in_job,
    unloaded_files,
)
from kbq_assets.pipelines.protocol.erasures import erased_of
from kbq_assets.pipelines.protocol.evolutions import stored_evolutions
from kbq_assets.ports.kafka import WITH_KEYS, RecordBatch, RecordSource
from kbq_assets.wire.arrow.errors import BadFile
from kbq_assets.wire.chunk import Chunk
from kbq_assets.wire.files.find_rows import ColumnSearch
from kbq_assets.wire.files.read_container import DamagedFile


@dataclass
class SearchResult:
    """Offsets in current partitions, in older epochs and in copies, and the gaps that could not be searched."""

    offsets: defaultdict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    older: defaultdict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    copies: defaultdict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    gaps: list[str] = field(default_factory=list)
    #: the end of the search in each partition, if it lies beyond its position
    until: dict[int, int] = field(default_factory=dict)

    def add(self, partition: int, epoch: int, since: int, offsets: sets.Offsets) -> None:
        """Add offsets of an epoch of a partition that began in epoch ``since``."""
        own = self.offsets[partition] if epoch >= since else self.older[f"{partition}/{epoch}"]
        own.update(sets.each_of(offsets))

    def check_size(self) -> None:
        """Raise Refused for more records than one erasure can have."""
        sizes = map(len, (*self.offsets.values(), *self.older.values(), *self.copies.values()))
        most = max(sizes, default=0)
        if most > MOST_OFFSETS:
            raise Refused(
                f"more than {MOST_OFFSETS:,} records of a partition are chosen",
                next_step="choose fewer persons at once",
            )


@dataclass(frozen=True)
class Search:
    """Searches all places that may have a person's records of one topic."""

    places: Sequence[ErasedWarehouse]
    source: RecordSource

    @property
    def live(self) -> Deployment:
        """The deployment with its first warehouse."""
        return self.places[0].live

    def run(self, number: int, topic: ErasedTopic, chosen: PersonRecords) -> tuple[Erasure, tuple[str, ...]]:
        """The erasure of the records found, and lines about what was not searched. Raises Refused, Unavailable."""
        topic = topic.with_new_partitions(check_same_log(self.live, topic))
        found = SearchResult()
        copies = [TopicBackup.of(area, topic.topic) for area in backup_areas(self.live, topic.topic)]
        if keys := chosen.keys | self._tombstoned(chosen.tombstones):
            self._search_keys(topic, copies, keys, found)
        self._add_positions(topic, chosen.positions, found)
        if chosen.columns:
            self._search_columns(topic, chosen.columns, found)
        is_by_key = not (chosen.columns or chosen.positions)
        if not is_by_key and any(not is_present(topic.ids, *at) for each in copies for at in each.files()):
            found.gaps.append(
                f"the backup of {topic.topic} before its reset was not searched by column or position"
            )
        # A column may be searched for several values, so gaps may repeat.
        return self._erasure(number, topic, copies, found), tuple(dict.fromkeys(found.gaps))

    def _erasure(
        self, number: int, topic: ErasedTopic, copies: Sequence[TopicBackup], found: SearchResult
    ) -> Erasure:
        partitions = {
            tp.partition: ErasedPartition(
                state.since,
                commit.epoch,
                max(state.next, found.until.get(tp.partition, 0)),
                _new(found.offsets[tp.partition], erased_of(self.live.store, commit, tp.partition)),
            )
            for tp, (commit, state) in topic.partitions.items()
        }
        older, former = (
            {key: offsets_of(own) for key, own in sorted(each.items()) if own}
            for each in (found.older, found.copies)
        )
        # Epochs of two areas differ. Then the commits decide, at the time of the deletion.
        commits = copies[0].commits if copies else {}
        copied = epochs_of_log(topic.ids, partitions, commits) if len(copies) < 2 else {}
        times = ErasureTimes(self.live.store.now_ms())
        return Erasure(
            number, topic.topic, *topic.ids, partitions, older, copies=former, copied=copied, times=times
        )

    def _search_keys(
        self, topic: ErasedTopic, copies: Sequence[TopicBackup], keys: frozenset[bytes], found: SearchResult
    ) -> None:
        for each in copies:
            self._search_copies(topic, each, keys, found)
        for tp, (_, state) in topic.partitions.items():
            until = max((e.until(topic.ids, tp, state.start) for e in copies), default=state.start)
            self._search_log(tp, state, keys, found, until)
            found.check_size()

    def _search_columns(
        self, topic: ErasedTopic, columns: Sequence[tuple[str, str]], found: SearchResult
    ) -> None:
        # Search waiting files first: if one is loaded meanwhile, the search of the tables finds it.
        variants = dict.fromkeys(variants_in(columns, stored_evolutions(self.live.store)))
        waiting = self._search_waiting(topic, (*columns, *variants), found)
        for column, value in (*columns, *variants):
            is_known, is_variant = column in waiting, (column, value) in variants
            self._search_tables(topic, (column, value), found, is_known=is_known, is_variant=is_variant)
            found.check_size()
        found.gaps += [line for place in self.places for line in place.statement_gaps(topic.topic)]
        ends = self.live.offsets.offsets(list(topic.partitions))
        found.gaps += [
            f"{tp}: records before {state.start} were not searched by column, but a reset may read them: use --key"
            for tp, (_, state) in topic.partitions.items()
            if tp in ends and ends[tp].earliest < min(state.start, ends[tp].latest)
        ]

    def _tombstoned(self, topic: str) -> frozenset[bytes]:
        """Keys of a topic whose last record is a tombstone."""
        if not topic:
            return frozenset()
        described = self.live.offsets.topics((topic,)).get(topic)
        if described is None:
            raise NotFound(f"topic {topic} is not on the broker", next_step="check the name")
        wanted = [TopicPartition(topic, p) for p in range(described.partitions)]
        found = self.live.offsets.offsets(wanted)
        if silent := [tp for tp in wanted if tp not in found]:
            raise Unavailable(
                f"the broker reports no offsets for {silent[0]}", next_step="run the command again"
            )
        ranges = [OffsetRange(tp, broker.earliest, broker.latest) for tp, broker in sorted(found.items())]
        ended: dict[OffsetRange, dict[bytes, int]] = {range_: {} for range_ in ranges if range_}
        for range_, own in ended.items():
            for batch in self._tombstones_in(range_):
                _follow(batch.chunk, own)
        keys = {key for own in ended.values() for key in own}
        deleted = {key: max(own.get(key, -1) for own in ended.values()) for key in keys}
        # If the topic got more partitions, a key may have a later record in another one.
        for range_, own in ended.items() if len(ended) > 1 and deleted else ():
            for batch in self._tombstones_in(range_):
                _keep_returned(batch.chunk, own, deleted)
        return frozenset(deleted)

    def _tombstones_in(self, range_: OffsetRange) -> Iterator[RecordBatch]:
        """The batches of a range. Raises Refused for one that cannot be read: it may have a key's later record."""
        try:
            yield from self.source.read(range_, WITH_KEYS)
        except UnreadableBatch as error:
            raise Refused(
                f"{range_.topic_partition} may have later records of these keys: {error.message}",
                next_step="give the keys with --key-file instead of --tombstones",
            ) from error

    def _search_copies(
        self, topic: ErasedTopic, copies: TopicBackup, keys: frozenset[bytes], found: SearchResult
    ) -> None:
        """Add records in a backup. Offsets in its earlier epochs may be of another log."""
        wanted = WantedKeys.of(keys)
        for commit, file in copies.files():
            name = BackupFileName.parse(file.path)
            partition = name.range.topic_partition.partition
            is_of_log = is_present(topic.ids, commit, file)
            own = found.offsets[partition] if is_of_log else found.copies[f"{partition}/{name.epoch}"]
            try:
                matching = copies.matching(file, wanted.matching)
            except (DamagedFile, NotFound) as error:
                found.gaps.append(f"{file.path} cannot be read: {error.message}")
                continue
            own.update(sets.each_of(matching))

    def _search_log(
        self,
        tp: TopicPartition,
        state: PartitionCommit,
        keys: frozenset[bytes],
        found: SearchResult,
        copied_until: int,
    ) -> None:
        """Add records in Kafka, including those that are not extracted yet."""
        broker = self.live.offsets.offsets([tp]).get(tp)
        if broker is None:
            found.gaps.append(f"{tp} is not on the broker: its records were not searched by key")
            return
        if copied_until < broker.earliest:
            found.gaps.append(
                f"{tp}: neither Kafka nor a backup has all records below {broker.earliest}: rows before it were not"
                " searched by key; --where searches them by column"
            )
        if state.since > 1:
            found.gaps.append(f"{tp}: rows before its reset to epoch {state.since} were not searched by key")
        found.until[tp.partition] = broker.latest
        wanted = WantedKeys.of(keys)
        # A reset may read the records before the start, too.
        begin = min(max(broker.earliest, state.start), broker.latest)
        for range_ in (OffsetRange(tp, broker.earliest, begin), *_readable(tp, state, broker)):
            self._search_range(range_, wanted, found)

    def _search_range(self, range_: OffsetRange, wanted: WantedKeys, found: SearchResult) -> None:
        """Add records of a range. Batches that cannot be read are gaps."""
        tp, position = range_.topic_partition, range_.from_offset
        while position < range_.until_offset:
            rest = OffsetRange(tp, position, range_.until_offset)
            try:
                for batch in self.source.read(rest, WITH_KEYS):
                    found.offsets[tp.partition].update(wanted.matching(batch.chunk))
                    position = batch.position
            except UnreadableBatch as error:
                first, position = max(position, error.first), max(position + 1, error.until)
                found.gaps.append(
                    f"{tp}: the records [{first}, {position}) cannot be read by key: {error.message}; --where searches"
                    " their rows by column; if a later run reads them, erase again"
                )

    def _add_positions(
        self, topic: ErasedTopic, positions: Iterable[RecordPosition], found: SearchResult
    ) -> None:
        """Add records that the user named. Raises Refused for one that is not written yet."""
        partitions = {tp.partition: (tp, *each) for tp, each in topic.partitions.items()}
        ends = self.live.offsets.offsets([tp for tp in topic.partitions]) if positions else {}
        for partition, offset, epoch in sorted(positions):
            if partition not in partitions:
                raise Refused(f"{topic.topic} has no partition {partition}", next_step="check the positions")
            tp, commit, state = partitions[partition]
            at = epoch or commit.epoch
            is_written = offset < (ends[tp].latest if tp in ends else state.next)
            if at > commit.epoch or (at >= state.since and not is_written):
                raise Refused(f"{tp} has no record {offset} in epoch {at}", next_step="check the positions")
            found.add(partition, at, state.since, offsets_of([offset]))
            if at >= state.since:
                found.until[partition] = max(found.until.get(partition, 0), offset + 1)

    def _search_waiting(
        self, topic: ErasedTopic, columns: Sequence[tuple[str, str]], found: SearchResult
    ) -> set[str]:
        """Add rows in quarantine and in staged files that no table has loaded; return the columns that were found."""
        since = {tp.partition: state.since for tp, (_, state) in topic.partitions.items()}
        search = ColumnSearch(columns)
        for place in self.places:
            for each in unloaded_files(
                place.live, lambda file: file.name.topic_partition.topic == topic.topic
            ):
                partition, epoch = each.file.name.topic_partition.partition, each.file.name.epoch
                try:
                    with place.live.load_store.open_read(each.stored) as stream:
                        offsets = offsets_of(search.offsets(stream))
                except NotFound:
                    if is_in_job(place.live, each):
                        found.gaps.append(
                            f"{each.stored} is gone, but a load job in flight may have a copy of it"
                        )
                    continue  # or it was loaded meanwhile
                except BadFile as error:
                    found.gaps.append(f"{each.stored} cannot be read: {error.message}")
                    continue
                found.add(partition, epoch, since.get(partition, epoch), offsets)
        found.check_size()
        return search.columns

    def _search_tables(
        self,
        topic: ErasedTopic,
        wanted: tuple[str, str],
        found: SearchResult,
        *,
        is_known: bool,
        is_variant: bool,
    ) -> None:
        column, value = wanted
        since = {tp.partition: state.since for tp, (_, state) in topic.partitions.items()}
        known: list[str] = []
        has_column = is_known or is_variant
        for place in self.places:
            try:
                tables, rows = place.find(topic.topic, column, value, MOST_OFFSETS + 1)
            except TransientError as error:
                found.gaps.append(f"{place.label}its tables by column {column}: {error.message}")
                continue
            known += [f"{place.label}{table}" for table in tables]
            has_column = has_column or bool(rows)
            for each in rows.values():
                for partition, epoch, offsets in each.places:
                    found.add(partition, epoch, since.get(partition, epoch), offsets)
            found.gaps += [
                f"{place.label}{table} has no column {column}: its rows were not searched by it"
                for table in tables
                if table not in rows and not is_variant
            ]
        if not has_column:
            raise Refused(
                f"no table of {topic.topic} has a column {column}",
                next_step=f"its tables: {', '.join(known) or 'none'}",
            )


def _readable(tp: TopicPartition, state: PartitionCommit, broker: BrokerOffsets) -> Iterator[OffsetRange]:
    """Ranges of the log, without gaps that an operator accepted, because some of them cannot be read."""
    first = max(broker.earliest, state.start)
    for gap in sorted(state.accepted_gaps, key=lambda gap: gap.first):
        if gap.until > first:
            if gap.first > first:
                yield OffsetRange(tp, first, gap.first)
            first = gap.until
    if first < broker.latest:
        yield OffsetRange(tp, first, broker.latest)


def _new(found: set[int], erased: sets.Offsets) -> sets.Offsets:
    """Offsets that no earlier erasure has."""
    return offsets_of(offset for offset in found if not sets.has(erased, offset))


def _follow(chunk: Chunk, deleted: dict[bytes, int]) -> None:
    """Update the deleted keys, with the times of their tombstones, with the next records of a partition."""
    for row in range(len(chunk)):
        if key := chunk.key(row):
            if chunk.starts[row] < 0:
                deleted[key] = int(chunk.timestamps[row])
            else:
                deleted.pop(key, None)


def _keep_returned(chunk: Chunk, own: Mapping[bytes, int], deleted: dict[bytes, int]) -> None:
    """Remove keys that have a record after their last tombstone, which is not in this partition (``own``)."""
    for row in range(len(chunk)):
        key = chunk.key(row)
        if key is None or key in own or key not in deleted or chunk.starts[row] < 0:
            continue
        if int(chunk.timestamps[row]) > deleted[key]:
            del deleted[key]


@dataclass(frozen=True)
class WantedKeys:
    """Wanted keys and their lengths. The length alone rules out most records."""

    keys: frozenset[bytes]
    lengths: np.ndarray

    @classmethod
    def of(cls, keys: frozenset[bytes]) -> WantedKeys:
        return cls(keys, np.array(sorted({len(key) for key in keys}), np.int64))

    def matching(self, chunk: Chunk) -> Iterator[int]:
        keys = chunk.keys
        if keys is None or not len(chunk):
            return
        may_match = (keys.starts >= 0) & np.isin(keys.ends - keys.starts, self.lengths)
        for row in np.flatnonzero(may_match).tolist():
            if keys.get(row) in self.keys:
                yield int(chunk.offsets[row])
