"""Topics that say where schemas go which contradict their table: what is staged, loaded and kept, faults included."""

from __future__ import annotations

import contextlib
import itertools
import json
from typing import Any

import pytest

from kbq_assets.core.errors import Unavailable
from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.topics.evolution import TableVariants, evolutions
from kbq_assets.core.topics.source_list import SourceEntry
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.pipelines.loading.load import LoadReport
from kbq_assets.pipelines.loading.restaging import is_copy
from kbq_assets.pipelines.observation.status import read_status
from kbq_assets.pipelines.operate.clean import clean
from kbq_assets.pipelines.operate.commands import propose_resume_table
from kbq_assets.wire.records.staged_schema import MetadataColumns, StagedSchema, staged_schema
from kbq_assets.worker.schema_variants import SchemaVariants
from kbq_assets_tests.fakes.faults import Call, Crash, Outcome
from kbq_assets_tests.fakes.memory_store import FaultyMemoryStore
from kbq_assets_tests.pipelines.bench import SCHEMAS, TOPIC, TP, Bench, value
from kbq_assets_tests.sizes import thinned

T, T2 = TableReference("d", "t"), TableReference("d", "t__v2")
#: Schemas 1 and 2 have x as a number, 4 has it as a text.
LONG, MORE, TEXT = 1, 2, 4


def bench_of(policy: str, **settings: Any) -> Bench:
    bench = Bench(TopicSettings.of(dataset="d", table="t", on_incompatible=policy, **settings))
    bench.warehouse.keep_records = True
    return bench


def load(bench: Bench) -> LoadReport:
    """A run that knows the topic's options."""
    return bench.load(topics=lambda topics: {TOPIC: bench.settings})


def finish(bench: Bench) -> None:
    """Extract and load to the end: nothing waits, everything is accounted for once."""
    report = bench.extract()
    assert (report.stops, report.failures) == ((), {})
    assert [(t.state, t.message) for t in load(bench).tables if t.state != "idle"] == []
    assert bench.warehouse.duplicates() == {}
    assert bench.reconcile().accounted


def values(bench: Bench, table: TableReference = T) -> list[tuple[Any, Any]]:
    """By offset, what is in x and x__string."""
    rows = sorted(bench.warehouse.records(table), key=lambda row: int(row["_kafka_offset"]))
    return [(row.get("x"), row.get("x__string")) for row in rows]


def test_a_column_of_another_type_fills_a_variant_of_the_one_there_is() -> None:
    bench = bench_of("variant_column")
    bench.produce(LONG, TEXT, LONG, TEXT)
    evolved = bench.extract().evolved
    assert list(map(str, evolved)) == ["d.t: x__string STRING is a variant of x"]
    finish(bench)
    assert values(bench) == [(1, None), (None, "x"), (1, None), (None, "x")]
    bench.produce(TEXT, MORE)
    assert bench.extract().evolved == ()
    finish(bench)
    assert values(bench)[4:] == [(None, "x"), (1, None)]


def test_a_contradicting_schema_has_a_table_of_its_own() -> None:
    bench = bench_of("new_table_version")
    bench.produce(LONG, TEXT, MORE, TEXT)
    assert list(map(str, bench.extract().evolved)) == ["d.t__v2 is a version of d.t"]
    finish(bench)
    assert values(bench) == [(1, None), (1, None)]
    assert values(bench, T2) == [("x", None), ("x", None)]


def test_a_window_has_no_more_files_than_schema_ids() -> None:
    bench = bench_of("variant_column")
    bench.produce(*[LONG, TEXT, MORE] * 10)
    bench.extract()
    [window] = bench.commit().partitions[0].windows
    assert [(str(f.table), f.name.schema_id, f.rows) for f in window.files] == [
        ("d.t", LONG, 10),
        ("d.t", TEXT, 10),
        ("d.t", MORE, 10),
    ]


def test_without_a_policy_the_table_is_parked_and_no_placement_is_read_or_written() -> None:
    bench = bench_of("park")
    asked: list[str] = []
    bench.faults = lambda call: asked.append(call.target) or Outcome.OK  # type: ignore[func-returns-value]
    bench.produce(LONG, TEXT)
    bench.extract()
    assert [table.state for table in bench.load().tables] == ["parked"]
    assert [path for path in asked if path.startswith("placements/")] == []


def test_payloads_never_change_so_there_are_no_variants() -> None:
    bench = bench_of("variant_column", format="json")
    bench.kafka.produce(TP, b"{}", key=b"k", timestamp=1000)
    finish(bench)
    assert bench.paths("placements/") == []


def test_null_values_are_rows_of_the_first_version() -> None:
    bench = bench_of("new_table_version", tombstones="row", keys=True)
    bench.produce(LONG, TEXT)
    bench.kafka.produce(TP, None, key=b"k", timestamp=1000)
    finish(bench)
    assert values(bench) == [(1, None), (None, None)]


def test_tables_by_record_name_get_variants_of_their_own() -> None:
    bench = Bench(TopicSettings.of(dataset="d", route="record_name", on_incompatible="new_table_version"))
    bench.produce(LONG, 3, TEXT)
    finish(bench)
    assert bench.paths("placements/") == ["placements/d.A.json", "placements/d.B.json"]
    assert [len(bench.offsets(TableReference("d", name))) for name in ("A", "A__v2", "B")] == [1, 1, 1]


def test_tables_that_records_choose_get_variants_of_their_own() -> None:
    bench = Bench(TopicSettings.of(dataset="d", table="t_{key}", on_incompatible="variant_column"))
    bench.warehouse.keep_records = True
    for schema_id, key in ((LONG, b"a"), (TEXT, b"a"), (TEXT, b"b"), (LONG, b"a")):
        bench.kafka.produce(TP, value(schema_id), key=key, timestamp=1000)
    finish(bench)
    assert values(bench, TableReference("d", "t_a")) == [(1, None), (None, "x"), (1, None)]
    assert values(bench, TableReference("d", "t_b")) == [("x", None)]


def test_a_lost_shape_of_a_json_topic_contradicts_nothing_any_more() -> None:
    bench = bench_of("variant_column", format="json_columns")
    bench.kafka.produce(TP, b'{"a": 1}', key=b"k", timestamp=1000)
    finish(bench)
    bench.store.delete(f"shapes/{TOPIC}.json")
    bench.kafka.produce(TP, b'{"a": "text"}', key=b"k", timestamp=1000)
    finish(bench)
    assert [row.get("a__string") for row in bench.warehouse.records(T)] == [None, "text"]


def parked(policy: str) -> Bench:
    """A topic whose table was parked because of a schema, with its files in the backlog, and which then got its
    policy."""
    bench = bench_of("park")
    bench.produce(LONG)
    finish(bench)
    bench.produce(TEXT, TEXT)
    bench.extract()
    assert [table.state for table in load(bench).tables] == ["parked"]
    bench.extract()
    assert bench.paths("placements/") == []
    bench.settings = bench.settings.with_options(on_incompatible=policy)
    propose_resume_table(bench.store, T).apply()
    return bench


IN_VARIANTS = [(1, None), (None, "x"), (None, "x")]


@pytest.mark.parametrize("policy", ["variant_column", "new_table_version"])
def test_what_waits_for_a_parked_table_gets_a_variant_once_there_is_a_policy(policy: str) -> None:
    bench = parked(policy)
    finish(bench)
    assert values(bench) == IN_VARIANTS
    bench.produce(TEXT, LONG)
    finish(bench)
    assert values(bench) == [*IN_VARIANTS, (None, "x"), (1, None)]
    clean(bench.store)
    assert bench.paths("staging/") == bench.paths("backlog/") == []


def test_a_placement_that_was_lost_is_learned_from_the_table_variants_too() -> None:
    bench = bench_of("variant_column")
    bench.produce(LONG, TEXT)
    finish(bench)
    bench.store.delete("placements/d.t.json")
    bench.produce(TEXT, LONG)
    finish(bench)
    assert values(bench) == [(1, None), (None, "x"), (None, "x"), (1, None)]


def test_copies_that_a_janitor_took_before_their_job_was_known_are_made_again() -> None:
    bench = parked("variant_column")
    bench.faults = lambda call: Outcome.CRASH_BEFORE if call.operation == "insert_job" else Outcome.OK
    with pytest.raises(Crash):
        load(bench)
    bench.faults = lambda call: Outcome.OK
    for path in bench.paths("staging/"):
        if is_copy(path):
            bench.store.delete(path)
    finish(bench)
    assert values(bench) == IN_VARIANTS


FAULTS = [
    Outcome.UNAVAILABLE,
    Outcome.CRASH_BEFORE,
    Outcome.CRASH_AFTER,
    Outcome.LOST_REPLY,
    Outcome.LATE,
    Outcome.OWN_RETRY,
]


@pytest.mark.parametrize("policy", ["variant_column", "new_table_version"])
@pytest.mark.parametrize("outcome", FAULTS)
def test_whatever_happens_to_stored_variants_everything_is_loaded_once(policy: str, outcome: Outcome) -> None:
    for number in itertools.count():
        bench, calls = bench_of(policy), list[Call]()

        def faults(call: Call, number: int = number, calls: list[Call] = calls) -> Outcome:
            if not call.target.startswith("placements/") or (
                outcome is not Outcome.UNAVAILABLE and not call.writes
            ):
                return Outcome.OK
            calls.append(call)
            return outcome if len(calls) == number + 1 else Outcome.OK

        bench.produce(LONG, TEXT, LONG, MORE)
        bench.faults = faults
        with contextlib.suppress(Crash):
            bench.extract()
        bench.faults = lambda call: Outcome.OK
        bench.store.late.clear()
        finish(bench)
        assert len(values(bench)) + len(values(bench, T2)) == 4
        if len(calls) <= number:
            assert number > 0
            return


@pytest.mark.parametrize("outcome", thinned(FAULTS, 3))
def test_whatever_happens_while_files_are_staged_again_they_are_loaded_once(outcome: Outcome) -> None:
    for number in itertools.count():
        bench, calls = parked("variant_column"), list[Call]()

        def faults(call: Call, number: int = number, calls: list[Call] = calls) -> Outcome:
            if not call.writes and outcome is not Outcome.UNAVAILABLE:
                return Outcome.OK
            calls.append(call)
            return outcome if len(calls) == number + 1 else Outcome.OK

        bench.faults = faults
        with contextlib.suppress(Crash, Unavailable):
            load(bench)
        bench.faults = lambda call: Outcome.OK
        bench.store.late.clear()
        bench.warehouse.late.clear()
        clean(bench.store)
        load(bench)
        finish(bench)
        assert values(bench) == IN_VARIANTS
        if len(calls) <= number:
            assert number > 5
            return


def schema_of(schema_id: int) -> StagedSchema:
    return staged_schema(SCHEMAS[schema_id], MetadataColumns())


@pytest.mark.parametrize("policy", ["variant_column", "new_table_version"])
def test_two_tasks_that_meet_schemas_at_once_agree(policy: str) -> None:
    """Both have read the variants before either writes."""
    store = FaultyMemoryStore()
    one, other = SchemaVariants(store, policy), SchemaVariants(store, policy)
    for task in (one, other):
        task.route("d.t", schema_of(3))
    first, second = one.route("d.t", schema_of(MORE)), other.route("d.t", schema_of(TEXT))
    assert (first.table, second.table) == ("d.t", "d.t" if policy == "variant_column" else "d.t__v2")
    again = SchemaVariants(store, policy)
    for task in (one, other, again):
        for schema_id, route in ((MORE, first), (TEXT, second)):
            found = task.route("d.t", schema_of(schema_id))
            assert (found.table, found.schema.fingerprint) == (route.table, route.schema.fingerprint)
    stored = codec.loads(TableVariants, store.get("placements/d.t.json").data, "p")
    assert len(evolutions("d.t", stored)) == 1
    assert (one.evolved, other.evolved) == (set(), set(evolutions("d.t", stored)))


def test_a_placement_of_a_later_kbq_keeps_what_this_one_does_not_know() -> None:
    store = FaultyMemoryStore()
    store.create("placements/d.t.json", json.dumps({"format": 1, "later": 5}).encode())
    SchemaVariants(store, "variant_column").route("d.t", schema_of(LONG))
    assert json.loads(store.get("placements/d.t.json").data)["later"] == 5


@pytest.mark.parametrize(("policy", "reported"), [("variant_column", 1), ("park", 0)])
def test_the_status_shows_what_contradictions_led_to(policy: str, reported: int) -> None:
    bench = bench_of(policy)
    bench.produce(LONG, TEXT)
    bench.extract()
    found = read_status(bench.store, bench.kafka, [SourceEntry(TOPIC, bench.settings)]).evolved
    assert list(map(str, found)) == ["d.t: x__string STRING is a variant of x"] * reported


def test_a_placement_that_cannot_be_read_stops_its_topic_and_no_status() -> None:
    bench = bench_of("variant_column")
    bench.produce(LONG)
    bench.store.create("placements/d.t.json", b"{")
    [stop] = bench.extract().stops
    assert "placements/d.t.json cannot be read" in stop.message
    assert read_status(bench.store, bench.kafka, [SourceEntry(TOPIC, bench.settings)]).evolved == ()
