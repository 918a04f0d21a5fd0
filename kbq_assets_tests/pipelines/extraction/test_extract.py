"""An extraction publishes whole windows once, whatever happens to its calls."""

from __future__ import annotations

import dataclasses

import pytest

from kbq_assets.core.errors import MissingState, Unavailable
from kbq_assets.core.extraction.units import WindowLimits
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.done_files import DoneFileName
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets_tests.fakes.faults import Crash, Outcome
from kbq_assets_tests.fakes.script import Script
from kbq_assets_tests.pipelines.bench import SETTINGS, TOPIC, TP, A, B, Bench, value

TWO_RECORDS = WindowLimits(records=2)


def test_a_run_brings_a_topic_up_to_date_and_the_next_one_has_nothing_to_do() -> None:
    bench = Bench()
    bench.produce(1, 3, 1)
    report = bench.extract()
    assert report.totals == Counts(positions=3, records=3, bytes=18, rows={"d.A": 2, "d.B": 1})
    assert bench.commit().partitions[0].next == 3
    assert bench.extract().partitions == ()


def test_a_window_has_one_file_per_table_and_schema_however_ids_interleave() -> None:
    bench = Bench()
    bench.produce(1, 2, 1, 2, 3, 1)
    bench.extract()
    [window] = bench.commit().partitions[0].windows
    assert [(f.table, f.name.schema_id, f.rows) for f in window.files] == [(A, 1, 3), (A, 2, 2), (B, 3, 1)]


def test_windows_end_by_records_and_follow_one_another() -> None:
    bench = Bench(window=TWO_RECORDS)
    bench.produce(1, 1, 1, 1, 1)
    bench.extract()
    assert [(w.first, w.until) for w in bench.commit().partitions[0].windows] == [(0, 2), (2, 4), (4, 5)]


def test_a_topic_may_say_itself_when_its_windows_end() -> None:
    bench = Bench(settings=SETTINGS.with_options(window_records=4), window=TWO_RECORDS)
    bench.produce(1, 1, 1, 1, 1)
    bench.extract()
    assert [(w.first, w.until) for w in bench.commit().partitions[0].windows] == [(0, 4), (4, 5)]


def test_positions_without_records_are_covered_and_counted_as_gaps() -> None:
    bench = Bench()
    bench.kafka.gap(TP, 3)
    bench.produce(1)
    bench.kafka.gap(TP, 2)
    assert bench.extract().totals.gaps == 5
    assert bench.commit().partitions[0].next == 6


def test_a_range_of_gaps_alone_moves_the_position_without_a_file() -> None:
    bench = Bench()
    bench.kafka.gap(TP, 3)
    bench.extract()
    assert (bench.commit().partitions[0].next, bench.commit().partitions[0].windows) == (3, ())
    assert bench.paths("done/") == []


def test_done_files_name_every_file_and_are_repaired_after_a_crash() -> None:
    bench = Bench(faults=Script("create", "done/", Outcome.CRASH_BEFORE))
    bench.produce(1, 3)
    with pytest.raises(Crash):
        bench.extract()
    assert bench.paths("done/") == []
    bench.faults = lambda call: Outcome.OK
    bench.extract()
    assert [DoneFileName.parse(p).last_offset for p in bench.paths("done/")] == [1, 1]


def test_the_highest_done_file_is_repaired_even_when_its_rows_are_loaded() -> None:
    bench = Bench(faults=Script("create", "done/", Outcome.CRASH_BEFORE))
    bench.produce(1)
    with pytest.raises(Crash):
        bench.extract()
    bench.faults = lambda call: Outcome.OK
    bench.load()
    bench.extract()
    assert bench.paths("done/") == [f"done/{TOPIC}.0.d.A.1.0.0.done"]
    assert bench.commit().partitions[0].windows == ()


@pytest.mark.parametrize("outcome", [Outcome.LOST_REPLY, Outcome.LATE, Outcome.OWN_RETRY])
def test_an_unknown_outcome_of_the_swap_publishes_once(outcome: Outcome) -> None:
    bench = Bench(faults=Script("swap", "commits/shop", outcome))
    bench.produce(1, 1)
    report = bench.extract()
    while bench.store.late:
        bench.store.deliver_late()
    assert (report.failures, bench.commit().partitions[0].next) == ({}, 2)
    bench.load()
    assert bench.offsets(A) == [0, 1]


def test_a_lost_swap_leaves_only_orphans() -> None:
    bench = Bench()
    bench.produce(1, 1)
    bench.faults = Script("swap", "commits/shop", before=lambda: _other_extractor(bench))
    report = bench.extract()
    assert list(report.failures.values()) == ["another extraction was faster"]
    assert len(bench.paths("staging/")) == 2
    assert bench.commit().partitions[0].totals.records == 2
    bench.load()
    assert bench.offsets(A) == [0, 1]


def _other_extractor(bench: Bench) -> None:
    bench.faults = lambda call: Outcome.OK
    bench.extract()


def test_a_rebase_keeps_other_partitions_windows() -> None:
    bench = Bench(partitions=2)
    bench.produce(1, partition=0)
    bench.extract()
    bench.produce(1, partition=0)
    other = dataclasses.replace(bench.commit(), given_up=("elsewhere",))

    def interfere() -> None:
        current = bench.store.get(f"commits/{TOPIC}.json")
        from kbq_assets.core.protocol import codec

        bench.store.swap(f"commits/{TOPIC}.json", codec.dumps(other), current.generation)

    bench.faults = Script("swap", "commits/shop", before=interfere)
    assert bench.extract().failures == {}
    assert (bench.commit().given_up, bench.commit().partitions[0].next) == (("elsewhere",), 2)


def test_a_registry_that_is_down_fails_the_window_and_loses_nothing() -> None:
    bench = Bench()
    bench.produce(1, 1)
    bench.registry.down = True
    assert "registry is down" in str(bench.extract().failures[TP])
    assert bench.commit().partitions[0].next == 0
    bench.registry.down = False
    bench.extract()
    assert bench.commit().partitions[0].next == 2


def test_a_broker_that_is_down_fails_the_run() -> None:
    bench = Bench()
    bench.kafka.down = True
    with pytest.raises(Unavailable):
        bench.extract()


def test_an_unknown_schema_stops_the_partition_at_its_record() -> None:
    bench = Bench()
    bench.produce(1, 99)
    [stop] = bench.extract().stops
    assert (stop.reason, stop.commands[0]) == ("unknown_schema", f"kbq resume --topic {TOPIC} --partition 0")
    assert "offset 1" in stop.message
    assert (bench.commit().partitions[0].next, len(bench.paths("staging/"))) == (1, 1)
    assert [s.reason for s in bench.extract().stops] == ["unknown_schema"]  # until it is resumed


@pytest.mark.parametrize(("schema_id", "named"), [(5, "_KAFKA_OFFSET"), (6, "record")])
def test_a_schema_that_cannot_be_staged_stops_the_partition_and_is_named(schema_id: int, named: str) -> None:
    bench = Bench()
    bench.produce(schema_id)
    [stop] = bench.extract().stops
    assert stop.reason == "unstageable_schema"
    assert named in stop.message


def test_too_large_a_share_of_errors_stops_the_partition() -> None:
    bench = Bench(settings=SETTINGS.with_options(error_share_records=4))
    for bad in (b"\x01", b"\x01", value(1), value(1)):
        bench.kafka.produce(TP, bad)
    [stop] = bench.extract().stops
    assert stop.reason == "error_share"
    assert bench.commit().partitions[0].next == 0


@pytest.mark.parametrize(
    ("settings", "value_", "counts"),
    [
        (SETTINGS, b"\x01bad", {"errors": 1}),
        (SETTINGS.with_options(errors="skip"), b"\x01bad", {"skipped": 1}),
        (SETTINGS, None, {"errors": 1}),
        (SETTINGS.with_options(tombstones="skip"), None, {"skipped": 1}),
        (SETTINGS.with_options(tombstones="row", table="A"), None, {"staged": 1}),
        (TopicSettings.of(dataset="d", table="A", format="json"), b'{"a": 1}', {"staged": 1}),
        (TopicSettings.of(dataset="d", table="A", format="json"), b"{", {"errors": 1}),
    ],
)
def test_every_record_is_a_row_an_error_row_or_a_counted_skip(
    settings: TopicSettings, value_: bytes | None, counts: dict[str, int]
) -> None:
    bench = Bench(settings=settings)
    bench.kafka.produce(TP, value_, key=b"k")
    totals = bench.extract().totals
    assert {name: getattr(totals, name) for name in ("staged", "errors", "skipped")} == {
        "staged": 0,
        "errors": 0,
        "skipped": 0,
        **counts,
    }
    bench.load()
    assert len(bench.warehouse.log) == totals.staged + totals.errors


def test_the_fail_policy_stops_at_the_first_bad_record() -> None:
    bench = Bench(settings=SETTINGS.with_options(errors="fail"))
    bench.produce(1)
    bench.kafka.produce(TP, b"\x01bad")
    [stop] = bench.extract().stops
    assert (stop.reason, "offset 1" in stop.message) == ("bad_record", True)


def test_a_new_partition_is_picked_up_without_help() -> None:
    bench = Bench()
    bench.produce(1)
    bench.extract()
    bench.kafka.add_partitions(TOPIC, 2)
    bench.produce(3, partition=1)
    bench.extract()
    assert bench.commit().partitions[1].next == 1


def test_a_registered_commit_that_vanished_stops_and_is_never_empty() -> None:
    bench = Bench()
    bench.produce(1)
    bench.extract()
    bench.store.delete(f"commits/{TOPIC}.json")
    assert [s.reason for s in bench.extract().stops] == ["commit_missing"]
    bench.store.delete("commits/_topics.json")
    bench.store.create(f"commits/{TOPIC}.json", b"{}")
    with pytest.raises(MissingState, match="_topics"):
        bench.extract()


def test_an_unreadable_commit_stops_its_topic() -> None:
    bench = Bench()
    bench.produce(1)
    bench.extract()
    bench.store.delete(f"commits/{TOPIC}.json")
    bench.store.create(f"commits/{TOPIC}.json", b"torn{")
    assert [s.reason for s in bench.extract().stops] == ["commit_unreadable"]


def test_a_crash_while_a_commit_is_created_is_completed_by_the_next_run() -> None:
    for target in ("commits/_topics.json", f"commits/{TOPIC}.json"):
        for outcome in (Outcome.CRASH_BEFORE, Outcome.CRASH_AFTER):
            bench = Bench(faults=Script("create", target, outcome))
            bench.produce(1)
            with pytest.raises(Crash):
                bench.extract()
            bench.faults = lambda call: Outcome.OK
            bench.extract()
            assert bench.commit().partitions[0].next == 1


def test_slices_of_a_long_partition_are_published_as_they_end() -> None:
    bench = Bench(window=WindowLimits(records=1))
    bench.produce(*[1] * 7)
    seen = Script("swap", "commits/shop")
    bench.faults = seen
    bench.extract()
    assert bench.commit().partitions[0].next == 7


@pytest.mark.parametrize(
    ("field", "dates", "fallbacks"),
    [("on", (3,), 0), ("auto", (3,), 0), ("gone|on", (3,), 0), ("gone", (0,), 1), ("", (0,), 0)],
)
def test_event_dates_come_from_the_named_field_or_the_kafka_time(
    field: str, dates: tuple[int, ...], fallbacks: int
) -> None:
    bench = Bench(
        settings=SETTINGS.with_options(
            event_date=field, event_date_from="1970-01-01", event_date_days_ahead=3
        )
    )
    bench.produce(7)
    bench.extract()
    [window] = bench.commit().partitions[0].windows
    [file] = window.files
    assert (file.dates, file.events.fallbacks) == (dates, fallbacks)
    assert (list(file.events.hours.values()), file.events.newest_ms // 86_400_000) == ([1], dates[0])
    assert bench.commit().totals.event_time_fallbacks == fallbacks


def test_retention_loss_is_recorded_where_the_topic_says_so() -> None:
    bench = Bench(settings=SETTINGS.with_options(on_retention_loss="record"))
    bench.produce(1, 1)
    bench.extract()
    bench.produce(1, 1, 1)
    bench.kafka.delete_before(TP, 4)
    bench.extract()
    totals = bench.commit().partitions[0].totals
    assert (totals.lost, totals.records, bench.commit().partitions[0].next) == (2, 3, 5)


def test_files_rotated_inside_a_window_cover_it_without_a_hole_and_each_has_its_done_file() -> None:
    bench = Bench(window=WindowLimits(file_bytes=0))
    bench.produce(1, 3, 1, 1, 3, 1)
    bench.extract()
    [window] = bench.commit().partitions[0].windows
    covered = [(f.table.table, f.name.first_offset, f.until, f.rows) for f in window.files]
    assert covered == [("A", 0, 2, 1), ("B", 1, 4, 1), ("A", 2, 5, 2), ("B", 4, 6, 1), ("A", 5, 6, 1)]
    assert len(bench.paths("done/")) == 5
    bench.load()
    assert (bench.offsets(A), bench.offsets(B)) == ([0, 2, 3, 5], [1, 4])


def test_what_was_read_while_its_topic_was_recreated_is_not_published() -> None:
    bench = Bench()
    bench.kafka.notices_recreation = False
    bench.produce(1, 1, 1)

    def recreate() -> None:
        bench.kafka.recreate_topic(TOPIC)
        bench.produce(3, 3, 3)

    bench.faults = Script("read", before=recreate, nth=2)
    report = bench.extract()
    assert [r.operation for r in bench.faults.calls].count("read") > 1
    assert list(report.failures.values()) == ["the topic was recreated while it was read"]
    assert bench.commit().partitions[0].next == 0


def test_an_election_behind_the_last_record_does_not_hold_a_partition() -> None:
    bench = Bench()
    bench.produce(1, 1)
    bench.kafka.elect_leader(TP)
    bench.kafka.gap(TP, 3)  # such as the end of a transaction, written by the new leader
    bench.extract()
    assert bench.commit().partitions[0].next == 5
    bench.produce(1)
    assert bench.extract().failures == {}
    bench.kafka.gap(TP)
    bench.extract()
    bench.produce(1)
    assert (bench.extract().failures, bench.commit().partitions[0].next) == ({}, 8)


def test_records_where_there_were_none_are_a_truncated_log() -> None:
    bench = Bench()
    bench.produce(1, 1)
    bench.kafka.gap(TP, 2)
    bench.extract()
    bench.kafka.truncate(TP, 2)
    bench.produce(3, 3, 3, 3)
    [stop] = bench.extract().stops
    assert (stop.reason, "the log was truncated" in stop.message) == ("log_changed", True)
    assert bench.commit().partitions[0].next == 4


def test_a_topic_without_a_commit_waits_for_a_bootstrap_only_where_done_files_are_its_own() -> None:
    bench = Bench()
    bench.produce(1)
    bench.store.create(
        f"done/{TOPIC}.v2.0.d.A.1.0.9.done", b""
    )  # another topic's, whose name begins like this
    bench.kafka.create_topic(f"{TOPIC}.v2", 1)
    assert bench.extract().stops == ()
    other = Bench()
    other.produce(1)
    other.store.create(f"done/{TOPIC}.0.d.A.1.0.9.done", b"")
    assert [stop.reason for stop in other.extract().stops] == ["not_bootstrapped"]


def test_a_leader_elected_behind_the_last_record_stops_nothing_once_retention_deleted_it() -> None:
    """What ends a log may be no record, such as a transaction's end: its epoch is then not the last record's."""
    bench = Bench()
    bench.produce(1, 1)
    bench.kafka.elect_leader(TP)
    bench.kafka.gap(TP)
    bench.extract()
    bench.kafka.delete_before(TP, 3)
    bench.produce(1, 1)
    bench.extract()
    state_ = bench.commit().partitions[0]
    assert (state_.next, state_.stop) == (5, None)
