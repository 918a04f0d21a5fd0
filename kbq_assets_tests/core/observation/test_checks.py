"""Checks of the state alone: a healthy state passes all, and each kind of damage fails the intended check."""

from __future__ import annotations

import dataclasses

import pytest

from kbq_assets.core.loading import table_state
from kbq_assets.core.loading.batches import LoadLimits
from kbq_assets.core.loading.mismatches import RowMismatch
from kbq_assets.core.loading.quota import JobCounts
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.observation import checks
from kbq_assets.core.observation.check_names import BLOCKABLE, CHECKS, CONTIGUOUS, ERRORS_FEW, ROWS_MATCH
from kbq_assets.core.observation.checks import CheckResult, TopicLag
from kbq_assets.core.protocol import commits
from kbq_assets.core.protocol.commits import Commit, PartitionCommit, StagedFile, Window
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import BrokerOffsets, TopicPartition
from kbq_assets.core.topics.source_list import parse_source_list
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets_tests.core.catalog.documents import mistake_of
from kbq_assets_tests.strategies import staged_file, window

TABLE = TableReference("d", "t")
TP = TopicPartition("t", 0)
SETTINGS = TopicSettings()


def _commit(*windows: Window) -> Commit:
    fresh = Commit("t", 0, "c", "id", 1, {0: PartitionCommit(0, 0)})
    return commits.publish(fresh, 0, 1, windows)


def _healthy() -> Commit:
    """Two windows, one of two schemas and a rotated file, and a gap between them."""
    rotated = (staged_file(0, 4, window=0), staged_file(4, 9, window=0))
    other = staged_file(1, 9, window=0, schema_id=2, rows=0)
    last = staged_file(13, 20, window=12)
    return _commit(window(0, 9, *rotated, other), window(9, 12, gaps=3), window(12, 20, last))


def _with(commit: Commit, **changes: object) -> Commit:
    return commit.with_partition(0, dataclasses.replace(commit.partitions[0], **changes))  # type: ignore[arg-type]


def _damaged(commit: Commit, number: int, **changes: object) -> Commit:
    windows = list(commit.partitions[0].windows)
    windows[number] = dataclasses.replace(windows[number], **changes)  # type: ignore[arg-type]
    return _with(commit, windows=tuple(windows))


def test_windows_that_were_published_follow_each_other() -> None:
    assert checks.commit_findings(_healthy()) == []


def test_what_is_loaded_set_aside_or_given_up_leaves_no_hole() -> None:
    commit = _healthy()
    pruned = commits.prune(commit, lambda file: file.window == 0)
    set_aside = commits.drop_files(commit, lambda file: file.name.schema_id == 1)
    jumped = commits.accept_gap(commit, 0, 30, "operator")
    reset = commits.reset(commit, {0: 5}, cluster_id="c", topic_id="id", give_up_pending=True)
    assert [checks.commit_findings(each) for each in (pruned, set_aside, jumped, reset)] == [[]] * 4


HEALTHY = _healthy()
FIRST, LAST = HEALTHY.partitions[0].windows[0], HEALTHY.partitions[0].windows[-1]


@pytest.mark.parametrize(
    ("commit", "finding"),
    [
        (_with(HEALTHY, next=21), "t[0]: 20 positions are counted in [0, 21)"),
        (_with(HEALTHY, start=1), "t[0]: 20 positions are counted in [1, 20)"),
        (_with(HEALTHY, windows=(LAST, FIRST)), "t[0]: window [0, 9) does not lie between 20 and 20"),
        (_with(HEALTHY, windows=(FIRST, FIRST)), "t[0]: window [0, 9) does not lie between 9 and 20"),
        (
            _with(HEALTHY, totals=Counts(positions=20, records=20)),
            "t[0]: the counts of its positions do not add up",
        ),
        (
            _with(HEALTHY, totals=Counts(positions=20, gaps=20)),
            "t[0]: its windows have more records than were ever counted",
        ),
        (
            _damaged(HEALTHY, 0, counts=Counts(positions=9, records=8)),
            "t[0]: window [0, 9): its counts do not add up",
        ),
        (
            _damaged(HEALTHY, 0, files=(*FIRST.files, staged_file(0, 9, table="d.u", window=0))),
            "t[0]: window [0, 9): its files have more rows than were counted",
        ),
        (
            _damaged(HEALTHY, 0, files=FIRST.files[::2]),
            "t[0]: window [0, 9): the files of d.t do not lie in it",
        ),
        (
            _damaged(HEALTHY, 0, files=(staged_file(0, 3, window=0), FIRST.files[1])),
            f"t[0]: window [0, 9): {FIRST.files[1].path} does not follow the file that ends at 3",
        ),
        (
            _damaged(HEALTHY, 1, files=(staged_file(13, 20, window=12, epoch=2),)),
            "is of another partition or epoch",
        ),
        (
            _damaged(HEALTHY, 1, files=(staged_file(13, 20, window=12, partition=1),)),
            "is of another partition or epoch",
        ),
    ],
)
def test_a_damaged_commit_is_not_contiguous(commit: Commit, finding: str) -> None:
    found = checks.commit_findings(commit)
    assert any(each.endswith(finding) for each in found)


def _loaded(*files: StagedFile) -> TableState:
    submitted = table_state.begin_job(TableState("u"), files, "p", "l")
    return table_state.record_success(submitted, sum(f.rows for f in files))


def _beyond(commit: Commit, *files: StagedFile) -> dict[str, list[str]]:
    return checks.beyond_commit([commit], checks.loaded_marks(TABLE, _loaded(*files)))


def test_rows_from_beyond_the_commit_say_that_it_is_older_than_the_table() -> None:
    assert _beyond(HEALTHY, staged_file(0, 20)) == {}
    assert list(_beyond(HEALTHY, staged_file(0, 21))) == ["t"]
    assert list(_beyond(HEALTHY, staged_file(0, 5, epoch=2))) == ["t"]
    assert _beyond(HEALTHY, staged_file(0, 99, topic="gone")) == {}


def test_rows_of_epochs_before_a_reset_are_not_beyond_it() -> None:
    reset = commits.reset(HEALTHY, {0: 5}, cluster_id="c", topic_id="id", give_up_pending=True)
    assert _beyond(reset, staged_file(0, 20)) == {}
    assert list(_beyond(reset, staged_file(5, 9, epoch=2))) == ["t"]


def test_a_topic_with_a_slash_in_no_name_is_parsed_from_the_right() -> None:
    marks = checks.loaded_marks(TABLE, TableState("u", marks={"a.b/3/2/7": 5, "a.b/3/2/8": 9}))
    assert [(m.topic_partition, m.epoch, m.until) for m in marks] == [(TopicPartition("a.b", 3), 2, 9)]


# Thresholds


def _bad(errors: int, records: int) -> Commit:
    counts = Counts(positions=records, records=records, errors=errors, skipped=records - errors)
    file = staged_file(0, records, table="d.kbq_errors", rows=errors)
    return _commit(Window(0, records, counts, (file,)))


@pytest.mark.parametrize(
    ("errors", "records", "share", "passed"),
    [(51, 1000, 0.05, False), (50, 1000, 0.05, True), (999, 999, 0.05, True), (1000, 1000, 0.0, True)],
)
def test_the_share_of_bad_records_is_judged_where_there_are_enough(
    errors: int, records: int, share: float, passed: bool
) -> None:
    found = checks.error_result("t", [_bad(errors, records)], TopicSettings.of(max_error_share=share))
    assert (found.passed, found.numbers["errors"]) == (passed, errors)


def test_the_share_is_of_recent_windows_not_of_all_time() -> None:
    commit = commits.prune(_bad(1000, 1000), lambda file: True)
    assert checks.error_result("t", [commit], SETTINGS).passed


@pytest.mark.parametrize(
    ("state", "settings", "lag"),
    [
        (PartitionCommit(10), SETTINGS, 20),
        (PartitionCommit(2), SETTINGS, 25),
        (PartitionCommit(40), SETTINGS, 0),
        (None, SETTINGS, 25),
        (None, TopicSettings.of(start="latest"), 0),
    ],
)
def test_lag_is_what_can_still_be_read(
    state: PartitionCommit | None, settings: TopicSettings, lag: int
) -> None:
    assert checks.lag_of(state, BrokerOffsets(5, 30), settings) == lag


def test_lag_is_bounded_in_records_and_in_seconds() -> None:
    lag = TopicLag(101, 2, late=(TP,))
    assert not checks.lag_result("t", TopicLag(101, 2), TopicSettings.of(max_lag_records=100)).passed
    assert checks.lag_result("t", TopicLag(100, 2), TopicSettings.of(max_lag_records=100)).passed
    assert "partition [0]" in checks.lag_result("t", lag, SETTINGS).message


def test_a_transaction_that_nobody_ends_is_named_though_no_lag_is_known() -> None:
    result = checks.lag_result("t", TopicLag(held=(TP,)), SETTINGS)
    assert (result.passed, result.severity) == (False, "warn")
    assert "a transaction of partition [0] has been open for more than" in result.message
    assert result.commands == ("kafka-transactions.sh find-hanging, then abort",)


def test_small_data_may_wait_before_it_is_late() -> None:
    assert checks.lag_seconds(TopicSettings.of(max_lag_seconds=60, max_wait_seconds=3600)) == 60
    assert (
        checks.lag_seconds(TopicSettings.of(max_lag_seconds=60, max_wait_seconds=3600, min_records=9)) == 3660
    )
    assert checks.lag_seconds(TopicSettings.of(max_lag_seconds=0, min_records=9)) == 0
    assert checks.lag_seconds(TopicSettings.of(max_lag_seconds=60, quiet_seconds=900)) == 960


@pytest.mark.parametrize(
    ("waiting", "lag", "passed"),
    [
        ({}, TopicLag(), True),
        ({TABLE: 990_000}, TopicLag(), True),
        ({TABLE: 989_999}, TopicLag(), False),
        ({}, TopicLag(5, 1, stale=(TP,)), False),
    ],
)
def test_data_is_stale_when_a_record_is_too_old_to_be_still_on_its_way(
    waiting: dict[TableReference, int], lag: TopicLag, passed: bool
) -> None:
    found = checks.fresh_result("t", waiting, lag, TopicSettings.of(max_age_seconds=10), 1_000_000)
    assert found.passed == passed


def test_a_commit_of_very_many_files_is_called_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "MANY_FILES", 3)
    assert [checks.small_result("t", [HEALTHY], blocked=blocked).passed for blocked in (False, True)] == [
        False,
        False,
    ]
    monkeypatch.setattr(checks, "MANY_FILES", 4)
    assert checks.small_result("t", [HEALTHY], blocked=False).passed


# Rows, results, blocks


def test_a_mismatch_fails_until_an_operator_has_seen_it() -> None:
    state = TableState("u", mismatches=(RowMismatch("j1", 5, 4), RowMismatch("j2", 5, 6)))
    seen = table_state.accept(state, 1)
    assert checks.rows_result(TABLE, state).message.count("job j") == 2
    assert checks.rows_result(TABLE, seen).message == "job j2 loaded 6 rows of files with 5"
    assert checks.rows_result(TABLE, table_state.accept(seen, 2)).passed
    assert table_state.accept(seen, 0) == seen


def test_a_table_near_a_quota_fails_with_its_numbers() -> None:
    counts = JobCounts().add(0, 3, range(3))
    limits = LoadLimits(jobs_per_day=10, changes_per_day=3, partitions=3)
    result = checks.quota_result(TABLE, counts, limits, 0)
    assert result.message == "3 of 3 changes of partitions in 24 hours; 3 of 3 partitions"
    assert checks.quota_result(TABLE, counts, LoadLimits(), 0).passed
    assert checks.quota_result(TABLE, JobCounts(), LoadLimits(), 0).passed


def test_a_message_names_a_few_findings_and_counts_the_rest() -> None:
    assert checks.in_words([str(n) for n in range(8)]) == "0; 1; 2; 3; 4 and 3 more"
    failed = checks.failed(CONTIGUOUS, "t", ["a hole"], ["kbq status"])
    blocked = dataclasses.replace(failed, blocks=True)
    assert failed.line == "t: a hole; next: `kbq status`"
    assert blocked.line == "t: a hole; its files are not loaded until this passes; next: `kbq status`"


def test_the_first_failed_check_that_may_block_blocks_the_topic() -> None:
    found = [CheckResult(ERRORS_FEW, "t", "e", False), CheckResult(CONTIGUOUS, "t", "c", False)]
    both = TopicSettings.of(blocking=f"{CONTIGUOUS},{ERRORS_FEW}")
    assert str(checks.block_of(found, both, "t")) == "t is blocked by error_share_is_low: e"
    assert str(checks.block_of(found, SETTINGS, "t")) == "t is blocked by offsets_contiguous: c"
    assert checks.block_of(found, TopicSettings.of(blocking="none"), "t") is None
    assert checks.block_of([CheckResult(CONTIGUOUS, "t", "fine")], both, "t") is None


@pytest.mark.parametrize(
    ("written", "blocking"),
    [
        ("", {CONTIGUOUS}),
        ("blocking=none", set()),
        ("blocking=", set()),
        (f"blocking={ERRORS_FEW},{ROWS_MATCH}", {ERRORS_FEW, ROWS_MATCH}),
    ],
)
def test_the_source_list_says_which_checks_block(written: str, blocking: set[str]) -> None:
    [entry] = parse_source_list(f"t {written}", "list")
    assert entry.settings.checks.blocking == blocking


@pytest.mark.parametrize("name", sorted({*CHECKS, "nothing"} - set(BLOCKABLE)))
def test_a_check_that_a_load_cannot_decide_may_not_block(name: str) -> None:
    assert f"list:1: blocking={name}: {name} cannot block a load" in mistake_of(f"t blocking={name}")


@pytest.mark.parametrize(
    "option", ["max_lag_records", "max_lag_seconds", "max_age_seconds", "max_error_share"]
)
def test_a_threshold_is_not_negative(option: str) -> None:
    assert f"list:1: {option}=-1" in mistake_of(f"t {option}=-1")
