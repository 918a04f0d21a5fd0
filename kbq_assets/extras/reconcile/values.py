"""Checks that rows have the values of their records, for a sample of rows or for all."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from kbq_assets.core.errors import KbqError
from kbq_assets.core.protocol.commits import Commit, StagedFile
from kbq_assets.core.protocol.names import TableReference, schema_path
from kbq_assets.core.protocol.offsets import BrokerOffsets, OffsetRange, TopicPartition
from kbq_assets.core.topics.error_tables import is_error_table
from kbq_assets.core.topics.json.inference import REST
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.extras.reconcile.again import Again, ScratchStore
from kbq_assets.extras.reconcile.findings import Finding, read_again
from kbq_assets.ports.warehouse import EVERYTHING, Comparable, KafkaRange, LoadJob, Warehouse

SAMPLE, ALL, NONE = CHOICES = ("sample", "all", "none")
#: The size of a sample: ranges per partition, positions per range, and partitions.
SAMPLE_RANGES: Final = 2
SAMPLE_POSITIONS: Final = 500
SAMPLE_PARTITIONS: Final = 100
#: Positions that are compared at once, and their bytes by the partition's average.
CHUNK: Final = 20_000
CHUNK_BYTES: Final = 64 * 1024 * 1024
#: Ranges of a topic whose files are compared by one job per table and schema.
GROUP: Final = 50
#: Most differing rows named per table.
SHOWN: Final = 3
NO_VALUES: Final = "this warehouse does not compare values"


@dataclass(frozen=True)
class ValueReport:
    """The number of compared rows, findings about those that differ, reasons why others were not compared, and the
    topics of these. ``excluded`` are columns that cannot be compared, with the reasons."""

    compared: int = 0
    findings: tuple[Finding, ...] = ()
    problems: tuple[str, ...] = ()
    uncompared: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()

    def __add__(self, other: ValueReport) -> ValueReport:
        return ValueReport(
            self.compared + other.compared,
            self.findings + other.findings,
            tuple(dict.fromkeys(self.problems + other.problems)),
            tuple(dict.fromkeys(self.uncompared + other.uncompared)),
            tuple(dict.fromkeys(self.excluded + other.excluded)),
        )


def compare_values(
    again: Again,
    warehouse: Warehouse,
    commits: Iterable[Commit],
    broker: dict[TopicPartition, BrokerOffsets],
    choice: str = SAMPLE,
) -> ValueReport:
    """Compare rows with the records that the broker still has. Each run samples different ranges."""
    commits = list(commits)
    if not warehouse.compares:
        return ValueReport(problems=(NO_VALUES,), uncompared=tuple(sorted({c.topic for c in commits})))
    report, chance = ValueReport(), random.Random()
    ranges = [
        (commit, OffsetRange(tp, first, state.next))
        for commit in commits
        for partition, state in commit.partitions.items()
        if (tp := commit.topic_partition(partition)) in broker
        and (first := max(state.start, broker[tp].earliest)) < state.next
    ]
    if choice == SAMPLE and len(ranges) > SAMPLE_PARTITIONS:
        ranges = sorted(chance.sample(ranges, SAMPLE_PARTITIONS), key=lambda each: each[1].topic_partition)
    for commit in commits:
        of_commit = [whole for other, whole in ranges if other is commit]
        chosen = [range_ for whole in of_commit for range_ in _chosen(commit, whole, choice, chance)]
        size = GROUP if choice == SAMPLE else 1
        for start in range(0, len(chosen), size):
            report += _compare(again, commit, chosen[start : start + size], warehouse)
    return report


@dataclass
class _Found:
    """The result of comparing rows of one extraction with the tables."""

    compared: int = 0
    differing: dict[tuple[TableReference, KafkaRange, int], tuple[str, ...]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    excluded: list[str] = field(default_factory=list)


def _compare(
    again: Again, commit: Commit, ranges: Sequence[OffsetRange], warehouse: Warehouse
) -> ValueReport:
    """Compare the rows of ranges with those that extraction makes from their records today. A row may have pseudonyms
    of an earlier key, so it differs only if it differs under every key."""
    topic = commit.topic
    if (settings := again.settings.get(topic)) is None:
        why = f"{topic}: the source list no longer selects the topic"
        return ValueReport(problems=(why,), uncompared=(topic,))
    comparison = _Comparison(again, commit, settings, warehouse)
    today, *earlier = comparison.keys()
    found = comparison.of(ranges, today, SHOWN if not earlier else sum(r.positions for r in ranges))
    differing = found.differing
    for key in earlier:
        if differing:
            other = comparison.of(ranges, key, sum(r.positions for r in ranges))
            found.problems += other.problems
            differing = {place: names for place, names in differing.items() if place in other.differing}
    problems = tuple(dict.fromkeys(found.problems))
    named = tuple(_finding(*place, names) for place, names in differing.items())
    return ValueReport(
        found.compared, named, problems, (topic,) if problems else (), tuple(dict.fromkeys(found.excluded))
    )


@dataclass(frozen=True)
class _Comparison:
    again: Again
    commit: Commit
    settings: TopicSettings
    warehouse: Warehouse

    def keys(self) -> list[str]:
        """Ids of the pseudonym keys that rows may have, the current one ("") first. Only "" if the topic has no
        pseudonyms."""
        if all(decision.action != "pseudonym" for decision in self.settings.privacy.decisions):
            return [""]
        known = self.again.open_ports().pseudonyms()
        return [""] if known is None else ["", *(key for key in sorted(known.keys) if key != known.current)]

    def of(self, ranges: Sequence[OffsetRange], key: str, limit: int) -> _Found:
        """Extract ranges under a pseudonym key, and compare the rows. Meanwhile the files are in the staging area,
        where the clean-up may delete them."""
        found, store = _Found(), ScratchStore(self.again.open_ports().store, keeps_files=True)
        files: dict[tuple[TableReference, str, int], list[StagedFile]] = {}
        try:
            for range_ in ranges:
                since = self.commit.partitions[range_.topic_partition.partition].since
                outcome = self.again.extract(self.commit, range_, store, accepts=True, key=key)
                if problem := outcome.failure or (outcome.stop.message if outcome.stop else ""):
                    found.problems.append(f"{range_}: {problem}")
                    continue
                for file in (file for window in outcome.windows for file in window.files):
                    files.setdefault((file.table, file.fingerprint, since), []).append(file)
            for (_, _, since), of_schema in files.items():
                self._add(found, of_schema, since, store, limit)
        except (KbqError, OSError) as error:  # a read-only staging area, or a clean-up that was faster
            found.problems.append(f"{ranges[0]}: {error}")
        finally:
            store.discard()
        return found

    def _add(
        self, found: _Found, files: Sequence[StagedFile], since: int, store: ScratchStore, limit: int
    ) -> None:
        """Compare files of one table and schema. Rows of epochs before ``since`` may be of another log, because the
        topic may have been recreated."""
        warehouse, table = self.warehouse, files[0].table
        schema = store.get(schema_path(files[0].fingerprint)).data.decode()
        uris = tuple(store.uri(file.path) for file in files)
        job = LoadJob("kbq-compare", warehouse.project, warehouse.location, table, uris, schema)
        which, why = self._comparable(table)
        rows = warehouse.compare(job, limit, replace(which, since=since))
        if rows is None:
            found.problems.append(NO_VALUES)
            return
        found.compared += rows.compared
        found.excluded += [f"{table}: {self.commit.topic}: {why}"] if why and rows.compared else []
        if rows.skipped:
            found.problems.append(
                f"{table}: rows of {self.commit.topic} with another {REST}: {rows.skipped} of "
                f"{rows.compared + rows.skipped}; the inferred columns may have grown since then"
            )
        found.differing |= {(table, row.range, row.offset): row.columns for row in rows.differing}

    def _comparable(self, table: TableReference) -> tuple[Comparable, str]:
        """The comparable part of a table's rows, and the reason why the rest is not comparable. Columns of JSON
        documents only grow, and types stay, so if the side column is the same, the columns are too."""
        if not is_error_table(table):
            is_inferred = self.settings.records.format == "json_columns"
            return Comparable(same=(REST,), null_lists=True) if is_inferred else EVERYTHING, ""
        if self.settings.privacy.error_rows == "seal":
            return Comparable(
                frozenset({"message", "value"})
            ), "`value` may be sealed, each time in other bytes"
        return Comparable(frozenset({"message"})), ""  # its wording depends on the release


def _finding(table: TableReference, range_: KafkaRange, offset: int, columns: Sequence[str]) -> Finding:
    tp = range_.topic_partition
    return Finding(
        f"{table}: {tp} epoch {range_.epoch}: offset {offset} differs from the broker's record in "
        f"{', '.join(columns)}",
        f"if the topic still has the options that the row was staged with: {read_again(tp, offset)}",
    )


def _chosen(commit: Commit, whole: OffsetRange, choice: str, chance: random.Random) -> Iterator[OffsetRange]:
    tp, first, until = whole.topic_partition, whole.from_offset, whole.until_offset
    state = commit.partitions[tp.partition]
    gaps, average = state.accepted_gaps, state.totals.bytes // max(1, state.totals.records)
    most = max(1, min(CHUNK, CHUNK_BYTES // max(1, average)))
    size = most if choice == ALL else min(most, SAMPLE_POSITIONS)
    starts: Sequence[int] = range(first, until, size)
    if choice == SAMPLE and len(starts) > SAMPLE_RANGES:
        starts = sorted(chance.sample(starts, SAMPLE_RANGES))
    for start in starts:
        end = min(start + size, until)
        if not any(gap.first < end and start < gap.until for gap in gaps):  # accepted gaps may be unreadable
            yield OffsetRange(tp, start, end)
