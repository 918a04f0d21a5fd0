"""The fake broker's faults. The contract suite tests what it has in common with the real one."""

from __future__ import annotations

import pytest

from kbq_assets.core.errors import NotFound, OffsetOutOfRange, Unavailable
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.ports.kafka import ReadOptions
from kbq_assets_tests.contracts.source import records
from kbq_assets_tests.fakes.faults import Call, Crash, Outcome
from kbq_assets_tests.fakes.kafka import FakeKafka

TP = TopicPartition("t", 0)


def filled(count: int = 10, *, chunk_records: int = 500) -> FakeKafka:
    kafka = FakeKafka(chunk_records=chunk_records)
    kafka.create_topic("t")
    for number in range(count):
        kafka.produce(TP, b"%d" % number)
    return kafka


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (Outcome.UNAVAILABLE, Unavailable),
        (Outcome.LOST_REPLY, Unavailable),
        (Outcome.CRASH_BEFORE, Crash),
        (Outcome.CRASH_AFTER, Crash),
    ],
)
def test_every_call_and_every_batch_can_fail(outcome: Outcome, error: type[BaseException]) -> None:
    kafka = filled(chunk_records=4)
    calls: list[Call] = []

    def third_fails(call: Call) -> Outcome:
        calls.append(call)
        return outcome if len(calls) == 3 else Outcome.OK

    kafka.faults = third_fails
    reading = kafka.view("worker").read(OffsetRange(TP, 0, 10))
    assert [next(reading).position, next(reading).position] == [4, 8]
    with pytest.raises(error):
        next(reading)
    assert [call.target for call in calls] == ["t[0] [0, 10)", "t[0] [4, 10)", "t[0] [8, 10)"]
    assert {(call.process, call.operation, call.writes) for call in calls} == {("worker", "read", False)}


def test_a_broker_that_is_down_answers_nothing() -> None:
    kafka = filled()
    kafka.down = True
    for call in (
        kafka.cluster_id,
        kafka.topics,
        lambda: kafka.offsets([TP]),
        lambda: kafka.offsets_for_time([TP], 0),
        lambda: list(kafka.read(OffsetRange(TP, 0, 1))),
    ):
        with pytest.raises(Unavailable):
            call()


def test_a_truncated_log_is_seen_by_its_leader_epoch() -> None:
    kafka = filled()
    kafka.truncate(TP, 5)
    kafka.produce(TP, b"other")
    kafka.produce(TP, b"other")
    assert kafka.offsets([TP])[TP].leader_epoch == 1
    with pytest.raises(OffsetOutOfRange):
        list(kafka.read(OffsetRange(TP, 6, 7), ReadOptions(leader_epoch=0)))
    assert list(records(list(kafka.read(OffsetRange(TP, 5, 7), ReadOptions(leader_epoch=0))))) == [5, 6]


@pytest.mark.parametrize("notices", [True, False])
def test_a_topic_replaced_under_a_reading_ends_it_or_not(notices: bool) -> None:
    kafka = filled(chunk_records=4)
    kafka.notices_recreation = notices
    reading = kafka.read(OffsetRange(TP, 0, 10))
    next(reading)
    kafka.recreate_topic("t")
    for _ in range(10):
        kafka.produce(TP, b"new")
    if notices:
        with pytest.raises(NotFound):
            next(reading)
    else:
        assert set(records(list(reading)).values()) == {b"new"}


def test_what_was_committed_is_remembered_beyond_retention() -> None:
    kafka = filled(3)
    kafka.begin_transaction(TP)
    kafka.produce(TP, b"aborted")
    kafka.end_transaction(TP, commit=False)
    kafka.delete_before(TP, 2)
    assert list(kafka.committed(TP)) == [0, 1, 2]
    assert list(kafka.log(TP).records) == [2]
