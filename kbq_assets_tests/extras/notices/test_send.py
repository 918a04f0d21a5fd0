"""Whoever is on call gets each change once, whichever process polls. A failing notifier silences no other."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from pathlib import Path

import pytest

from kbq_assets.core.errors import ConfigurationError, Unavailable
from kbq_assets.core.protocol.names import TableReference, table_state_path
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.extras.notices import send
from kbq_assets.extras.notices.model import Message
from kbq_assets.extras.notices.send import Delivery, NoticePorts
from kbq_assets.pipelines.operate import commands as operate
from kbq_assets_tests.fakes.faults import Call, Crash, Outcome
from kbq_assets_tests.fakes.notifier import FakeNotifier
from kbq_assets_tests.fakes.platform import TOPIC, UNKNOWN_SCHEMA, FakePlatform
from kbq_assets_tests.fakes.script import Script

DAY = 24 * 3_600_000
STOPPED = f"error: no_partition_is_stopped: {TOPIC}"
AWAY = "error: unreachable: broker"


def resolved(title: str) -> str:
    return title.replace("error: ", "resolved: ", 1)


class NotifiedWorld(FakePlatform):
    """A platform with one table and one notifier. Nothing is wrong, and the table is no news any more."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.notifier = FakeNotifier()
        self.notifiers = [self.notifier.port]
        self.produce()
        self.parts.extractor.extract()
        self.parts.loader.load()
        self.store.time_ms += 8 * DAY

    def poll(self) -> tuple[Delivery, ...]:
        """One poll by a separate process."""
        return send.send_changes(self.reopened().notices)

    def reported(self) -> list[str]:
        """What the notifier gets from one poll."""
        self.poll()
        return self.notifier.titles

    def stop(self, partition: int = 0) -> None:
        self.produce(value=UNKNOWN_SCHEMA, partition=partition)
        self.parts.extractor.extract()

    @property
    def faulty(self) -> NoticePorts:
        """The ports of a process that the store's faults hit."""
        return dataclasses.replace(self.reopened().notices, store=self.store.view("sensor"))


@pytest.fixture
def world(tmp_path: Path) -> NotifiedWorld:
    return NotifiedWorld(tmp_path)


def test_where_nothing_is_wrong_nothing_is_sent_or_written(world: NotifiedWorld) -> None:
    before = world.objects()
    assert world.reported() == []
    assert world.objects() == before


def test_a_stop_is_sent_once_with_its_commands_and_its_end_once(world: NotifiedWorld) -> None:
    world.stop()
    world.poll()
    [message] = world.notifier.taken
    assert "unknown_schema" in message.text
    assert f"next: kbq resume --topic {TOPIC} --partition 0" in message.text
    assert world.notifier.titles == [STOPPED]
    assert world.reported() == []
    operate.propose_resume(world.store, TOPIC, as_errors=True).apply()
    world.parts.extractor.extract()
    assert world.reported() == [resolved(STOPPED)]
    assert world.reported() == []


def test_a_team_gets_what_concerns_its_topics_and_their_tables(world: NotifiedWorld) -> None:
    teams = [FakeNotifier("ads", team="ads"), FakeNotifier("sales", team="sales")]
    world.notifiers = [world.notifier.port, *(each.port for each in teams)]
    world.source_topics.write_text(f"{TOPIC} dataset=shop table=orders owner=ads")
    world.stop()
    world.produce(partition=1)
    world.parts.extractor.extract()
    world.warehouse.bad_paths.update(e.path for e in world.store.list("staging/") if ".orders." in e.path)
    world.parts.loader.load()
    everything = world.reported()
    assert {STOPPED, "warn: quarantined_files: shop.orders"} <= set(everything)
    assert [each.titles for each in teams] == [everything, []]
    world.kafka.down = True
    assert (world.reported(), teams[0].titles) == ([AWAY], [])


@pytest.fixture
def ads(world: NotifiedWorld) -> FakeNotifier:
    """The notifier of the topic's team, besides the one for everybody."""
    found = FakeNotifier("ads", team="ads")
    world.notifiers = [world.notifier.port, found.port]
    world.source_topics.write_text(f"{TOPIC} dataset=shop table=orders owner=ads")
    return found


def test_what_stops_everything_is_reported_although_teams_are_unknown_meanwhile(
    world: NotifiedWorld, ads: FakeNotifier
) -> None:
    world.stop()
    assert (world.reported(), ads.titles) == ([STOPPED], [STOPPED])
    registry = world.store.objects.pop("commits/_topics.json")
    broken = "error: broken_state: the staging area"
    assert (world.reported(), ads.titles) == ([broken], [])
    world.store.objects["commits/_topics.json"] = registry
    assert (world.reported(), ads.titles) == ([resolved(broken)], [])
    world.source_topics.unlink()
    assert (world.reported(), ads.titles) == (["error: broken_settings: settings and catalog"], [])


def test_a_problem_of_a_table_does_not_end_for_its_team_when_the_table_s_topics_are_unknown(
    world: NotifiedWorld, ads: FakeNotifier
) -> None:
    table, parked = TableReference("shop", "orders"), "error: no_table_is_parked: shop.orders"
    operate.propose_park_table(world.store, table).apply()
    assert (world.reported(), ads.titles) == ([parked], [parked])
    path = table_state_path(table)
    before = world.store.get(path)
    world.store.swap(path, b"{", before.generation)
    assert (world.reported(), ads.titles) == ([], [])
    world.store.swap(path, before.data, world.store.get(path).generation)
    operate.propose_resume_table(world.store, table).apply()
    assert (world.reported(), ads.titles) == ([resolved(parked)], [resolved(parked)])


def test_a_topic_that_stops_after_one_of_its_partitions_is_reported_too(world: NotifiedWorld) -> None:
    world.stop()
    assert world.reported() == [STOPPED]
    world.kafka.recreate_topic(TOPIC)
    assert world.reported() == [STOPPED]
    assert world.reported() == []


def test_another_partition_that_stops_is_reported_too(world: NotifiedWorld) -> None:
    world.stop()
    assert world.reported() == [STOPPED]
    world.stop(partition=1)
    assert world.reported() == [STOPPED]
    assert world.reported() == []


def test_a_stop_that_moves_to_another_partition_is_reported_again(world: NotifiedWorld) -> None:
    world.stop()
    assert world.reported() == [STOPPED]
    operate.propose_resume(world.store, TOPIC, as_errors=True).apply()
    world.stop(partition=1)
    world.poll()
    [message] = world.notifier.taken
    assert f"next: kbq resume --topic {TOPIC} --partition 1" in message.text
    assert (world.notifier.titles, world.reported()) == ([STOPPED], [])


def test_a_stop_whose_reason_changes_is_reported_again(world: NotifiedWorld) -> None:
    world.kafka.delete_topic(TOPIC)
    assert world.reported() == [STOPPED]
    world.kafka.create_topic(TOPIC)
    world.poll()
    [message] = world.notifier.taken
    assert "recreated" in message.text
    assert (world.notifier.titles, world.reported()) == ([STOPPED], [])


def test_a_table_that_is_parked_for_another_reason_is_reported_again(world: NotifiedWorld) -> None:
    table, parked = TableReference("shop", "orders"), "error: no_table_is_parked: shop.orders"
    operate.propose_park_table(world.store, table).apply()
    assert world.reported() == [parked]
    operate.propose_resume_table(world.store, table).apply()
    del world.warehouse.stored[table]
    world.produce()
    world.parts.extractor.extract()
    world.parts.loader.load()
    assert world.reported() == [parked]
    assert world.reported() == []


def test_a_gap_in_the_log_is_a_stop(world: NotifiedWorld) -> None:
    world.produce(3)
    world.kafka.delete_before(TopicPartition(TOPIC, 0), 3)
    assert world.reported() == [STOPPED]


def test_quarantined_files_are_reported_once_and_more_of_them_again(world: NotifiedWorld) -> None:
    for _ in (1, 2):
        world.produce()
        world.parts.extractor.extract()
        world.warehouse.bad_paths.update(e.path for e in world.store.list("staging/") if ".orders." in e.path)
        world.parts.loader.load()
        assert world.reported() == ["warn: quarantined_files: shop.orders"]
        assert world.reported() == []


def test_a_broker_that_is_away_ends_nothing(world: NotifiedWorld) -> None:
    world.stop()
    assert world.reported() == [STOPPED]
    world.kafka.down = True
    assert world.reported() == [AWAY]
    assert world.reported() == []
    world.kafka.down = False
    assert world.reported() == [resolved(AWAY)]


def test_a_state_that_cannot_be_read_ends_nothing(world: NotifiedWorld) -> None:
    world.stop()
    assert world.reported() == [STOPPED]
    registry = world.store.objects.pop("commits/_topics.json")
    broken = "error: broken_state: the staging area"
    assert world.reported() == [broken]
    world.store.objects["commits/_topics.json"] = registry
    assert world.reported() == [resolved(broken)]


def test_a_mistake_in_a_line_of_the_source_list_is_a_stop_of_its_topic(world: NotifiedWorld) -> None:
    world.stop()
    assert world.reported() == [STOPPED]
    before = world.source_topics.read_text()
    world.source_topics.write_text(f"{before}\nother tabel=x\n")
    broken = "error: no_partition_is_stopped: other"
    assert world.reported() == [broken]
    assert world.reported() == []
    world.source_topics.write_text(before)
    assert world.reported() == [resolved(broken)]


def test_a_source_list_that_is_gone_which_stops_everything_is_reported(world: NotifiedWorld) -> None:
    world.stop()
    assert world.reported() == [STOPPED]
    before = world.source_topics.read_text()
    world.source_topics.unlink()
    broken = "error: broken_settings: settings and catalog"
    assert world.reported() == [broken]
    assert world.reported() == []
    world.source_topics.write_text(before)
    assert world.reported() == [resolved(broken)]


def test_a_store_that_does_not_answer_is_an_error(world: NotifiedWorld) -> None:
    world.store.faults = lambda call: Outcome.UNAVAILABLE
    with pytest.raises(Unavailable):
        send.send_changes(world.reopened(store=lambda: world.store.view("sensor")).notices)


@pytest.mark.parametrize(
    "error", [Unavailable("busy"), ConfigurationError("refused"), ValueError("s3cr3t"), KeyError("s3cr3t")]
)
def test_a_notifier_that_fails_silences_no_other_and_gets_what_it_missed(
    world: NotifiedWorld, error: Exception
) -> None:
    broken, other = FakeNotifier("broken", error), FakeNotifier("other")
    world.notifiers = [broken.port, other.port]
    world.stop()
    first, _ = world.poll()
    assert first.failure
    assert "s3cr3t" not in first.failure
    assert other.titles == [STOPPED]
    broken.error = None
    world.poll()
    assert (broken.titles, other.titles) == ([STOPPED], [])


def test_a_notifier_that_hangs_holds_up_neither_the_others_nor_the_poll(
    world: NotifiedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = threading.Event()

    def until_the_time_is_over(sending: Iterable[Future[Delivery]], seconds: float) -> None:
        """The other one has had its time, however busy the machine is; the one that hangs would never end."""
        assert seconds == send.SEND_SECONDS
        _, other = sending
        other.result(300)

    class Hanging(FakeNotifier):
        def send(self, message: Message) -> None:
            end.wait()

    monkeypatch.setattr(send, "wait", until_the_time_is_over)
    other = FakeNotifier("other")
    world.notifiers = [Hanging("hangs").port, other.port]
    world.stop()
    try:
        deliveries = world.poll()
    finally:
        end.set()
    assert [bool(d.failure) for d in deliveries] == [True, False]
    assert other.titles == [STOPPED]


@pytest.mark.parametrize("outcome", [Outcome.CRASH_BEFORE, Outcome.LOST_REPLY, Outcome.OWN_RETRY])
def test_a_message_may_come_twice_and_is_never_lost(world: NotifiedWorld, outcome: Outcome) -> None:
    world.stop()
    world.store.faults = Script("swap", "notices/fake-1", outcome)
    with contextlib.suppress(Crash):  # after sending, before recording
        send.send_changes(world.faulty)
    world.store.faults = None
    assert world.reported() == ([STOPPED, STOPPED] if outcome is Outcome.CRASH_BEFORE else [STOPPED])
    assert world.reported() == []


def test_two_polls_at_once_lose_nothing(world: NotifiedWorld) -> None:
    world.stop()

    def other_poll() -> None:
        world.store.faults = None
        world.kafka.down = True
        world.poll()

    world.store.faults = Script("swap", "notices/fake-1", before=other_poll)
    send.send_changes(world.faulty)
    world.poll()
    assert set(world.notifier.titles) == {STOPPED, AWAY}
    assert world.reported() == []


def test_a_ledger_that_cannot_be_read_silences_its_notifier_alone(world: NotifiedWorld) -> None:
    broken, other = FakeNotifier("broken"), FakeNotifier("other")
    world.notifiers = [broken.port, other.port]
    world.store.create("notices/broken.json", b"{")
    world.stop()
    first, _ = world.poll()
    assert "notices/broken.json" in first.failure
    assert other.titles == [STOPPED]


def test_a_test_reaches_everybody_and_is_recorded_nowhere(world: NotifiedWorld) -> None:
    world.notifiers = [FakeNotifier("broken", Unavailable("busy")).port, FakeNotifier("other").port]
    before = world.objects()
    deliveries = send.send_now(world.reopened().notices.notifiers, send.trial_message(1))
    assert [bool(d.failure) for d in deliveries] == [True, False]
    assert world.objects() == before


def test_a_poll_without_changes_writes_nothing(world: NotifiedWorld) -> None:
    world.stop()
    world.poll()
    seen: list[Call] = []

    def record(call: Call) -> Outcome:
        seen.append(call)
        return Outcome.OK

    world.store.faults = record
    send.send_changes(world.faulty)
    assert [call for call in seen if call.writes] == []
