"""An operator's command says what it gives up before it runs, and refuses what would duplicate data."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kbq_assets.core.errors import MissingState, NotFound, Refused, Unavailable
from kbq_assets.core.protocol.commits import Commit
from kbq_assets.core.protocol.names import commit_path
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.pipelines.operate import bootstrap
from kbq_assets.pipelines.operate import commands as operate
from kbq_assets.pipelines.operate.clean import clean
from kbq_assets.pipelines.operate.commands import StartAt
from kbq_assets.pipelines.protocol import state
from kbq_assets_tests.fakes.faults import Outcome
from kbq_assets_tests.fakes.script import Script
from kbq_assets_tests.pipelines.bench import ERRORS, SETTINGS, TOPIC, TP, A, Bench, value


def _next(bench: Bench) -> int:
    return bench.commit().partitions[0].next


def test_a_gap_is_accepted_with_its_range_shown_and_counted() -> None:
    bench = Bench()
    bench.produce(1, 1)
    bench.extract()
    bench.produce(1, 1, 1)
    bench.kafka.delete_before(TP, 4)
    assert [s.reason for s in bench.extract().stops] == ["retention_loss"]
    proposal = operate.propose_accept_gap(bench.store, bench.kafka, TP)
    assert proposal.lines == (f"gives up {TOPIC}[0] [2, 4): 2 positions",)
    assert _next(bench) == 2
    proposal.apply()
    bench.extract()
    bench.load()
    assert (_next(bench), bench.offsets(A), bench.commit().partitions[0].totals.lost) == (5, [0, 1, 4], 2)
    assert bench.reconcile().accounted


class TestUnreadableBatch:
    @pytest.fixture
    def bench(self) -> Bench:
        """Five good records, then a batch of three positions that cannot be read, then two good records."""
        bench = Bench()
        bench.produce(*[1] * 10)
        bench.kafka.damage(TP, 5, 8, "oversized_batch")
        [stop] = bench.extract().stops
        assert (stop.reason, _next(bench)) == ("oversized_batch", 5)
        assert stop.commands == (
            f"kbq resume --topic {TOPIC} --partition 0",
            f"kbq accept-gap --topic {TOPIC} --partition 0",
        )
        return bench

    def test_it_stops_its_partition_after_everything_before_it(self, bench: Bench) -> None:
        [stop] = bench.extract().plan.stops
        assert "[5, 8)" in stop.message
        assert bench.commit().partitions[0].totals.records == 5

    def test_the_gap_of_exactly_that_batch_can_be_accepted(self, bench: Bench) -> None:
        proposal = operate.propose_accept_gap(bench.store, bench.kafka, TP)
        assert proposal.lines == (f"gives up {TOPIC}[0] [5, 8): 3 positions",)
        proposal.apply()
        assert not bench.extract().stops
        bench.load()
        assert (bench.offsets(A), bench.commit().partitions[0].totals.lost) == ([0, 1, 2, 3, 4, 8, 9], 3)

    def test_it_is_read_once_it_can_be(self, bench: Bench) -> None:
        bench.kafka.repair(TP)
        operate.propose_resume(bench.store, TOPIC).apply()
        assert not bench.extract().stops
        bench.load()
        assert bench.offsets(A) == list(range(10))
        assert bench.reconcile().accounted

    def test_its_records_cannot_become_error_rows(self, bench: Bench) -> None:
        with pytest.raises(Refused, match="there are no bad records to accept as error rows"):
            operate.propose_resume(bench.store, TOPIC, as_errors=True)


def test_a_damaged_batch_is_tried_again_without_help() -> None:
    bench = Bench()
    bench.produce(*[1] * 10)
    bench.kafka.damage(TP, 5, 8)
    assert [stop.reason for stop in bench.extract().stops] == ["damaged_batch"]
    bench.kafka.repair(TP)
    bench.store.time_ms += 61_000
    bench.extract()
    bench.extract()
    assert (_next(bench), bench.commit().partitions[0].stop) == (10, None)


def _start_at_latest(bench: Bench) -> None:
    bench.settings = SETTINGS.with_options(start="latest")


def _accept_a_gap(bench: Bench) -> None:
    bench.kafka.damage(TP, 0, 6)
    bench.extract()
    operate.propose_accept_gap(bench.store, bench.kafka, TP).apply()
    bench.kafka.repair(TP)


def _lose_to_retention(bench: Bench) -> None:
    bench.settings = SETTINGS.with_options(on_retention_loss="record")
    bench.extract()
    bench.produce(1)
    bench.kafka.delete_before(TP, 7)
    bench.produce(1)


def _reset(bench: Bench) -> None:
    bench.extract()
    bench.load()
    operate.propose_reset(
        bench.store, bench.kafka, TOPIC, start=StartAt("latest"), give_up_pending=True
    ).apply()


def _bootstrap(bench: Bench) -> None:
    bootstrap.propose_bootstrap(bench.store, bench.kafka, TOPIC, StartAt("latest")).apply()


def _read(bench: Bench) -> None:
    bench.extract()


@pytest.mark.parametrize(
    "position", [_start_at_latest, _accept_a_gap, _lose_to_retention, _reset, _bootstrap, _read]
)
def test_a_log_that_was_cut_below_any_position_and_grew_again_is_not_read_on(
    position: Callable[[Bench], None],
) -> None:
    bench = Bench()
    bench.kafka.elect_leader(TP)
    bench.produce(*[1] * 6)
    position(bench)
    bench.extract()
    before = bench.commit().partitions[0]
    bench.kafka.truncate(TP, before.next - 1)
    bench.produce(1, 1, 1)
    [stop] = bench.extract().stops
    assert (stop.reason, bench.commit().partitions[0].next) == ("log_changed", before.next)
    reset = operate.propose_reset(
        bench.store, bench.kafka, TOPIC, start=StartAt("offset", before.next - 1), give_up_pending=True
    )
    reset.apply()
    assert not bench.extract().stops
    assert bench.commit().partitions[0].next == before.next + 2


def test_a_new_leader_that_has_the_log_stops_nothing() -> None:
    bench = Bench()
    bench.settings = SETTINGS.with_options(start="latest")
    for _ in range(3):
        bench.extract()
        bench.produce(1)
        bench.kafka.elect_leader(TP)
    assert not bench.extract().stops
    assert bench.commit().partitions[0].next == 3


def test_there_is_nothing_to_accept_without_a_gap() -> None:
    bench = Bench()
    bench.produce(1)
    bench.extract()
    with pytest.raises(Refused, match="no gap"):
        operate.propose_accept_gap(bench.store, bench.kafka, TP)


def test_a_confirmed_gap_is_refused_when_the_partition_moved_meanwhile() -> None:
    bench = Bench()
    bench.produce(1, 1)
    bench.extract()
    bench.produce(1)
    bench.kafka.delete_before(TP, 3)
    first = operate.propose_accept_gap(bench.store, bench.kafka, TP)
    operate.propose_accept_gap(bench.store, bench.kafka, TP).apply()
    with pytest.raises(Refused):
        first.apply()


@pytest.mark.parametrize("outcome", [Outcome.LOST_REPLY, Outcome.OWN_RETRY])
def test_a_reset_whose_reply_is_lost_bumps_the_epoch_once(outcome: Outcome) -> None:
    bench = Bench()
    bench.produce(1)
    bench.extract()
    bench.load()
    bench.extract()
    bench.faults = Script("swap", "commits/shop", outcome)
    operate.propose_reset(bench.store.view("operator"), bench.kafka, TOPIC).apply()
    assert bench.commit().epoch == 2


def test_a_reset_reads_a_topic_again_under_a_new_epoch() -> None:
    bench = Bench()
    bench.produce(1, 1)
    bench.extract()
    bench.load()
    bench.extract()
    proposal = operate.propose_reset(bench.store, bench.kafka, TOPIC)
    assert proposal.lines == ("epoch 1 -> 2", f"{TOPIC}[0]: position 2 -> 0")
    proposal.apply()
    assert bench.paths("done/") == []
    bench.extract()
    bench.load()
    assert [(row.epoch, row.offset) for row in bench.warehouse.rows(A)] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert bench.reconcile().accounted


def test_a_reset_refuses_while_rows_are_pending_unless_an_option_gives_them_up() -> None:
    bench = Bench()
    bench.produce(1, 1)
    bench.extract()
    with pytest.raises(Refused, match="wait to be loaded"):
        operate.propose_reset(bench.store, bench.kafka, TOPIC)
    proposal = operate.propose_reset(
        bench.store, bench.kafka, TOPIC, start=StartAt("latest"), give_up_pending=True
    )
    assert "gives up 2 staged rows not loaded yet" in proposal.lines
    proposal.apply()
    assert clean(bench.store).orphans == 1
    bench.extract()
    assert (bench.load().rows, _next(bench)) == (0, 2)


@pytest.mark.parametrize("shards", [1, 3])
def test_a_reset_reads_a_backlog_as_often_for_many_commits_as_for_one(shards: int) -> None:
    bench = Bench(partitions=64 * shards)
    state.create_table_state(bench.store, A, "u")
    operate.propose_park_table(bench.store, A).apply()
    for shard in range(shards):
        bench.produce(1, 1, partition=64 * shard)
    bench.extract()
    bench.extract()
    bench.faults = script = Script("")
    operate.propose_reset(bench.store.view("operator"), bench.kafka, TOPIC, give_up_pending=True).apply()
    reads = [
        call.target for call in script.calls if call.operation == "get" and call.target.startswith("backlog/")
    ]
    assert (len(set(reads)), len(reads)) == (shards, 2 * shards)
    commits = [state.read(bench.store, Commit, commit_path(TOPIC, n)).value for n in range(shards)]
    assert [len(commit.given_up) for commit in commits] == [1] * shards


def test_a_recreated_topic_stops_and_continues_after_a_reset() -> None:
    bench = Bench()
    bench.produce(1, 1)
    bench.extract()
    bench.load()
    bench.kafka.recreate_topic(TOPIC)
    bench.produce(1)
    assert [s.reason for s in bench.extract().stops] == ["recreated"]
    operate.propose_reset(bench.store, bench.kafka, TOPIC).apply()
    bench.extract()
    bench.load()
    assert [(row.epoch, row.offset) for row in bench.warehouse.rows(A)] == [(1, 0), (1, 1), (2, 0)]


def recreated() -> Bench:
    """Both partitions were read before the topic was recreated, and have more records now."""
    bench = Bench(partitions=2)
    for partition in (0, 1):
        bench.produce(1, 1, partition=partition)
    bench.extract()
    bench.load()
    bench.kafka.recreate_topic(TOPIC)
    for partition in (0, 1):
        bench.produce(1, 1, 1, partition=partition)
    return bench


def test_a_reset_of_one_partition_is_refused_while_another_stands_in_the_former_log() -> None:
    """The first records of the other partition would be skipped."""
    bench = recreated()
    with pytest.raises(Refused, match="recreated") as refused:
        operate.propose_reset(bench.store, bench.kafka, TOPIC, 1)
    assert refused.value.next_step.startswith(f"kbq reset --topic {TOPIC},")
    operate.propose_reset(bench.store, bench.kafka, TOPIC).apply()
    bench.extract()
    bench.load()
    assert len([row for row in bench.warehouse.rows(A) if row.epoch == 2]) == 6
    operate.propose_reset(bench.store, bench.kafka, TOPIC, 1).apply()  # the others are of this log


def test_a_reset_waits_for_the_offsets_of_every_partition() -> None:
    """A partition without a leader would keep its position in the former log."""
    bench = recreated()
    bench.kafka.leaderless.add(TopicPartition(TOPIC, 1))
    with pytest.raises(Unavailable, match=rf"{TOPIC}\[1\]"):
        operate.propose_reset(bench.store, bench.kafka, TOPIC)


@pytest.mark.parametrize(
    ("start", "first"),
    [
        (StartAt("earliest"), 1),
        (StartAt("latest"), 4),
        (StartAt("offset", 2), 2),
        (StartAt("timestamp", 3000), 3),
    ],
)
def test_a_bootstrap_writes_the_first_commit(start: StartAt, first: int) -> None:
    bench = Bench()
    for timestamp in (0, 1000, 2000, 3000):
        bench.kafka.produce(TP, b"\x01", timestamp=timestamp)
    bench.kafka.delete_before(TP, 1)
    bootstrap.propose_bootstrap(bench.store, bench.kafka, TOPIC, start).apply()
    assert _next(bench) == first
    with pytest.raises(Refused, match="already has a commit"):
        bootstrap.propose_bootstrap(bench.store, bench.kafka, TOPIC, StartAt("earliest"))


def test_a_bootstrap_refuses_an_offset_the_broker_does_not_have() -> None:
    bench = Bench()
    bench.produce(1)
    with pytest.raises(Refused, match="outside"):
        bootstrap.propose_bootstrap(bench.store, bench.kafka, TOPIC, StartAt("offset", 7))
    with pytest.raises(NotFound):
        bootstrap.propose_bootstrap(bench.store, bench.kafka, "other", StartAt("earliest"))


def test_done_files_say_where_each_partition_continues() -> None:
    bench = Bench(partitions=3)
    for partition in range(3):
        bench.produce(1, 1, 1, partition=partition)
    for name in (
        f"{TOPIC}.0.d.A.7.0.0",
        f"{TOPIC}.0.d.A.7.1.1",
        f"{TOPIC}.1.d.A.0.1",
        "junk",
        "other.0.d.A.1.0.9",
    ):
        bench.store.create(f"done/{name}.done", b"")
    assert [s.reason for s in bench.extract().stops] == ["not_bootstrapped"]
    [proposal] = bootstrap.propose_bootstrap_from_done_files(bench.store, bench.kafka)
    proposal.apply()
    assert {p: s.next for p, s in bench.commit().partitions.items()} == {0: 2, 1: 2, 2: 0}
    assert bench.extract().totals.records == 5


@pytest.mark.parametrize(("partitions", "shard"), [(1, 0), (65, 0), (65, 1)])
def test_a_bootstrap_that_was_interrupted_is_continued_before_anything_is_read(
    partitions: int, shard: int
) -> None:
    bench = Bench(partitions=partitions)
    for partition in {0, partitions - 1}:
        bench.produce(1, 1, 1, partition=partition)
        bench.store.create(f"done/{TOPIC}.{partition}.d.A.0.1.done", b"")

    def boot() -> None:
        [proposal] = bootstrap.propose_bootstrap_from_done_files(bench.store.view("operator"), bench.kafka)
        proposal.apply()

    bench.faults = Script("create", commit_path(TOPIC, shard), Outcome.UNAVAILABLE)
    with pytest.raises(Unavailable):
        boot()
    assert [(s.reason, s.commands) for s in bench.extract().stops] == [
        ("not_bootstrapped", (f"kbq bootstrap --topic {TOPIC} --from-done-files",))
    ]
    boot()
    assert bench.extract().totals.records == len({0, partitions - 1})
    with pytest.raises(Refused, match="already has a commit"):
        bootstrap.propose_bootstrap_from_done_files(bench.store, bench.kafka, {TOPIC})


@pytest.mark.parametrize(("partitions", "lost"), [(1, 0), (65, 0), (65, 1)])
def test_a_lost_commit_is_not_that_of_a_new_topic(partitions: int, lost: int) -> None:
    bench = Bench(partitions=partitions)
    for partition in {0, partitions - 1}:
        bench.produce(1, 1, partition=partition)
    bench.extract()
    bench.load()
    operate.propose_reset(bench.store, bench.kafka, TOPIC, start=StartAt("latest")).apply()
    path = commit_path(TOPIC, lost)
    saved = bench.store.objects[path]
    bench.store.delete(path)
    bench.store.create(f"done/{TOPIC}.{64 * lost}.d.A.0.1.done", b"")
    commands: list[Callable[[], object]] = [
        lambda: bootstrap.propose_bootstrap(bench.store, bench.kafka, TOPIC, StartAt("earliest")),
        lambda: bootstrap.propose_bootstrap_from_done_files(bench.store, bench.kafka, {TOPIC}),
        lambda: bootstrap.propose_bootstrap_from_done_files(bench.store, bench.kafka),
    ]
    if partitions == 1:
        commands.append(lambda: operate.propose_reset(bench.store, bench.kafka, TOPIC))
    for command in commands:
        with pytest.raises(MissingState, match=f"{path} is missing") as caught:
            command()
        assert "restore" in caught.value.next_step
    bench.store.objects[path] = saved
    bench.store.delete(f"done/{TOPIC}.{64 * lost}.d.A.0.1.done")
    bench.extract()
    bench.load()
    assert bench.warehouse.duplicates() == {}
    assert len(bench.offsets(A)) == 2 * min(partitions, 2)


def test_a_bootstrap_of_all_topics_leaves_out_those_that_have_their_commits() -> None:
    bench = Bench()
    bench.produce(1)
    bench.extract()  # its files are staged, and its done files exist
    bench.kafka.create_topic("other", 1)
    bench.store.create("done/other.0.d.A.0.1.done", b"")
    proposals = bootstrap.propose_bootstrap_from_done_files(bench.store, bench.kafka)
    assert [each.title for each in proposals] == ["bootstrap other"]


def test_a_bootstrap_waits_for_the_old_loader_to_drain() -> None:
    bench = Bench()
    bench.produce(1)
    bench.store.create(f"done/{TOPIC}.0.d.A.7.0.0.done", b"")
    bench.store.create(f"done/{TOPIC}.0.d.A.7.0.avro", b"")
    with pytest.raises(Refused, match="not loaded yet"):
        bootstrap.propose_bootstrap_from_done_files(bench.store, bench.kafka)


def test_a_stopped_partition_resumes_after_the_cause_is_fixed() -> None:
    bench = Bench()
    bench.produce(1, 99)
    bench.extract()
    bench.registry.schemas[99] = bench.registry.schemas[1]
    bench.kafka.log(TP).records[1] = (
        bench.kafka.log(TP).records[0]._replace(value=b"\x00\x00\x00\x00\x63\x02", offset=1)
    )
    operate.propose_resume(bench.store, TOPIC).apply()
    assert bench.extract().totals.staged == 1


def test_a_stopped_partition_resumes_with_its_bad_records_as_error_rows() -> None:
    bench = Bench()
    bench.produce(1, 99, 99)
    bench.extract()
    proposal = operate.propose_resume(bench.store, TOPIC, 0, as_errors=True)
    assert "become error rows" in proposal.lines[0]
    proposal.apply()
    bench.extract()
    bench.load()
    assert (bench.offsets(A), bench.offsets(ERRORS)) == ([0], [1, 2])
    assert bench.reconcile().accounted


def test_nothing_stopped_is_nothing_to_resume() -> None:
    bench = Bench()
    bench.produce(1)
    bench.extract()
    bench.load()
    with pytest.raises(Refused):
        operate.propose_resume(bench.store, TOPIC)
    with pytest.raises(Refused):
        operate.propose_resume_table(bench.store, A)
    operate.propose_park_table(bench.store, A).apply()
    with pytest.raises(Refused):
        operate.propose_park_table(bench.store, A)
    with pytest.raises(NotFound):
        operate.propose_accept_gap(bench.store, bench.kafka, TopicPartition(TOPIC, 9))


@pytest.mark.parametrize(
    ("start", "first", "line"),
    [
        (StartAt("offset", 1), 1, "position 3 -> 1"),
        (StartAt("timestamp", 2000), 2, "position 3 -> 2"),
        (StartAt("latest"), 4, "position 3 -> 4 gives up 1 position unread"),
    ],
)
def test_a_range_is_read_again_in_a_new_epoch(start: StartAt, first: int, line: str) -> None:
    bench = Bench()
    for timestamp in (0, 1000, 2000):
        bench.kafka.produce(TP, value(1), timestamp=timestamp)
    bench.extract()
    bench.load()
    bench.extract()
    bench.kafka.produce(TP, value(1), timestamp=3000)
    proposal = operate.propose_reset(bench.store, bench.kafka, TOPIC, start=start)
    assert proposal.lines == ("epoch 1 -> 2", f"{TOPIC}[0]: {line}")
    proposal.apply()
    bench.extract()
    bench.load()
    again = [(2, offset) for offset in range(first, 4)]
    assert [(row.epoch, row.offset) for row in bench.warehouse.rows(A)] == [(1, 0), (1, 1), (1, 2), *again]
    assert bench.reconcile().accounted


def test_a_reset_to_the_end_counts_positions_of_a_new_log_and_of_unread_partitions() -> None:
    bench = Bench()
    bench.produce(*[1] * 9)
    bench.extract()
    bench.load()
    bench.extract()
    bench.kafka.recreate_topic(TOPIC, 2)
    bench.produce(1, 1, 1, 1)
    bench.produce(1, 1, partition=1)
    bench.kafka.delete_before(TP, 1)
    proposal = operate.propose_reset(bench.store, bench.kafka, TOPIC, start=StartAt("latest"))
    assert proposal.lines == (
        "epoch 1 -> 2",
        f"{TOPIC}[0]: position 9 -> 4 gives up 3 positions unread",
        f"{TOPIC}[1]: position none -> 2 gives up 2 positions unread",
    )


def test_a_range_is_refused_where_the_broker_has_none() -> None:
    bench = Bench()
    bench.produce(1)
    bench.extract()
    bench.load()
    with pytest.raises(Refused, match="outside"):
        operate.propose_reset(bench.store, bench.kafka, TOPIC, start=StartAt("offset", 2))
    assert bench.commit().epoch == 1
