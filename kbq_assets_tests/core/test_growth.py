"""The cost of a cycle grows only with its work: calls and sizes at n and at 4n."""

from __future__ import annotations

from kbq_assets.core.loading.mismatches import MOST_MISMATCHES, jobs_of
from kbq_assets.core.loading.table_state import QuarantinedFile, TableState, begin_job, record_success
from kbq_assets.core.protocol import codec, commits
from kbq_assets.core.protocol.commits import MOST_GAPS, Commit, starting_at
from kbq_assets.core.topics.source_list import parse_source_list, select_entries
from kbq_assets_tests.fixtures.work import calls_of
from kbq_assets_tests.strategies import staged_file

COMMIT = Commit("t", 0, "cluster", "id", 1, {0: starting_at(0, 0)})


def _selecting(count: int, pattern: str) -> int:
    """Calls to select the given number of topics, each with its own line."""
    topics = [f"shop.stream-{number:04}.v1" for number in range(count)]
    lines = [f"{topic} dataset=sales table=t{number}" for number, topic in enumerate(topics)]
    entries = parse_source_list("\n".join([pattern, *lines]) + "\n", "sources")
    chosen = {}

    def select() -> None:
        chosen.update(select_entries(entries, topics))

    calls = calls_of(select)
    assert len(chosen) == count
    return calls


def test_four_times_the_topics_and_source_lines_take_four_times_the_work() -> None:
    few, many = (_selecting(count, "other.* dataset=sales") for count in (100, 400))
    assert many < 4.5 * few


def _with_gaps(count: int, reason: str) -> Commit:
    commit = COMMIT
    for number in range(count):
        commit = commits.accept_gap(commit, 0, number + 1, reason.format(number % 2))
    return commit


def test_gaps_that_adjoin_take_no_more_room_however_many() -> None:
    few, many = (_with_gaps(count, "retention") for count in (50, 200))
    assert len(many.partitions[0].accepted_gaps) == 1
    assert len(codec.dumps(many)) <= len(codec.dumps(few)) + 8


def test_gaps_of_different_reasons_are_cut() -> None:
    few, many = (_with_gaps(count, "for reason {}") for count in (2 * MOST_GAPS, 8 * MOST_GAPS))
    assert len(few.partitions[0].accepted_gaps) == len(many.partitions[0].accepted_gaps) == MOST_GAPS
    assert len(codec.dumps(many)) < 1.2 * len(codec.dumps(few))


def test_a_commit_is_encoded_in_as_many_steps_as_it_has_partitions() -> None:
    def encoding(count: int) -> int:
        partitions = {number: starting_at(number, 0) for number in range(count)}
        commit = Commit("t", 0, "cluster", "id", 1, partitions)
        return calls_of(lambda: codec.dumps(commit))

    encoding(1)  # looks encoders up
    few, many = encoding(16), encoding(64)
    assert many < 4.2 * few


def _marked(schemas: int) -> int:
    """Bytes of a table's state after the given number of schema ids in each of 70 partitions."""
    marks = {
        f"shop.events.v1/{partition}/1/{100_000 + schema}": 10**9
        for partition in range(70)
        for schema in range(schemas)
    }
    return len(codec.dumps(TableState("0" * 16, marks=marks)))


def test_a_mark_of_a_past_schema_version_or_epoch_takes_50_bytes() -> None:
    """Such marks are kept forever (docs/performance.md, What grows)."""
    few, many = _marked(10), _marked(40)
    assert (many - few) / (30 * 70) < 50


def _mismatched(count: int) -> TableState:
    state = TableState("0" * 16)
    for number in range(count):
        file = staged_file(100 * number, 100 * number + 100)
        state = record_success(begin_job(state, (file,), "p", "eu"), file.rows - 1)
    return state


def test_mismatches_take_no_more_room_however_many() -> None:
    few, many = (_mismatched(count) for count in (2 * MOST_MISMATCHES, 8 * MOST_MISMATCHES))
    assert len(few.mismatches) == len(many.mismatches) == MOST_MISMATCHES
    assert jobs_of(many.mismatches) == 8 * MOST_MISMATCHES
    assert len(codec.dumps(many)) <= len(codec.dumps(few)) + 200


def test_a_quarantined_file_takes_what_the_first_took() -> None:
    def state(count: int) -> int:
        bad = tuple(
            QuarantinedFile(staged_file(100 * number, 100 * number + 100), "e" * 200)
            for number in range(count)
        )
        return len(codec.dumps(TableState("0" * 16, quarantined=bad)))

    few, many = state(100), state(400)
    assert (many - few) / 300 < 500
