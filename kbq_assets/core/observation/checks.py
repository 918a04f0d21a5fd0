"""What is wrong, from state alone: results as values, and the topics whose files wait because of them (PROTOCOL L9).

Commits must be as new as the tables' states, or newer: what has been loaded was committed before. A load view is read
in that order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Final

from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.observation.check_names import (
    BLOCKABLE,
    CHECKS,
    COMMITS_SMALL,
    CONTIGUOUS,
    DATA_FRESH,
    ERRORS_FEW,
    LAG_SHORT,
    ROWS_MATCH,
)
from kbq_assets.core.protocol.commits import Commit, Counts, PartitionCommit, StagedFile, Window
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import BrokerOffsets, TopicPartition
from kbq_assets.core.topics.topic_settings import TopicSettings

#: Files of one commit object from which on it is called large: some 4 MB, rewritten with every window published.
MANY_FILES: Final = 10_000
#: Findings that a message names; the others are counted.
_NAMED: Final = 5


@dataclass(frozen=True)
class CheckResult:
    """One check of one topic or table. ``commands`` are the operator's next steps, where it failed.

    ``blocks``: the topic's files wait until it passes. ``numbers`` are what was measured.
    """

    check: str
    subject: str
    message: str
    passed: bool = True
    commands: tuple[str, ...] = ()
    blocks: bool = False
    numbers: Mapping[str, float] = field(default_factory=dict)

    @property
    def severity(self) -> str:
        """`error` or `warn`."""
        return CHECKS[self.check].severity

    @property
    def line(self) -> str:
        """In one line, with the next step."""
        blocked = "; its files are not loaded until this passes" if self.blocks else ""
        following = " or ".join(f"`{command}`" for command in self.commands)
        return f"{self.subject}: {self.message}{blocked}" + (f"; next: {following}" if following else "")


@dataclass(frozen=True)
class LoadBlock:
    """Why a topic's files wait (PROTOCOL L9)."""

    topic: str
    check: str
    message: str
    commands: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.topic} is blocked by {self.check}: {self.message}"


@dataclass(frozen=True)
class TopicLag:
    """What waits on the broker: positions, the partition with most of them, and partitions with a record that has
    waited for longer than ``max_lag_seconds``, or ``max_age_seconds``."""

    positions: int = 0
    behind: int = 0
    late: tuple[TopicPartition, ...] = ()
    stale: tuple[TopicPartition, ...] = ()


def failed(
    check: str, subject: str, findings: Collection[str], commands: Iterable[str], **numbers: float
) -> CheckResult:
    """A failed check, its first findings named."""
    return CheckResult(check, subject, in_words(findings), False, tuple(commands), numbers=numbers)


def in_words(findings: Collection[str]) -> str:
    """The first findings, and how many more there are."""
    more = f" and {len(findings) - _NAMED} more" if len(findings) > _NAMED else ""
    return "; ".join(list(findings)[:_NAMED]) + more


# Offsets contiguous ---------------------------------------------------------------------------------------------------


def commit_findings(commit: Commit) -> list[str]:
    """What contradicts itself in a commit: holes, overlaps, counts that do not add up."""
    return [finding for partition in commit.partitions for finding in _partition_findings(commit, partition)]


def _partition_findings(commit: Commit, partition: int) -> Iterator[str]:
    tp, state = commit.topic_partition(partition), commit.partitions[partition]
    counted = state.totals.positions
    if counted != state.next - state.start:
        yield f"{tp}: {counted} positions are counted in [{state.start}, {state.next})"
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
    return accounted and counts.staged + counts.errors + counts.skipped == counts.records


def _window_findings(
    commit: Commit, tp: TopicPartition, state: PartitionCommit, window: Window
) -> Iterator[str]:
    where = f"{tp}: window [{window.first}, {window.until})"
    if window.counts.positions != window.until - window.first or not _adds_up(window.counts):
        yield f"{where}: its counts do not add up"
    if sum(file.rows for file in window.files) > window.counts.staged + window.counts.errors:
        yield f"{where}: its files have more rows than were counted"
    for file in window.files:
        name = file.name
        if name.topic_partition != tp or not state.since <= name.epoch <= commit.epoch:
            yield f"{where}: {file.path} is of another partition or epoch"
    yield from (f"{where}: {finding}" for finding in _hole_between(window))


def _hole_between(window: Window) -> Iterator[str]:
    """Files of a table and schema follow each other and end where the window does (E8). Some may have been loaded, or
    set aside for a parked table: then all of them."""

    def series(file: StagedFile) -> tuple[TableReference, int]:
        return file.table, file.name.schema_id

    for _, files in groupby(sorted(window.files, key=lambda f: (*series(f), f.name.first_offset)), series):
        chain = list(files)
        if chain[0].name.first_offset < window.first or chain[-1].until != window.until:
            yield f"the files of {chain[0].table} do not lie in it"
        for before, after in pairwise(chain):
            if before.until != after.name.first_offset:
                yield f"{after.path} does not follow the file that ends at {before.until}"


@dataclass(frozen=True)
class Loaded:
    """How far a table has rows of a partition and epoch."""

    table: TableReference
    topic_partition: TopicPartition
    epoch: int
    until: int


def loaded_marks(table: TableReference, state: TableState) -> list[Loaded]:
    """A table's marks (`core.loading.mark_key`), the highest of all schemas."""
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
    """Topics of which a table has rows."""
    return {key.rsplit("/", 3)[0] for key in state.marks}


def beyond_commit(commits: Iterable[Commit], marks: Iterable[Loaded]) -> dict[str, list[str]]:
    """Per topic, rows that are loaded from beyond what is committed: the commit is older than the table."""
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
                f"the commit stands at {state.next} in epoch {commit.epoch}"
            )
    return found


def contiguous_result(topic: str, findings: Collection[str]) -> CheckResult:
    """Whether offsets follow each other."""
    if not findings:
        return CheckResult(CONTIGUOUS, topic, "every position is accounted for")
    commands = ("restore commits/ and tables/ of one moment", f"kbq reconcile --topic {topic}")
    return failed(CONTIGUOUS, topic, findings, commands, problems=len(findings))


# Thresholds -----------------------------------------------------------------------------------------------------------


def error_result(topic: str, commits: Iterable[Commit], settings: TopicSettings) -> CheckResult:
    """The share of bad records in the windows that the commit lists. Few records are not judged by their share."""
    counts = [w.counts for c in commits for p in c.partitions.values() for w in p.windows]
    records, errors = sum(c.records for c in counts), sum(c.errors for c in counts)
    share = errors / records if records else 0.0
    message = f"{errors:,} of the last {records:,} records are bad ({share:.1%})"
    if not 0 < settings.checks.max_error_share < share or records < settings.records.error_share_records:
        return CheckResult(
            ERRORS_FEW, topic, message, numbers={"records": records, "errors": errors, "share": share}
        )
    commands = (f"kbq errors list --topic {topic}",)
    message = f"{message}, max_error_share={settings.checks.max_error_share}"
    return failed(ERRORS_FEW, topic, (message,), commands, records=records, errors=errors, share=share)


def small_result(topic: str, commits: Iterable[Commit], *, blocked: bool) -> CheckResult:
    """Whether commits are small enough to be rewritten with every window."""
    files = max((sum(1 for _ in commit.files) for commit in commits), default=0)
    message = f"{files:,} files in its largest commit object"
    if files <= MANY_FILES:
        return CheckResult(COMMITS_SMALL, topic, message, numbers={"files": files})
    why = "they wait for a check" if blocked else "they are not loaded"
    commands = ("kbq load", "kbq park --table DATASET.TABLE moves a table's files to its backlog")
    return failed(COMMITS_SMALL, topic, (f"{message}: {why}",), commands, files=files)


def lag_of(state: PartitionCommit | None, broker: BrokerOffsets, settings: TopicSettings) -> int:
    """Positions that one partition has yet to read. What retention has taken is not to be read any more."""
    if state is None:
        return 0 if settings.extraction.start == "latest" else broker.latest - broker.earliest
    return max(0, broker.latest - max(state.next, broker.earliest))


def lag_seconds(settings: TopicSettings) -> int:
    """How long a record may wait on the broker, 0 for any time: small data is allowed to wait besides."""
    waits = (
        settings.extraction.max_wait_seconds
        if settings.extraction.min_records or settings.extraction.min_bytes
        else 0
    )
    return settings.checks.max_lag_seconds + waits if settings.checks.max_lag_seconds else 0


def lag_result(topic: str, lag: TopicLag, settings: TopicSettings) -> CheckResult:
    """Whether extraction keeps up."""
    findings = []
    if 0 < settings.checks.max_lag_records < lag.positions:
        findings.append(
            f"{lag.positions:,} positions are unread, max_lag_records={settings.checks.max_lag_records}"
        )
    if lag.late:
        findings.append(
            f"records of {_places(lag.late)} have been unread for more than {lag_seconds(settings):,} s"
        )
    numbers = {"positions": lag.positions, "partitions": lag.behind, "late_partitions": len(lag.late)}
    if not findings:
        message = f"{lag.positions:,} positions of {lag.behind} partitions are unread"
        return CheckResult(LAG_SHORT, topic, message, numbers=numbers)
    return failed(LAG_SHORT, topic, findings, (f"kbq plan extract --topic {topic}", "kbq extract"), **numbers)


def fresh_result(
    topic: str, waiting: Mapping[TableReference, int], lag: TopicLag, settings: TopicSettings, now_ms: int
) -> CheckResult:
    """Whether what happened ``max_age_seconds`` ago is in the tables. ``waiting``: the Kafka time of each table's
    oldest record that is committed and not loaded."""
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
        return CheckResult(DATA_FRESH, topic, fine, numbers=numbers)
    return failed(DATA_FRESH, topic, findings, ("kbq status", "kbq extract", "kbq load"), **numbers)


def _places(partitions: Collection[TopicPartition]) -> str:
    """Partitions of one topic: ``3 partitions ([0], [4], [7])``."""
    numbers = [f"[{tp.partition}]" for tp in sorted(partitions)]
    named = ", ".join(numbers[:_NAMED]) + (", …" if len(numbers) > _NAMED else "")
    return f"{len(numbers)} partitions ({named})" if len(numbers) > 1 else f"partition {named}"


# Rows -----------------------------------------------------------------------------------------------------------------


def rows_result(table: TableReference, state: TableState, findings: Collection[str] = ()) -> CheckResult:
    """Whether jobs loaded the rows of their files. ``findings``: rows committed that are nowhere."""
    differing = state.new_mismatches
    named = [f"job {m.job_id} loaded {m.actual:,} rows of files with {m.expected:,}" for m in differing]
    if not (named or findings):
        return CheckResult(ROWS_MATCH, str(table), "every job loaded the rows of its files")
    commands = [f"kbq reconcile --counts --table {table}"]
    commands += [f"kbq resume --table {table}"] if differing else []
    return failed(ROWS_MATCH, str(table), [*named, *findings], commands, jobs=len(differing))


# Blocks -------------------------------------------------------------------------------------------------------------


def block_of(results: Iterable[CheckResult], settings: TopicSettings, topic: str) -> LoadBlock | None:
    """The first failed check that the topic's option `blocking` names; None if there is none."""
    for result in results:
        if not result.passed and result.check in settings.checks.blocking and result.check in BLOCKABLE:
            return LoadBlock(topic, result.check, result.message, result.commands)
    return None
