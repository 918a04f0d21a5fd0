"""Checks that only need state: their results as values, and the load blocks that follow from them (PROTOCOL L9).

Commits must be at least as new as the tables' states, because rows are committed before they are loaded. So a load view
reads tables' states first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Final

from kbq_assets.core.loading.batches import LoadLimits
from kbq_assets.core.loading.mismatches import jobs_of
from kbq_assets.core.loading.quota import JobCounts
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.observation import check_names as names
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.commits import Commit, PartitionCommit, StagedFile, Window
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import BrokerOffsets, TopicPartition
from kbq_assets.core.topics.topic_settings import TopicSettings

#: A commit object with more files is too large: about 4 MB, rewritten with every published window.
MANY_FILES: Final = 10_000
#: The share of a quota from which on the check fails.
_NEAR_QUOTA: Final = 0.9
#: Most findings named in a message; the others are counted.
_NAMED: Final = 5


@dataclass(frozen=True)
class CheckResult:
    """One check of one topic or table."""

    check: str
    #: the topic or table
    subject: str
    message: str
    passed: bool = True
    #: the operator's next steps, if it failed
    commands: tuple[str, ...] = ()
    #: whether the topic's files wait until the check passes
    blocks: bool = False
    #: measured values
    numbers: Mapping[str, float] = field(default_factory=dict)
    #: the topic's stopped partitions; -1 for the whole topic
    partitions: tuple[int, ...] = ()
    #: the parts of a problem that a person decides one by one, each with its reason
    causes: tuple[str, ...] = ()

    @property
    def severity(self) -> str:
        """`error` or `warn`."""
        return names.CHECKS[self.check].severity

    @property
    def line(self) -> str:
        return f"{self.subject}: {self.cause}"

    @property
    def cause(self) -> str:
        """The result without its subject, in one line, with the next step."""
        blocked = "; its files are not loaded until this passes" if self.blocks else ""
        following = " or ".join(f"`{command}`" for command in self.commands)
        return f"{self.message}{blocked}" + (f"; next: {following}" if following else "")


@dataclass(frozen=True)
class LoadBlock:
    """The reason that a topic's files wait (PROTOCOL L9)."""

    topic: str
    check: str
    message: str
    commands: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.topic} is blocked by {self.check}: {self.message}"


@dataclass(frozen=True)
class TopicLag:
    """Unread positions of a topic."""

    positions: int = 0
    #: number of partitions with unread positions
    behind: int = 0
    #: partitions with a record that has waited longer than ``max_lag_seconds``
    late: tuple[TopicPartition, ...] = ()
    #: partitions with a record that has waited longer than ``max_age_seconds``
    stale: tuple[TopicPartition, ...] = ()
    #: partitions with a transaction that has been open for longer than ``max_lag_seconds``
    held: tuple[TopicPartition, ...] = ()


def failed(
    check: str, subject: str, findings: Collection[str], commands: Iterable[str], **numbers: float
) -> CheckResult:
    """The result of a failed check, with its first findings."""
    return CheckResult(check, subject, in_words(findings), False, tuple(commands), numbers=numbers)


def in_words(findings: Collection[str]) -> str:
    """The first findings, and the number of further ones, as text."""
    more = f" and {len(findings) - _NAMED} more" if len(findings) > _NAMED else ""
    return "; ".join(list(findings)[:_NAMED]) + more


# Offsets contiguous ---------------------------------------------------------------------------------------------------


def commit_findings(commit: Commit) -> list[str]:
    """Contradictions in a commit: holes, overlaps, counts that do not add up."""
    return [finding for partition in commit.partitions for finding in _partition_findings(commit, partition)]


def _partition_findings(commit: Commit, partition: int) -> Iterator[str]:
    tp, state = commit.topic_partition(partition), commit.partitions[partition]
    positions = state.totals.positions
    if positions != state.next - state.start:
        yield f"{tp}: {counted(positions, 'position is', 'positions are')} counted in [{state.start}, {state.next})"
    if not _adds_up(state.totals):
        yield f"{tp}: the counts of its positions do not add up"
    if sum(w.counts.records for w in state.windows) > state.totals.records:
        yield f"{tp}: its windows have more records than were ever counted"
    position = state.start
    for window in state.windows:
        if not position <= window.first < window.until <= state.next:
            bounds = f"between {position} and {state.next}"
            yield f"{tp}: window [{window.first}, {window.until}) does not lie {bounds}"
        position = max(position, window.until)
        yield from _window_findings(commit, tp, state, window)


def _adds_up(counts: Counts) -> bool:
    accounted = counts.records + counts.gaps + counts.lost == counts.positions
    return accounted and counts.staged + counts.errors + counts.skipped + counts.erased == counts.records


def _window_findings(
    commit: Commit, tp: TopicPartition, state: PartitionCommit, window: Window
) -> Iterator[str]:
    where = f"{tp}: window [{window.first}, {window.until})"
    if window.counts.positions != window.until - window.first or not _adds_up(window.counts):
        yield f"{where}: its counts do not add up"
    # Check per warehouse, because an erasure may have divided a file into one per warehouse (X3).
    own = [[f for f in window.files if name in f.wanted_by] for name in _warehouses(window)]
    if any(sum(f.rows for f in files) > window.counts.staged + window.counts.errors for files in own):
        yield f"{where}: its files have more rows than were counted"
    for file in window.files:
        name = file.name
        if name.topic_partition != tp or not state.since <= name.epoch <= commit.epoch:
            yield f"{where}: {file.path} is of another partition or epoch"
    yield from dict.fromkeys(f"{where}: {found}" for files in own for found in _hole_between(window, files))


def _warehouses(window: Window) -> list[str]:
    return sorted({name for file in window.files for name in file.wanted_by})


def _hole_between(window: Window, own: list[StagedFile]) -> Iterator[str]:
    """Findings about gaps between a window's files. Files of one table and schema must be contiguous, or each must
    reach to the window's end (files of one hour, O8). The last must end with the window (E8), unless all were loaded or
    moved to a backlog."""

    def series(file: StagedFile) -> tuple[TableReference, int]:
        return file.table, file.name.schema_id

    for _, files in groupby(sorted(own, key=lambda f: (*series(f), f.name.first_offset)), series):
        chain = list(files)
        if chain[0].name.first_offset < window.first or chain[-1].until != window.until:
            yield f"the files of {chain[0].table} do not lie in it"
        for before, after in pairwise(chain):
            if before.until not in (after.name.first_offset, window.until):
                yield f"{after.path} does not follow the file that ends at {before.until}"


@dataclass(frozen=True)
class Loaded:
    """The position up to which a table has rows of a partition and epoch."""

    table: TableReference
    topic_partition: TopicPartition
    epoch: int
    until: int


def loaded_marks(table: TableReference, state: TableState) -> list[Loaded]:
    """A table's marks, the highest over all schemas (core/loading/table_state.py)."""
    highest: dict[tuple[str, str, str], int] = {}
    for key, until in state.marks.items():
        topic, partition, epoch, _ = key.rsplit("/", 3)
        place = topic, partition, epoch
        highest[place] = max(highest.get(place, 0), until)
    return [
        Loaded(table, TopicPartition(topic, int(partition)), int(epoch), until)
        for (topic, partition, epoch), until in highest.items()
    ]


def topics_of(state: TableState) -> set[str]:
    return {key.rsplit("/", 3)[0] for key in state.marks}


def beyond_commit(commits: Iterable[Commit], marks: Iterable[Loaded]) -> dict[str, list[str]]:
    """Findings by topic about rows loaded from beyond the commit, which means that the commit is older than the
    table."""
    found: dict[str, list[str]] = {}
    positions = {
        commit.topic_partition(p): (commit, s) for commit in commits for p, s in commit.partitions.items()
    }
    for mark in marks:
        commit, state = positions.get(mark.topic_partition, (None, None))
        if commit is None or state is None or mark.epoch < state.since:
            continue
        if mark.until > state.next or mark.epoch > commit.epoch:
            found.setdefault(commit.topic, []).append(
                f"{mark.table} has rows of {mark.topic_partition} up to {mark.until} in epoch {mark.epoch}, "
                f"the commit is at {state.next} in epoch {commit.epoch}"
            )
    return found


def contiguous_result(topic: str, findings: Collection[str]) -> CheckResult:
    if not findings:
        return CheckResult(names.CONTIGUOUS, topic, "every position is accounted for")
    commands = ("restore commits/ and tables/ of one moment", f"kbq reconcile --topic {topic}")
    return failed(names.CONTIGUOUS, topic, findings, commands, problems=len(findings))


# Thresholds -----------------------------------------------------------------------------------------------------------


def error_result(topic: str, commits: Iterable[Commit], settings: TopicSettings) -> CheckResult:
    """Check the share of bad records in the windows listed in the commits, if they have enough records."""
    counts = [w.counts for c in commits for p in c.partitions.values() for w in p.windows]
    records, errors = sum(c.records for c in counts), sum(c.errors for c in counts)
    share = errors / records if records else 0.0
    message = f"bad records: {errors:,} of the last {records:,} ({share:.1%})"
    if not 0 < settings.checks.max_error_share < share or records < settings.records.error_share_records:
        return CheckResult(
            names.ERRORS_FEW, topic, message, numbers={"records": records, "errors": errors, "share": share}
        )
    commands = (f"kbq errors list --topic {topic}",)
    message = f"{message}, max_error_share={settings.checks.max_error_share}"
    return failed(names.ERRORS_FEW, topic, (message,), commands, records=records, errors=errors, share=share)


def small_result(topic: str, commits: Iterable[Commit], *, blocked: bool) -> CheckResult:
    """Check that commits are small enough to rewrite with every window."""
    files = max((sum(1 for _ in commit.files) for commit in commits), default=0)
    message = f"{counted(files, 'file')} in its largest commit object"
    if files <= MANY_FILES:
        return CheckResult(names.COMMITS_SMALL, topic, message, numbers={"files": files})
    why = "they wait for a check" if blocked else "they are not loaded"
    commands = ("kbq load", "kbq park --table DATASET.TABLE moves a table's files to its backlog")
    return failed(names.COMMITS_SMALL, topic, (f"{message}: {why}",), commands, files=files)


def lag_of(state: PartitionCommit | None, broker: BrokerOffsets, settings: TopicSettings) -> int:
    """The unread positions of one partition that retention has not deleted."""
    if state is None:
        return 0 if settings.extraction.start == "latest" else broker.latest - broker.earliest
    return max(0, broker.latest - max(state.next, broker.earliest))


def lag_seconds(settings: TopicSettings) -> int:
    """The longest time that a record may wait on the broker (0: no limit), including the time that small data may
    wait."""
    waits = settings.waits.longest_seconds
    return settings.checks.max_lag_seconds + waits if settings.checks.max_lag_seconds else 0


def lag_result(topic: str, lag: TopicLag, settings: TopicSettings) -> CheckResult:
    """Check that extraction keeps up."""
    findings = []
    if 0 < settings.checks.max_lag_records < lag.positions:
        findings.append(
            f"{counted(lag.positions, 'position is', 'positions are')} unread,"
            f" max_lag_records={settings.checks.max_lag_records}"
        )
    if lag.late:
        findings.append(
            f"records of {_places(lag.late)} have been unread for more than {lag_seconds(settings):,} s"
        )
    commands = [f"kbq plan extract --topic {topic}", "kbq extract"] if findings else []
    if lag.held:
        what = f"a transaction of {_places(lag.held)} has been open for more than {lag_seconds(settings):,} s"
        findings.append(f"{what}: the records after it cannot be read")
        commands.append("kafka-transactions.sh find-hanging, then abort")
    numbers = {"positions": lag.positions, "partitions": lag.behind, "late_partitions": len(lag.late)}
    if not findings:
        message = f"{counted(lag.positions, 'unread position')} of {counted(lag.behind, 'partition')}"
        return CheckResult(names.LAG_SHORT, topic, message, numbers=numbers)
    return failed(names.LAG_SHORT, topic, findings, commands, **numbers)


def fresh_result(
    topic: str, waiting: Mapping[TableReference, int], lag: TopicLag, settings: TopicSettings, now_ms: int
) -> CheckResult:
    """Check that records older than ``max_age_seconds`` are in the tables. ``waiting`` has, by table, the Kafka time of
    the oldest record that is committed but not loaded."""
    oldest = max((now_ms - ms for ms in waiting.values()), default=0) / 1000
    limit, findings = settings.checks.max_age_seconds, []
    if lag.stale:
        findings.append(f"records of {_places(lag.stale)} have been unread for more than {limit:,} s")
    if 0 < limit < oldest:
        late = in_words([str(t) for t, ms in sorted(waiting.items()) if now_ms - ms > limit * 1000])
        findings.append(
            f"records have waited to be loaded for up to {oldest:,.0f} s, max_age_seconds={limit}: {late}"
        )
    numbers = {"oldest_waiting_seconds": round(oldest, 3)}
    if not findings:
        fine = (
            f"the oldest record that waits to be loaded is {oldest:,.0f} s old"
            if waiting
            else "all is loaded"
        )
        return CheckResult(names.DATA_FRESH, topic, fine, numbers=numbers)
    return failed(names.DATA_FRESH, topic, findings, ("kbq status", "kbq extract", "kbq load"), **numbers)


def _places(partitions: Collection[TopicPartition]) -> str:
    """Partitions of one topic as text: ``3 partitions ([0], [4], [7])``."""
    numbers = [f"[{tp.partition}]" for tp in sorted(partitions)]
    named = ", ".join(numbers[:_NAMED]) + (", …" if len(numbers) > _NAMED else "")
    return f"{len(numbers)} partitions ({named})" if len(numbers) > 1 else f"partition {named}"


# Rows -----------------------------------------------------------------------------------------------------------------


def rows_result(table: TableReference, state: TableState, findings: Collection[str] = ()) -> CheckResult:
    """Check that the table has the rows of its files. ``findings`` are about committed rows that are missing or
    duplicated."""
    differing, refused = state.new_mismatches, state.new_quarantined
    named = [str(mismatch) for mismatch in differing]
    if refused:
        rows = sum(bad.file.rows for bad in refused)
        named.append(
            f"{counted(rows, 'row')} of {counted(len(refused), 'file')} in quarantine: {refused[0].error}"
        )
    if not (named or findings):
        return CheckResult(names.ROWS_MATCH, str(table), "every job loaded the rows of its files")
    commands = [f"kbq reconcile --counts --table {table}"] if differing or findings else []
    commands += [f"kbq quarantine list --table {table}"] if refused else []
    commands += [f"kbq resume --table {table}"] if differing or refused else []
    numbers = {"jobs": jobs_of(differing), "quarantined_files": len(refused), "problems": len(findings)}
    return failed(names.ROWS_MATCH, str(table), [*named, *findings], commands, **numbers)


def quota_result(table: TableReference, jobs: JobCounts, limits: LoadLimits, now_ms: int) -> CheckResult:
    """Check that a table is not near the warehouse's quotas. Tables without counts are in a warehouse without
    quotas."""
    used = {
        "load jobs in 24 hours": (jobs.used(now_ms), limits.jobs_per_day),
        "changes of partitions in 24 hours": (jobs.changed(now_ms), limits.changes_per_day),
        "partitions": (jobs.partitions, limits.partitions),
    }
    near = [f"{n:,} of {most:,} {what}" for what, (n, most) in used.items() if n > most * _NEAR_QUOTA]
    if near:
        return failed(names.QUOTA_LEFT, str(table), near, ("kbq status",))
    return CheckResult(names.QUOTA_LEFT, str(table), "far from the warehouse's quotas")


# Blocks -------------------------------------------------------------------------------------------------------------


def block_of(results: Iterable[CheckResult], settings: TopicSettings, topic: str) -> LoadBlock | None:
    """The first failed check that the topic's option `blocking` names; None if there is none."""
    for result in results:
        if not result.passed and result.check in settings.checks.blocking and result.check in names.BLOCKABLE:
            return LoadBlock(topic, result.check, result.message, result.commands)
    return None
