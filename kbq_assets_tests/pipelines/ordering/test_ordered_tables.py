"""Rows of an ordered table become visible in offset order, and a batch that fails stops its table."""

from __future__ import annotations

import dataclasses
import struct
from typing import Any

import pytest

from kbq_assets.core.errors import ConfigurationError, JobFailed, Refused
from kbq_assets.core.extraction.units import WindowLimits
from kbq_assets.core.loading.batches import LoadLimits
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.ordering import transitions
from kbq_assets.core.ordering.table_order import AuditChunk, AuditEntry
from kbq_assets.core.protocol.names import audit_path, marker_path, table_state_path
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.topics.source_list import SourceEntry, SourceLines, parse_source_list
from kbq_assets.pipelines.loading import job_start
from kbq_assets.pipelines.loading.load import LoadReport, plan
from kbq_assets.pipelines.loading.load_blocks import LoadBlocks
from kbq_assets.pipelines.loading.view import read_view
from kbq_assets.pipelines.ordering.decisions import decide
from kbq_assets.pipelines.ordering.orders import OrderStatus, order_status
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.state_cache import StateCache
from kbq_assets.ports.warehouse import JobError, LoadJob
from kbq_assets_tests.pipelines.bench import SCHEMAS, SETTINGS, TOPIC, TP, A, B, Bench, value

ORDERED = SETTINGS.with_options(order="offset")
ENTRY = AuditEntry(7, "", 0, "by hand", "me")


def _bench(window_records: int = 0, **more: Any) -> Bench:
    bench = Bench(settings=ORDERED, window=WindowLimits(records=window_records or 10_000), **more)
    bench.warehouse.limits = LoadLimits(mixes_schemas=True, jobs_per_day=0)
    return bench


def _load(bench: Bench) -> LoadReport:
    return bench.load(topics=lambda topics: dict.fromkeys(topics, bench.settings))


def _state(bench: Bench) -> TableState:
    return state.read(bench.store, TableState, table_state_path(A)).value


def _status(bench: Bench) -> OrderStatus:
    found = order_status(read_view(StateCache(bench.store)), A)
    assert found is not None
    return found


def _jobs(bench: Bench) -> list[list[int]]:
    """Which offsets became visible together, in order."""
    jobs = [
        job
        for job in bench.warehouse.jobs.values()
        if job.load and not job.status.error and job.load.table == A
    ]
    sizes = [job.status.output_rows for job in jobs]
    offsets = bench.offsets(A)
    return [sorted(offsets[sum(sizes[:n]) : sum(sizes[: n + 1])]) for n in range(len(sizes))]


def _refuse(bench: Bench, *words: str) -> None:
    def error(job: LoadJob) -> JobError | None:
        refused = any(word in uri for word in words for uri in job.source_uris)
        return JobError("invalid", "it is refused", transient=False) if refused else None

    bench.warehouse.job_errors = error


@pytest.mark.parametrize("window_records", [1, 2, 5])
def test_interleaved_schemas_become_visible_in_offset_order(window_records: int) -> None:
    bench = _bench(window_records)
    bench.produce(1, 2, 1, 2, 1)
    bench.extract()
    _load(bench)
    seen = [offset for job in _jobs(bench) for offset in job]
    assert seen == [0, 1, 2, 3, 4]
    assert _state(bench).order.settled == len(_jobs(bench))


def test_without_an_order_they_become_visible_by_schema() -> None:
    bench = _bench(1)
    bench.settings = SETTINGS
    bench.produce(1, 2, 1, 2, 1)
    bench.extract()
    _load(bench)
    assert [offset for job in _jobs(bench) for offset in job] == [0, 2, 4, 1, 3]
    assert b'"order"' not in bench.store.get(table_state_path(A)).data


@pytest.mark.parametrize("job_files", [1, 3, 4])
def test_a_batch_ends_between_windows_and_never_within_one(job_files: int) -> None:
    bench = _bench(3)
    bench.warehouse.limits = dataclasses.replace(bench.warehouse.limits, files=job_files)
    bench.produce(*([1, 2, 2] * 4))
    bench.extract()
    _load(bench)
    jobs = _jobs(bench)
    assert [offset for job in jobs for offset in job] == list(range(12))
    assert [len(job) for job in jobs] == ([8, 4] if job_files == 4 else [4, 4, 4])


def test_interleaved_schemas_make_no_more_files_than_without_an_order() -> None:
    counts = []
    for settings in (SETTINGS, ORDERED):
        bench = _bench()
        bench.settings = settings
        bench.produce(*([1, 2] * 50))
        bench.extract()
        counts.append(len(bench.paths("staging/")))
    assert counts == [2, 2]


def test_each_partition_has_an_order_of_its_own_while_one_is_far_behind() -> None:
    bench = _bench(2, partitions=3)
    for partition in (0, 1):
        bench.produce(1, 2, 1, 2, partition=partition)
    bench.extract()
    _load(bench)
    bench.produce(2, 1, 2, 1, partition=2)
    bench.produce(1, 2, partition=0)
    bench.extract()
    _load(bench)
    rows = bench.warehouse.rows(A)
    assert len(rows) == 14
    sizes = [len(job) for job in _jobs(bench)]
    seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
    begin = 0
    for size in sizes:
        for row in sorted(rows[begin : begin + size]):
            seen[row.partition].append(row.offset)
        begin += size
    assert all(offsets == sorted(offsets) for offsets in seen.values())


def test_a_batch_that_fails_stops_its_table_alone_and_nothing_goes_to_quarantine() -> None:
    bench = _bench(2)
    bench.produce(1, 1, 3, 3)
    bench.extract()
    _refuse(bench, f"{A}.")
    report = _load(bench)
    reports = {each.table: each for each in report.tables}
    assert (reports[A].state, bench.offsets(A), bench.offsets(B)) == ("parked", [], [2, 3])
    bench.produce(1, 1)
    bench.extract()
    _load(bench)
    found = _state(bench)
    assert (bench.offsets(A), found.quarantined, bench.paths("quarantine/")) == ([], (), [])
    assert found.order.failed is not None
    assert found.order.failed.number == 1
    assert found.parked is not None
    for word in ("batch 1", found.order.failed.job_id, "it is refused", ".0.avro"):
        assert word in found.parked.error
    assert (_status(bench).state, _status(bench).rows) == ("failed", 4)


def test_a_batch_that_failed_is_loaded_again_as_it_was() -> None:
    bench = _bench(2)
    bench.produce(1, 2)
    bench.extract()
    _refuse(bench, f"{A}.")
    _load(bench)
    bench.produce(2, 1)
    bench.extract()
    bench.warehouse.job_errors = None
    decide(bench.store, A, lambda now: transitions.retry(now, ENTRY))
    _load(bench)
    assert _jobs(bench) == [[0, 1], [2, 3]]
    order = _state(bench).order
    assert (order.settled, order.failed, [e.action for e in order.audit]) == (2, None, ["retry"])


def test_a_skipped_batch_is_given_up_for_the_record_and_the_next_one_runs() -> None:
    bench = _bench(2)
    bench.produce(1, 2)
    bench.extract()
    _refuse(bench, f"{A}.")
    _load(bench)
    bench.warehouse.job_errors = None
    bench.produce(2, 1)
    bench.extract()
    decide(bench.store, A, lambda now: transitions.skip(now, 1, ENTRY))
    _load(bench)
    found = _state(bench)
    assert _jobs(bench) == [[2, 3]]
    assert (found.order.settled, [(e.action, e.batch, e.rows, e.reason) for e in found.order.audit]) == (
        2,
        [("skip", 1, 2, "by hand")],
    )
    assert sum(bad.file.rows for bad in found.quarantined if bad.dropped) == 2
    bench.extract()
    assert not bench.commit().partitions[0].windows


@pytest.mark.parametrize("batch", [0, 2])
def test_no_other_batch_than_the_failed_one_is_skipped(batch: int) -> None:
    bench = _bench()
    bench.produce(1)
    bench.extract()
    _refuse(bench, f"{A}.")
    _load(bench)
    with pytest.raises(Refused, match="batch 1 failed"):
        transitions.skip(_state(bench), batch, ENTRY)


def test_a_batch_whose_job_may_run_is_neither_skipped_nor_retried() -> None:
    bench = _bench()
    bench.produce(1)
    bench.extract()
    _refuse(bench, f"{A}.")
    _load(bench)
    bench.warehouse.job_errors, bench.warehouse.auto_run = None, False
    decide(bench.store, A, lambda now: transitions.retry(now, ENTRY))
    bench.load(wait_seconds=0.0, topics=lambda topics: dict.fromkeys(topics, bench.settings))
    with pytest.raises(Refused, match="loading it again"):
        transitions.skip(_state(bench), 1, ENTRY)
    with pytest.raises(Refused, match="loading it again"):
        transitions.retry(_state(bench), ENTRY)


def test_a_failed_batch_is_tried_again_without_help_after_a_pause() -> None:
    bench = _bench()
    bench.produce(1)
    bench.extract()
    _refuse(bench, f"{A}.")
    _load(bench)
    bench.warehouse.job_errors = None
    bench.store.time_ms += 61_000
    _load(bench)
    assert (bench.offsets(A), _state(bench).order.settled, _state(bench).order.failed) == ([0], 1, None)


def test_a_lost_file_stops_an_ordered_table_and_its_batch_can_be_skipped() -> None:
    bench = _bench()
    bench.produce(1, 2)
    bench.extract()
    lost = next(path for path in bench.paths("staging/") if f"{A}.1." in path)
    bench.store.delete(lost)
    [reported] = _load(bench).tables
    found = _state(bench)
    assert found.parked is not None
    assert (found.parked.reason, lost in found.parked.error) == ("missing_files", True)
    ways_on = (f"kbq order retry {A}", "kbq restage FILE", f"kbq order skip {A} --batch 1 --reason TEXT")
    assert reported.commands == _status(bench).commands == ways_on
    decide(bench.store, A, lambda now: transitions.skip(now, 1, ENTRY))
    bench.produce(1)
    bench.extract()
    _load(bench)
    assert bench.offsets(A) == [2]


def test_batches_queue_while_a_table_is_held_and_then_run_in_order() -> None:
    bench = _bench(1)
    bench.produce(1)
    bench.extract()
    _load(bench)
    decide(bench.store, A, lambda now: transitions.hold(now, ENTRY))
    for schema_id in (2, 1, 2):
        bench.produce(schema_id)
        bench.extract()
        _load(bench)
    assert (bench.offsets(A), _status(bench).state, _status(bench).windows) == ([0], "held", 3)
    assert not plan(bench.store).batches
    decide(bench.store, A, lambda now: transitions.release(now, ENTRY))
    _load(bench)
    assert [offset for job in _jobs(bench) for offset in job] == [0, 1, 2, 3]
    assert [e.action for e in _state(bench).order.audit] == ["hold", "release"]


def test_a_hold_lets_the_job_in_flight_end() -> None:
    bench = _bench(2)
    bench.produce(1, 2, 1, 2)
    bench.extract()
    bench.warehouse.limits = dataclasses.replace(bench.warehouse.limits, files=1)
    bench.warehouse.auto_run = False
    bench.load(wait_seconds=0.0, topics=lambda topics: dict.fromkeys(topics, bench.settings))
    decide(bench.store, A, lambda now: transitions.hold(now, ENTRY))
    bench.warehouse.step()
    _load(bench)
    assert (sorted(bench.offsets(A)), _status(bench).state) == ([0, 1], "held")


def _gated(gate: str, **more: str) -> Bench:
    bench = _bench(2)
    bench.settings = ORDERED.with_options(
        gate=gate, gate_sql="SELECT {{ table }}" if "sql" in gate else "", **more
    )
    bench.produce(1, 2)
    bench.extract()
    return bench


def _more(bench: Bench) -> None:
    bench.produce(2, 1)
    bench.extract()
    _load(bench)


def _parked(bench: Bench) -> str:
    parked = _state(bench).parked
    return parked.reason if parked else ""


def test_a_red_gate_holds_its_table_while_others_load_and_a_green_one_goes_on() -> None:
    bench = _gated("sql")
    bench.warehouse.statements.bad_rows = lambda sql: [sql] * 9
    _load(bench)
    assert (_jobs(bench), _parked(bench), _status(bench).state) == ([[0, 1]], "gate_red", "gate")
    assert (_state(bench).order.settled, _state(bench).order.validated) == (1, 0)
    assert 'SELECT "d"."A"; ' in _status(bench).why
    bench.produce(3)
    bench.store.time_ms += 61_000
    _more(bench)
    assert (_jobs(bench), bench.offsets(B)) == ([[0, 1]], [2])
    bench.warehouse.statements.bad_rows = lambda sql: []
    bench.store.time_ms += 121_000
    assert len(plan(bench.store).batches) == 1
    _load(bench)
    order = _state(bench).order
    assert (_jobs(bench), _parked(bench)) == ([[0, 1], [3, 4]], "")
    assert (order.settled, order.validated, order.audit) == (2, 2, ())


def test_a_red_gate_is_asked_again_within_minutes_however_often_it_was_red() -> None:
    bench = _gated("sql")
    asked = []
    bench.warehouse.statements.bad_rows = lambda sql: asked.append(sql) or ["bad"]  # type: ignore[func-returns-value]
    for _ in range(12):
        bench.store.time_ms += 241_000
        _load(bench)
    assert len(asked) == 12


def test_a_query_that_fails_is_a_red_gate() -> None:
    bench = _gated("sql")

    def fail(sql: str) -> list[str]:
        raise JobFailed("no such column")

    bench.warehouse.statements.bad_rows = fail
    _load(bench)
    assert (_parked(bench), "no such column" in _status(bench).why) == ("gate_red", True)


def test_a_person_validates_each_batch() -> None:
    bench = _gated("person")
    _load(bench)
    assert (_parked(bench), plan(bench.store).batches) == ("gate_waits", ())
    bench.store.time_ms += 10**9
    _more(bench)
    assert _jobs(bench) == [[0, 1]]
    decide(bench.store, A, lambda now: transitions.go_on(now, ENTRY))
    _load(bench)
    assert (_jobs(bench), _parked(bench), _state(bench).order.validated) == (
        [[0, 1], [2, 3]],
        "gate_waits",
        1,
    )
    assert [(e.action, e.batch) for e in _state(bench).order.audit] == [("continue", 1)]


def test_queries_are_asked_before_a_person_and_a_person_may_overrule_them() -> None:
    bench = _gated("person,sql")
    bench.warehouse.statements.bad_rows = lambda sql: ["bad"]
    _load(bench)
    assert _parked(bench) == "gate_red"
    decide(bench.store, A, lambda now: transitions.go_on(now, ENTRY))
    _more(bench)
    assert (_jobs(bench), _state(bench).order.validated) == ([[0, 1], [2, 3]], 1)
    bench.warehouse.statements.bad_rows = lambda sql: []
    bench.store.time_ms += 61_000
    _load(bench)
    assert (_parked(bench), _state(bench).order.validated) == ("gate_waits", 1)


def test_a_skipped_batch_passes_the_gates_like_an_applied_one() -> None:
    bench = _gated("person")
    _refuse(bench, f"{A}.")
    _load(bench)
    bench.warehouse.job_errors = None
    decide(bench.store, A, lambda now: transitions.skip(now, 1, ENTRY))
    _more(bench)
    assert (_parked(bench), _jobs(bench)) == ("gate_waits", [])


def test_a_gate_that_is_removed_stops_nothing() -> None:
    bench = _gated("sql")
    bench.warehouse.statements.bad_rows = lambda sql: ["bad"]
    _load(bench)
    bench.settings = ORDERED
    bench.store.time_ms += 61_000
    _more(bench)
    assert (_jobs(bench), _parked(bench)) == ([[0, 1], [2, 3]], "")


def test_nothing_continues_that_waits_for_no_gate() -> None:
    with pytest.raises(Refused, match="no gate is open"):
        transitions.go_on(TableState("u"), ENTRY)


def test_fifty_batches_wait_for_the_marker_and_then_run_in_order() -> None:
    bench = _bench(2, partitions=5)
    bench.settings = ORDERED.with_options(hold_until="history")
    for number in range(10):
        for partition in (number, number + 2, number + 1, number + 4, number + 3):
            bench.produce(1 + number % 2, 2 - number % 2, partition=partition % 5)
        bench.extract()
        _load(bench)
    assert (_parked(bench), bench.offsets(A), _status(bench).windows) == ("waits_for_marker", [], 50)
    bench.store.create(marker_path("history"), b"")
    bench.store.time_ms += 241_000
    _load(bench)
    assert (_parked(bench), len(bench.offsets(A))) == ("", 100)
    assert [(e.action, e.reason) for e in _state(bench).order.audit] == [
        ("release", "the marker history exists")
    ]
    for partition in range(5):
        seen = [row.offset for row in bench.warehouse.rows(A) if row.partition == partition]
        assert sorted(seen) == list(range(20))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gate": "person"}, "without an order"),
        ({"hold_until": "x"}, "without an order"),
        ({"order": "offset", "gate": "sql"}, "need each other"),
        ({"order": "offset", "gate_sql": "SELECT 1"}, "need each other"),
        ({"order": "offset", "gate": "person,person"}, "gate="),
        ({"order": "offset", "gate": "check"}, "gate="),
        ({"order": "offset", "hold_until": "a/b"}, "hold_until="),
        ({"order": "day"}, "order="),
        ({"order": "hour", "complete_after_seconds": "0"}, "complete_after_seconds=0 never completes one"),
    ],
)
def test_an_option_that_would_have_no_effect_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        SETTINGS.with_options(**options)


def test_nothing_is_released_that_is_not_held() -> None:
    with pytest.raises(Refused, match="nothing holds"):
        transitions.release(TableState("u"), ENTRY)


def test_an_order_takes_effect_and_ends_with_the_next_batch() -> None:
    bench = _bench(1)
    bench.settings = SETTINGS
    bench.produce(1, 2)
    bench.extract()
    _load(bench)
    assert _state(bench).order.rule.by == ""
    bench.settings = ORDERED
    bench.produce(1, 2, 1)
    bench.extract()
    _load(bench)
    assert _state(bench).order.rule.by == "offset"
    assert _jobs(bench)[2:] == [[2, 3, 4]]
    bench.settings = SETTINGS
    bench.produce(2, 1, 2)
    bench.extract()
    _load(bench)
    assert (_state(bench).order.rule.by, _jobs(bench)[3:]) == ("", [[6], [5, 7]])


def test_a_topic_that_is_not_selected_any_more_keeps_its_table_ordered() -> None:
    bench = _bench(1)
    bench.produce(1)
    bench.extract()
    _load(bench)
    bench.produce(2, 1, 2)
    bench.extract()
    bench.load(topics=lambda topics: {})
    assert (_state(bench).order.rule.by, _jobs(bench)) == ("offset", [[0], [1, 2, 3]])


def _unknown(topic: str) -> LoadBlocks:
    return LoadBlocks(unknown=SourceLines(parse_source_list(f"{topic} tabel=x", "list")).unknown)


def test_a_gate_whose_query_nobody_knows_is_not_green() -> None:
    """The topic left the list, or its entry has a mistake."""
    bench = _gated("sql")
    bench.warehouse.statements.bad_rows = lambda sql: ["bad"]
    _load(bench)
    bench.warehouse.statements.bad_rows = lambda sql: []
    for blocks, why in ((LoadBlocks(), "no topic has a gate_sql"), (_unknown(TOPIC), "options are unknown")):
        bench.store.time_ms += 241_000
        bench.load(topics=lambda topics: {}, blocks=blocks)
        assert (_state(bench).order.validated, _parked(bench)) == (0, "gate_red")
        assert why in _status(bench).why
    bench.store.time_ms += 241_000
    _load(bench)
    assert (_state(bench).order.validated, _parked(bench)) == (1, "")


def test_a_mistake_in_the_entry_of_one_topic_changes_no_rule_of_a_table_with_others() -> None:
    """The other topic alone would remove the gate and the marker, which both topics need."""
    bench = _gated("person", hold_until="reviewed")
    _load(bench)
    rule = _state(bench).order.rule
    assert (rule.gates, rule.hold_until, _jobs(bench)) == (("person",), "reviewed", [])
    other = "shop.other"
    bench.kafka.create_topic(other, 1)
    bench.kafka.produce(TopicPartition(other, 0), value(1), timestamp=1000)
    bench.extract(sources=[SourceEntry(each, bench.settings) for each in (TOPIC, other)])
    known = {other: ORDERED}
    bench.store.time_ms += 241_000
    bench.load(topics=lambda topics: {t: known[t] for t in topics if t in known}, blocks=_unknown(TOPIC))
    assert (_state(bench).order.rule, _jobs(bench)) == (rule, [])


def test_error_rows_have_no_order() -> None:
    bench = _bench(1)
    bench.kafka.produce(TP, b"\x00bad", timestamp=1000)
    bench.settings = ORDERED.with_options(error_share_records=100)
    bench.extract()
    _load(bench)
    errors = state.read(bench.store, TableState, "tables/d.kbq_errors.json").value
    assert errors.order.rule.by == ""
    assert sum(errors.rows.values()) == 1


def test_decisions_outlive_their_list_in_the_state() -> None:
    bench = _bench()
    bench.produce(1)
    bench.extract()
    _load(bench)
    for number in range(60):
        entry = dataclasses.replace(ENTRY, at_ms=number)
        decide(bench.store, A, lambda now, entry=entry: transitions.hold(now, entry))  # type: ignore[misc]
    order = _state(bench).order
    kept = [
        e.at_ms
        for first in range(0, order.archived, 20)
        for e in state.read(bench.store, AuditChunk, audit_path(A, first)).value.entries
    ]
    assert [*kept, *(e.at_ms for e in order.audit)] == list(range(60))


@pytest.mark.parametrize("schema_ids", [(1, 2, 1, 2, 1), (1, 1, 2, 2, 1, 2), (2, 1, 1, 1, 2, 2)])
def test_a_warehouse_of_one_schema_per_job_gets_windows_of_several_under_one(
    schema_ids: tuple[int, ...],
) -> None:
    bench = _bench(2, keep_records=True)
    bench.warehouse.limits = LoadLimits(jobs_per_day=0)
    bench.produce(*schema_ids)
    bench.extract()
    _load(bench)
    assert [offset for job in _jobs(bench) for offset in job] == list(range(len(schema_ids)))
    assert all(record["x"] == 1 for record in bench.warehouse.records(A))
    assert (_state(bench).mismatches, _state(bench).parked) == ((), None)
    bench.extract()
    assert not bench.commit().partitions[0].windows
    assert bench.reconcile().accounted


def test_windows_of_one_schema_are_not_staged_again() -> None:
    bench = _bench(2)
    bench.warehouse.limits = LoadLimits(jobs_per_day=0)
    bench.produce(1, 1, 2, 2, 1, 1)
    bench.extract()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job_start, "under_one_schema", None)
        _load(bench)
    assert _jobs(bench) == [[0, 1], [2, 3], [4, 5]]


def test_schemas_without_a_common_one_stop_the_table_with_both_types_named() -> None:
    bench = _bench(2)
    bench.warehouse.limits = LoadLimits(jobs_per_day=0)
    for schema_id, unit in ((1, "micros"), (2, "millis")):
        time = f'{{"type":"long","logicalType":"timestamp-{unit}"}}'
        bench.registry.schemas[schema_id] = SCHEMAS[2].replace('["null","long"]', time)
    for schema_id in (1, 2):
        value = struct.pack(">bI", 0, schema_id) + b"\x02\x04"
        bench.kafka.produce(TP, value, key=b"k", timestamp=1000)
    bench.extract()
    _load(bench)
    parked = _state(bench).parked
    assert parked is not None
    assert parked.reason == "batch_failed"
    assert "timestamp-millis" in parked.error
    assert "timestamp-micros" in parked.error
