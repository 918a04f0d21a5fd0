"""Who is on call hears of it once, from whatever process looks; a notifier that fails silences no other."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from pathlib import Path

import pytest

from kbq_assets.core.errors import ConfigurationError, Unavailable
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.extras.notices import pipeline as notices
from kbq_assets.extras.notices.model import FAILED_RUNS, FailedRun, Notice
from kbq_assets.extras.notices.pipeline import Delivery
from kbq_assets.pipelines.operate import commands as operate
from kbq_assets.ports.warehouse import JobError
from kbq_assets_tests.fakes.faults import Call, Crash, Outcome
from kbq_assets_tests.fakes.notifier import FakeNotifier
from kbq_assets_tests.fakes.platform import TOPIC, UNKNOWN_SCHEMA, FakePlatform
from kbq_assets_tests.fakes.script import Script

MINUTE = 60_000
DAY = 24 * 60 * MINUTE
STOPPED = f"Extraction of {TOPIC} is stopped"
NOT_LOADED = "shop.orders is not loaded"
REFUSED = JobError("invalid", "the table does not take it", transient=False)


@pytest.fixture
def world(tmp_path: Path) -> FakePlatform:
    """A platform with one table and somebody to tell; nothing is wrong, and the table is no news any more."""
    made = FakePlatform(tmp_path)
    made.notifiers = [FakeNotifier()]
    made.produce()
    made.parts.extractor.extract()
    made.parts.loader.load()
    made.store.time_ms += 8 * DAY
    return made


def tell(world: FakePlatform) -> tuple[Delivery, ...]:
    """One look, by a process of its own."""
    return notices.tell(world.reopened().notices)


def told(world: FakePlatform) -> list[str]:
    """What the first notifier heard of one look."""
    tell(world)
    [first, *_] = world.notifiers
    assert isinstance(first, FakeNotifier)
    return first.titles


def stop(world: FakePlatform, partition: int = 0) -> None:
    world.produce(value=UNKNOWN_SCHEMA, partition=partition)
    world.parts.extractor.extract()


def hold(world: FakePlatform) -> None:
    operate.propose_park_table(world.store, TableReference.parse("shop.orders")).apply()


def test_nothing_wrong_is_told_to_nobody_and_written_nowhere(world: FakePlatform) -> None:
    assert told(world) == []
    before = world.objects()
    assert told(world) == []
    assert world.objects() == before


def test_a_stop_is_told_once_by_whatever_process_with_its_commands(world: FakePlatform) -> None:
    stop(world)
    tell(world)
    [notifier] = world.notifiers
    assert isinstance(notifier, FakeNotifier)
    [notice] = notifier.taken
    assert notice.title == STOPPED
    assert "unknown_schema" in notice.items[0].text
    assert f"kbq resume --topic {TOPIC} --partition 0" in notice.items[0].commands
    notifier.taken.clear()
    assert told(world) == []


def test_what_lasts_is_told_again_after_a_day_and_its_end_once(world: FakePlatform) -> None:
    stop(world)
    assert told(world) == [STOPPED]
    world.store.time_ms += DAY
    assert told(world) == [f"Still: {STOPPED}"]
    operate.propose_resume(world.store, TOPIC, as_errors=True).apply()
    world.parts.extractor.extract()
    assert told(world) == [f"Resolved: {STOPPED}"]
    assert told(world) == []


def test_another_partition_that_stops_is_told_anew(world: FakePlatform) -> None:
    stop(world)
    assert told(world) == [STOPPED]
    stop(world, partition=1)
    assert told(world) == []
    world.store.time_ms += 10 * MINUTE
    assert told(world) == [STOPPED]


def test_tries_that_fail_are_no_news(world: FakePlatform) -> None:
    stop(world)
    hold(world)
    assert sorted(told(world)) == sorted([STOPPED, NOT_LOADED])
    heard = []
    for minute in range(20 * 60):  # a try at least every hour, a look each minute
        world.store.time_ms += MINUTE
        if minute % 10 == 0:
            world.parts.extractor.extract()
        heard += told(world)
    assert heard == []


def test_a_table_that_is_tried_again_is_not_told_to_be_mended(world: FakePlatform) -> None:
    world.produce()
    world.parts.extractor.extract()
    world.warehouse.job_errors = lambda job: REFUSED
    world.parts.loader.load()
    assert told(world) == [NOT_LOADED]
    world.warehouse.auto_run = False
    world.store.time_ms += MINUTE
    world.settings = dataclasses.replace(
        world.settings, run=dataclasses.replace(world.settings.run, load_wait_seconds=0)
    )
    world.reopened().loader.load()  # the try is in flight
    assert told(world) == []
    world.warehouse.step()
    world.warehouse.auto_run = True
    world.reopened().loader.load()
    assert told(world) == []
    world.warehouse.job_errors = None
    world.store.time_ms += 60 * MINUTE
    world.reopened().loader.load()
    assert told(world) == [f"Resolved: {NOT_LOADED}"]


def test_files_in_quarantine_are_told_once_and_more_of_them_again(world: FakePlatform) -> None:
    for count in (1, 2):
        world.produce()
        world.parts.extractor.extract()
        world.warehouse.bad_paths.update(e.path for e in world.store.list("staging/") if ".orders." in e.path)
        world.parts.loader.load()
        world.store.time_ms += 2 * DAY
        assert told(world) == ["Files of shop.orders are in quarantine"], count
        world.store.time_ms += 2 * DAY
        assert told(world) == []


def test_a_broker_that_is_away_for_long_is_one_notice_and_ends_nothing(world: FakePlatform) -> None:
    stop(world)
    assert told(world) == [STOPPED]
    world.kafka.down = True
    heard = []
    for _ in range(30):
        world.store.time_ms += MINUTE
        heard += told(world)
    assert heard == ["The broker does not answer"]
    world.kafka.down = False
    assert told(world) == ["Resolved: The broker does not answer"]


def test_a_broker_that_is_back_at_once_is_told_by_nobody(world: FakePlatform) -> None:
    world.kafka.down = True
    assert told(world) == []
    world.store.time_ms += 4 * MINUTE
    world.kafka.down = False
    assert told(world) == []


def test_a_state_that_cannot_be_read_is_told_and_ends_nothing(world: FakePlatform) -> None:
    stop(world)
    assert told(world) == [STOPPED]
    registry = world.store.objects.pop("commits/_topics.json")
    assert told(world) == ["The state in the staging area is broken"]
    world.store.objects["commits/_topics.json"] = registry
    assert told(world) == ["Resolved: The state in the staging area is broken"]


def test_a_store_that_does_not_answer_is_said(world: FakePlatform) -> None:
    world.store.faults = lambda call: Outcome.UNAVAILABLE
    with pytest.raises(Unavailable):
        notices.tell(dataclasses.replace(world.reopened().notices, store=world.store.view("sensor")))


# Notifiers that fail --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [Unavailable("busy"), ConfigurationError("refused"), ValueError("s3cr3t"), KeyError("s3cr3t")]
)
def test_a_notifier_that_fails_is_told_by_the_others_and_tried_at_every_look(
    world: FakePlatform, error: Exception
) -> None:
    broken, other = FakeNotifier("broken", error), FakeNotifier("other")
    world.notifiers = [broken, other]
    stop(world)
    first, _ = tell(world)
    assert first.failure
    assert "s3cr3t" not in first.failure
    assert other.titles == [STOPPED]
    writes = len(world.store.objects)
    tell(world)
    assert other.titles == ["Notices do not reach fake:broken"]
    tell(world)
    assert (other.titles, len(world.store.objects)) == ([], writes)
    broken.error = None
    tell(world)
    assert (broken.titles, other.titles) == ([STOPPED], [])
    tell(world)
    assert other.titles == ["Resolved: Notices do not reach fake:broken"]


def test_what_was_taken_before_a_notifier_failed_is_not_told_again(world: FakePlatform) -> None:
    stop(world)
    hold(world)
    notifier = FakeNotifier(error=Unavailable("busy"), after=1)
    world.notifiers = [notifier]
    [delivery] = tell(world)
    assert (len(delivery.sent), bool(delivery.failure)) == (1, True)
    notifier.error = None
    tell(world)
    assert sorted(notifier.titles) == sorted([STOPPED, NOT_LOADED])
    tell(world)
    assert notifier.titles == []


def test_a_failing_notifier_with_nothing_left_to_tell_is_no_news_for_ever(world: FakePlatform) -> None:
    broken, other = FakeNotifier("broken", Unavailable("busy")), FakeNotifier("other")
    world.notifiers = [broken, other]
    world.kafka.down = True
    tell(world)
    world.store.time_ms += 6 * MINUTE
    tell(world)
    tell(world)
    world.kafka.down = False
    tell(world)
    tell(world)
    assert other.titles[-1] == "Resolved: Notices do not reach fake:broken"


def test_a_notifier_that_hangs_holds_up_neither_the_others_nor_the_look(
    world: FakePlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def until_the_time_is_over(sending: Iterable[Future[Delivery]], seconds: float) -> None:
        """The other one has had its time, however busy the machine is; the one that hangs would never end."""
        assert seconds == notices.SEND_SECONDS
        _, other = sending
        other.result(300)

    class Hanging(FakeNotifier):
        def send(self, notice: Notice) -> None:
            go_on.wait()

    monkeypatch.setattr(notices, "wait", until_the_time_is_over)
    other = FakeNotifier("other")
    world.notifiers = [Hanging("hangs"), other]
    stop(world)
    try:
        deliveries = tell(world)
    finally:
        go_on.set()
    assert [bool(d.failure) for d in deliveries] == [True, False]
    assert other.titles == [STOPPED]


@pytest.mark.parametrize("outcome", [Outcome.CRASH_BEFORE, Outcome.LOST_REPLY, Outcome.OWN_RETRY])
def test_a_notice_may_come_twice_and_never_not_at_all(world: FakePlatform, outcome: Outcome) -> None:
    stop(world)
    ports = dataclasses.replace(world.reopened().notices, store=world.store.view("sensor"))
    world.store.faults = Script("swap", "notices/fake-1", outcome)
    with contextlib.suppress(Crash):  # after sending, before recording
        notices.tell(ports)
    world.store.faults = None
    heard = told(world)
    assert heard == ([STOPPED, STOPPED] if outcome is Outcome.CRASH_BEFORE else [STOPPED])
    assert told(world) == []


def test_two_looks_at_once_record_both(world: FakePlatform) -> None:
    stop(world)
    ports = dataclasses.replace(world.reopened().notices, store=world.store.view("sensor"))

    def other_look() -> None:
        world.store.faults = None
        hold(world)
        tell(world)

    world.store.faults = Script("swap", "notices/fake-1", before=other_look)
    notices.tell(ports)
    [notifier] = world.notifiers
    assert isinstance(notifier, FakeNotifier)
    assert sorted(notifier.titles) == sorted([STOPPED, STOPPED, NOT_LOADED])
    assert told(world) == []


def test_a_ledger_that_cannot_be_read_silences_its_notifier_alone(world: FakePlatform) -> None:
    broken, other = FakeNotifier("broken"), FakeNotifier("other")
    world.notifiers = [broken, other]
    world.store.create("notices/broken.json", b"{")
    stop(world)
    first, _ = tell(world)
    assert "notices/broken.json" in first.failure
    assert STOPPED in other.titles


# Runs -----------------------------------------------------------------------------------------------------------------


def test_a_job_that_fails_for_hours_is_told_once_until_it_succeeds(world: FakePlatform) -> None:
    heard = []
    for number in range(30):
        run = FailedRun("load_job", f"r{number}", f"run r{number}: it broke", world.store.now_ms())
        notices.note_failed_run(world.store, run)
        world.store.time_ms += 5 * MINUTE
        heard += told(world)
    assert heard == ["load_job failed"]
    notices.note_successes(world.store, ["load_job"])
    assert told(world) == ["Resolved: load_job failed"]


def test_no_success_is_written_where_nothing_failed(world: FakePlatform) -> None:
    notices.note_successes(world.store, [])
    assert FAILED_RUNS not in world.store.objects


def test_a_test_reaches_everybody_and_is_recorded_nowhere(world: FakePlatform) -> None:
    world.notifiers = [FakeNotifier("broken", Unavailable("busy")), FakeNotifier("other")]
    before = world.objects()
    deliveries = notices.tell_test(world.reopened().notices)
    assert [bool(d.failure) for d in deliveries] == [True, False]
    assert world.objects() == before


def _calls(world: FakePlatform) -> list[Call]:
    seen: list[Call] = []

    def record(call: Call) -> Outcome:
        seen.append(call)
        return Outcome.OK

    world.store.faults = record
    return seen


def test_a_look_with_nothing_new_writes_nothing(world: FakePlatform) -> None:
    stop(world)
    told(world)
    seen = _calls(world)
    notices.tell(dataclasses.replace(world.reopened().notices, store=world.store.view("sensor")))
    assert [call for call in seen if call.writes] == []


def test_the_source_of_a_stop_may_be_the_broker(world: FakePlatform) -> None:
    world.produce(3)
    world.kafka.delete_before(TopicPartition(TOPIC, 0), 3)
    assert told(world) == [STOPPED]
