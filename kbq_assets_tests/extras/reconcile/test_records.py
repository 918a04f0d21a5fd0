"""Reconciliation reports every row that is missing, duplicated or unknown, and nothing else affects it."""

from __future__ import annotations

from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.extras.reconcile.account import Expected
from kbq_assets.extras.reconcile.records import Reconciliation, reconcile
from kbq_assets_tests.fakes.warehouse import Row
from kbq_assets_tests.pipelines.bench import SETTINGS, TOPIC, TP, A, B, Bench

LOG: Expected = {0: "row:d.A", 1: "row:d.B", 2: "error", 3: "row:d.A"}


def _loaded() -> Bench:
    bench = Bench()
    bench.produce(1, 3)
    bench.kafka.produce(TP, b"\x01bad")
    bench.kafka.gap(TP, 2)
    bench.produce(1)
    bench.extract()
    bench.load()
    return bench


def _with_log(bench: Bench, log: Expected) -> Reconciliation:
    def expected(tp: TopicPartition) -> Expected | None:
        return log

    return reconcile(bench.reconcile_ports(expected=expected))


def _rows(bench: Bench, table: TableReference) -> list[Row]:
    return bench.warehouse.stored[table].rows


def test_everything_loaded_is_accounted_for() -> None:
    result = _loaded().reconcile()
    [account] = result.partitions
    assert result.accounted
    assert (account.read, account.gaps, account.rows, account.errors) == (4, 2, 3, 1)
    assert result.totals() == {"produced": 4, "staged": 3, "loaded": 3, "errors": 1, "skipped": 0}
    assert result.totals(TOPIC) == result.totals()


def test_rows_not_loaded_yet_are_accounted_for_as_pending() -> None:
    bench = Bench()
    bench.produce(1, 1)
    bench.extract()
    assert bench.reconcile().partitions[0].pending == 2
    assert bench.reconcile().accounted


def test_a_row_deleted_by_hand_is_named() -> None:
    bench = _loaded()
    _rows(bench, A).pop()
    result = bench.reconcile()
    assert not result.accounted
    assert "offset 5" in result.partitions[0].findings[0]


def test_a_row_doubled_by_hand_is_named_with_its_table() -> None:
    bench = _loaded()
    _rows(bench, B).append(_rows(bench, B)[0])
    assert "doubled: offset 1 (d.B and d.B)" in bench.reconcile().partitions[0].findings[0]


def test_a_row_in_two_tables_is_doubled() -> None:
    bench = _loaded()
    _rows(bench, B).append(_rows(bench, A)[0])
    assert "doubled: offset 0 (d.A and d.B)" in bench.reconcile().partitions[0].findings[0]


def test_a_row_that_the_broker_does_not_know_is_named() -> None:
    bench = _loaded()
    _rows(bench, A).append(Row(1, TOPIC, 0, 3))
    assert "not on the broker: offset 3 (d.A)" in bench.reconcile().partitions[0].findings[0]


def test_skipped_records_are_explained_and_a_missing_row_among_them_is_not() -> None:
    bench = Bench(settings=SETTINGS.with_options(errors="skip"))
    bench.produce(1, 1)
    bench.kafka.produce(TP, b"\x01bad")
    bench.extract()
    bench.load()
    assert bench.reconcile().accounted
    _rows(bench, A).pop(0)
    assert "offset 0, 2" in bench.reconcile().partitions[0].findings[0]


def test_what_retention_removed_since_is_compared_by_number() -> None:
    bench = _loaded()
    bench.kafka.delete_before(TP, 1)
    assert bench.reconcile().accounted
    _rows(bench, A).pop(0)
    assert ": 1 record below offset 1" in bench.reconcile().partitions[0].findings[0]


def test_the_producers_log_is_compared_row_by_row() -> None:
    bench = Bench()
    bench.produce(1, 3)
    bench.kafka.produce(TP, b"\x01bad")
    bench.produce(1)
    bench.extract()
    bench.load()
    assert _with_log(bench, LOG).accounted
    assert "expected d.B" in str(_with_log(bench, {**LOG, 0: "row:d.B"}).partitions[0].findings)
    assert "not in the producers' log: offset 3" in str(
        _with_log(bench, {o: e for o, e in LOG.items() if o != 3}).partitions[0].findings
    )
    _rows(bench, A).pop(0)
    assert "missing: offset 0 (expected d.A)" in str(_with_log(bench, LOG).partitions[0].findings)


def test_rows_of_an_older_epoch_do_not_count() -> None:
    bench = _loaded()
    bench.extract()
    from kbq_assets.pipelines.operate.commands import propose_reset

    propose_reset(bench.store, bench.kafka, TOPIC).apply()
    bench.extract()
    bench.load()
    assert bench.reconcile().accounted
    assert bench.reconcile().totals()["loaded"] == 3


def test_a_partition_goes_on_through_a_reset_of_another() -> None:
    from kbq_assets.pipelines.operate.commands import propose_reset

    bench = Bench(partitions=2)
    for _ in range(2):
        bench.produce(1, 3)
        bench.produce(1, partition=1)
        bench.extract()
        bench.load()
        propose_reset(bench.store, bench.kafka, TOPIC, partition=1).apply()
    bench.produce(1)
    bench.extract()
    bench.load()
    assert [(p.read, p.rows, p.findings) for p in bench.reconcile().partitions] == [(5, 5, ()), (2, 2, ())]
    _rows(bench, A).append(Row(3, TOPIC, 0, 0))
    assert "doubled: offset 0 (d.A and d.A)" in bench.reconcile().partitions[0].findings[0]


def test_what_was_quarantined_before_a_reset_explains_nothing_after_it() -> None:
    from kbq_assets.pipelines.operate.commands import propose_reset

    bench = Bench()
    bench.produce(1)
    bench.extract()
    bench.warehouse.bad_paths.update(bench.paths("staging/"))
    bench.load()
    assert [(p.quarantined, p.findings) for p in bench.reconcile().partitions] == [(1, ())]
    propose_reset(bench.store, bench.kafka, TOPIC).apply()
    bench.extract()
    bench.load()
    assert bench.reconcile().accounted
    _rows(bench, A).clear()
    assert "offset 0" in bench.reconcile().partitions[0].findings[0]
