"""Error rows become rows: each once, with its own coordinates, and its error row is marked at the same time."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest

from kbq_assets.core.errors import Refused, UnknownOutcome
from kbq_assets.core.errors_replay.selection import BATCH_BYTES, BATCH_ROWS, Left, batches
from kbq_assets.core.loading.tables import TableOptions
from kbq_assets.extras.reconcile.records import reconcile
from kbq_assets.pipelines.errors_replay import reparse as replaying
from kbq_assets.pipelines.errors_replay.reparse import ReplayPorts, ReplayReport, Selection, replay_errors
from kbq_assets.pipelines.operate import commands as operate
from kbq_assets.ports.warehouse import ErrorQuery, ErrorRow, KafkaRange
from kbq_assets.worker.unit import extract_unit
from kbq_assets_tests.fakes.errors_replay import FakeErrorReplays
from kbq_assets_tests.pipelines.bench import ERRORS, SETTINGS, TOPIC, TP, A, B, Bench, value

#: Records of an unknown schema, and others, become error rows.
TO_ERRORS = SETTINGS.with_options(error_share=1)


def bad(*schema_ids: int) -> Bench:
    """A loaded topic whose records of unknown schemas an operator accepted as error rows."""
    bench = Bench(settings=TO_ERRORS, keep_records=True)
    bench.produce(*schema_ids)
    while stops := bench.extract().stops:
        operate.propose_resume(bench.store, TOPIC, stops[0].topic_partition.partition, as_errors=True).apply()
    bench.load()
    return bench


def replay(bench: Bench, **selection: object) -> ReplayReport:
    ports = ReplayPorts(
        bench.store,
        bench.warehouse,
        lambda unit, source: extract_unit(unit, bench.worker(source), again=True),
        lambda topics: {TOPIC: bench.settings} if TOPIC in topics else {},
        lambda table, topics: TableOptions(),
    )
    return replay_errors(ports, Selection(**selection))  # type: ignore[arg-type]


def offsets(bench: Bench, table: object = A) -> list[int]:
    return sorted(bench.warehouse.positions(table, KafkaRange(TOPIC, 0, 1)))  # type: ignore[arg-type]


def register(bench: Bench, *schema_ids: int) -> None:
    for schema_id in schema_ids:
        bench.registry.schemas[schema_id] = bench.registry.schemas[1]


@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=pytest.mark.slow)])
def test_error_rows_replayed_twice_are_loaded_once_and_reconciliation_agrees(count: int) -> None:
    bench = bad(1, *[99] * count, 1)
    before = reconcile(bench.reconcile_ports())
    assert (before.verdict, before.totals()["errors"], before.totals()["loaded"]) == ("yes", count, 2)
    assert replay(bench).left == {Left.STILL_BAD: count}  # the schema is still unknown
    register(bench, 99)
    report = replay(bench)
    assert (report.rows, report.left) == ({A: count}, {})
    after = reconcile(bench.reconcile_ports(), values="all")
    assert (after.verdict, after.totals()["errors"], after.totals()["loaded"]) == ("yes", 0, count + 2)
    assert (after.values.compared, after.values.findings) == (count + 2, ())
    again = replay(bench)
    assert (again.rows, again.left) == ({}, {})
    assert offsets(bench) == list(range(count + 2))
    assert not bench.warehouse.duplicates()
    assert not bench.paths("staging/")


def test_a_replayed_row_has_its_record_s_coordinates_and_the_error_row_is_listed_no_more() -> None:
    bench = bad(1, 99)
    register(bench, 99)
    replay(bench)
    [row] = [row for row in bench.warehouse.stored[A].records if row["_kafka_offset"] == 1]
    assert (row["_kbq_epoch"], row["_kafka_topic"], row["x"]) == (1, TOPIC, 1)
    assert bench.warehouse.error_rows(ERRORS, ErrorQuery()) == ()
    assert len(bench.warehouse.error_rows(ERRORS, ErrorQuery(replayed=True))) == 1
    assert {"_kbq_replayed_at"} <= {column.name for column in bench.warehouse.stored[A].columns}
    bench.produce(1)
    bench.extract()
    bench.load()
    assert offsets(bench) == [0, 1, 2]
    assert bench.reconcile().verdict == "yes"


def test_a_lost_reply_doubles_nothing() -> None:
    bench = bad(99, 99)
    register(bench, 99)
    assert isinstance(bench.warehouse.errors_replay, FakeErrorReplays)
    bench.warehouse.errors_replay.loses_reply = True
    with pytest.raises(UnknownOutcome):
        replay(bench)
    assert replay(bench).rows == {}
    assert offsets(bench) == [0, 1]
    assert bench.reconcile().verdict == "yes"


def test_a_table_that_no_load_made_is_created_and_later_loads_go_on() -> None:
    bench = bad(1, 98)
    bench.registry.schemas[98] = bench.registry.schemas[3]
    assert replay(bench).rows == {B: 1}
    bench.produce(3)
    bench.extract()
    assert {table.state for table in bench.load().tables} == {"idle"}
    assert offsets(bench, B) == [1, 2]
    assert bench.reconcile().verdict == "yes"


def test_only_the_chosen_reason_and_topic_are_replayed() -> None:
    bench = bad(99, 1)
    register(bench, 99)
    assert replay(bench, topic="other").rows == {}
    assert replay(bench, reason="BAD_FRAMING").rows == {}
    assert replay(bench, topic=TOPIC, reason="UNKNOWN_SCHEMA").rows == {A: 1}


def test_a_function_repairs_payloads_and_its_errors_leave_rows_alone() -> None:
    bench = Bench(settings=TO_ERRORS.with_options(errors="error_table"), keep_records=True)
    for payload in (b"\x01one", b"\x01two", b"\x01three", b"\x01four"):
        bench.kafka.produce(TP, payload, timestamp=1000)
    bench.extract()
    bench.load()

    def repair(row: ErrorRow) -> bytes | None:
        return {b"\x01one": value(1), b"\x01two": None, b"\x01three": b"\x02still bad"}[row.value or b""]

    report = replay(bench, repair=repair)
    assert report.rows == {A: 1}
    assert report.left == {Left.NOT_REPAIRED: 2, Left.STILL_BAD: 1}
    assert bench.reconcile().verdict == "yes"
    [landed] = bench.warehouse.stored[A].records
    assert (landed["_kafka_offset"], landed["x"]) == (0, 1)


def test_what_cannot_be_replayed_is_counted_with_its_reason() -> None:
    bench = bad(99, 99, 99)
    register(bench, 99)
    rows = bench.warehouse.stored[ERRORS].records
    rows[0]["value"] = None
    rows[1]["value"] = b"KBQS sealed"
    report = replay(bench)
    assert (report.rows, report.left) == ({A: 1}, {Left.WITHHELD: 1, Left.SEALED: 1})
    assert f"{TP} offset 0" in report.examples[Left.WITHHELD]


def test_records_that_a_reset_has_read_again_are_left_alone() -> None:
    bench = bad(99)
    operate.propose_reset(bench.store, bench.kafka, TOPIC, give_up_pending=True).apply()
    register(bench, 99)
    bench.extract()
    bench.load()
    assert replay(bench).left == {Left.READ_AGAIN: 1}
    assert bench.warehouse.rows(A)[0].epoch == 2


def test_the_example_of_refused_rows_is_one_of_them() -> None:
    bench = bad(1, 99, 98)
    a_date = {"type": "int", "logicalType": "date"}
    bench.registry.schemas[98] = bench.registry.schemas[1].replace('"long"', json.dumps(a_date))
    report = replay(bench)
    assert report.left == {Left.STILL_BAD: 1, "d.A refuses them": 1}
    assert report.examples["d.A refuses them"].startswith(f"{TOPIC}[0] offset 2: ")


def test_a_table_that_contradicts_or_is_another_s_refuses_its_rows_alone() -> None:
    bench = bad(1, 98, 97)
    a_date = {"type": "int", "logicalType": "date"}
    bench.registry.schemas[98] = bench.registry.schemas[1].replace('"long"', json.dumps(a_date))
    bench.registry.schemas[97] = bench.registry.schemas[3]
    report = replay(bench)
    assert (report.rows, report.left) == ({B: 1}, {"d.A refuses them": 1})
    bench.registry.schemas[98] = bench.registry.schemas[1]
    bench.warehouse.stored[A].labels["kbq_staging"] = "another"
    assert replay(bench).left == {"d.A refuses them": 1}
    bench.warehouse.stored[A].labels.pop("kbq_staging")
    assert replay(bench).rows == {A: 1}


def test_another_text_under_a_known_schema_id_replays_nothing() -> None:
    bench = bad(1, 99)
    register(bench, 99)
    bench.registry.schemas[1] = bench.registry.schemas[3]
    bench.warehouse.stored[ERRORS].records[0]["value"] = value(1)
    assert replay(bench).left == {"schema_changed": 1}


def test_tables_without_error_rows_of_their_own_refuse() -> None:
    bench = bad(99)
    bench.warehouse.errors_replay = None
    with pytest.raises(Refused, match="no error rows of their own"):
        replay(bench)


def test_error_rows_are_read_page_by_page_and_those_that_stay_are_read_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replaying, "PAGE", 2)
    bench = bad(99, 99, 99, 98, 99)
    register(bench, 99)
    report = replay(bench)
    assert (report.rows, report.left) == ({A: 4}, {Left.STILL_BAD: 1})


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([1], [1]),
        ([BATCH_BYTES, 1], [1, 1]),
        ([1, BATCH_BYTES + 1, 1], [1, 1, 1]),
        ([BATCH_BYTES // 2] * 5, [2, 2, 1]),
        ([0] * (BATCH_ROWS + 1), [BATCH_ROWS, 1]),
    ],
)
def test_batches_are_bounded_in_rows_and_bytes(sizes: Iterable[int], expected: list[int]) -> None:
    known = list(sizes)
    found = list(batches(range(len(known)), known))
    assert [len(batch) for batch in found] == expected
    assert [row for batch in found for row in batch] == list(range(len(known)))
