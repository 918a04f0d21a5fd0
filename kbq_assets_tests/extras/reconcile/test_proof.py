"""Reconciliation passes only what it compared. Damaged, hidden or moved data is reported with a command."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from datetime import date

import pytest
from rich.console import Console

from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.topics.personal import Pseudonyms
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.extras.reconcile.cli import reconciliation_json, render_reconciliation
from kbq_assets.extras.reconcile.records import Reconciliation, reconcile
from kbq_assets.extras.reconcile.values import ValueReport
from kbq_assets.pipelines.operate import commands as operate
from kbq_assets.wire.privacy.sealing import SealKey, new_key_pair, parse_opening_key
from kbq_assets_tests.fakes.warehouse import Row
from kbq_assets_tests.pipelines.bench import ERRORS, SETTINGS, TOPIC, TP, A, B, Bench

SKIPPING = SETTINGS.with_options(errors="skip", tombstones="skip")


def loaded(bench: Bench | None = None) -> Bench:
    """Offsets 0 and 4 (d.A), 1 (d.B), 2 (a bad record), 3 (a tombstone): all loaded or skipped."""
    bench = bench or Bench(settings=SKIPPING)
    bench.produce(1, 3)
    bench.kafka.produce(TP, b"\x01bad")
    bench.kafka.produce(TP, None, key=b"k")
    bench.produce(1)
    bench.extract()
    bench.load()
    assert bench.reconcile().verdict == "yes"
    return bench


def staged() -> Bench:
    bench = Bench()
    bench.produce(1, 3)
    bench.extract()
    return bench


def found(bench: Bench) -> str:
    """The findings of a reconciliation that must say no, each with a command."""
    result = bench.reconcile()
    assert (result.accounted, result.verdict, result.is_whole) == (False, "no", False), result
    assert result.next_steps
    return "\n".join(result.findings)


def overwrite(bench: Bench, path: str, data: bytes) -> None:
    bench.store.swap(path, data, bench.store.get(path).generation)


def rows(bench: Bench) -> list[Row]:
    return bench.warehouse.stored[A].rows


def commit_unreadable(bench: Bench) -> str:
    overwrite(bench, f"commits/{TOPIC}.json", b"{")
    return f"the commit of {TOPIC} (shard 0) cannot be read"


def commit_missing(bench: Bench) -> str:
    del bench.store.objects[f"commits/{TOPIC}.json"]
    return f"the commit of {TOPIC} (shard 0) cannot be read"


def copied_to_another_epoch(bench: Bench) -> str:
    rows(bench).extend([row._replace(epoch=2) for row in rows(bench)])
    return "epoch 2: 2 rows, but the topic's epoch is 1"


def under_another_partition(bench: Bench) -> str:
    rows(bench)[0] = rows(bench)[0]._replace(partition=9)
    return f"{TOPIC}[9] epoch 1: 1 row of a partition that was never extracted here"


def under_another_topic(bench: Bench) -> str:
    rows(bench)[0] = rows(bench)[0]._replace(topic="other")
    return "other[0] epoch 1: 1 row of a partition that was never extracted here"


def in_another_table(bench: Bench) -> str:
    bench.warehouse.stored[B].rows.append(rows(bench).pop())
    return f"{B}: {TOPIC}[0] epoch 1: 2 rows, but 1 was loaded"


def moved_onto_a_bad_record(bench: Bench) -> str:
    rows(bench)[0] = Row(1, TOPIC, 0, 2)
    return "not in the warehouse, although such records are not skipped: offset 0"


def moved_onto_a_tombstone(bench: Bench) -> str:
    rows(bench)[-1] = Row(1, TOPIC, 0, 3)
    return "not in the warehouse, although such records are not skipped: offset 4"


DAMAGES = [
    commit_unreadable,
    commit_missing,
    copied_to_another_epoch,
    under_another_partition,
    under_another_topic,
    in_another_table,
    moved_onto_a_bad_record,
    moved_onto_a_tombstone,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_named(damage: Callable[[Bench], str]) -> None:
    bench = loaded()
    finding = damage(bench)
    assert finding in found(bench)


def test_a_staged_file_that_is_gone_is_missing_before_the_load_and_after_the_table_was_parked() -> None:
    bench = staged()
    [path] = [path for path in bench.paths("staging/") if ".d.A." in path]
    bench.store.delete(path)
    assert f"d.A: 1 staged file is gone: {path}" in found(bench)
    bench.load()
    assert f"d.A: 1 staged file is gone: {path}" in found(bench)
    bench.extract()  # moves the file's window to the backlog
    assert bench.paths("backlog/")
    assert f"d.A: 1 staged file is gone: {path}" in found(bench)


def test_a_staged_file_that_was_cut_is_named() -> None:
    bench = staged()
    path = bench.paths("staging/")[0]
    overwrite(bench, path, bench.store.get(path).data[:-1])
    assert "1 staged file has another size than staged" in found(bench)


def test_skipped_records_that_nobody_can_judge_are_unknown() -> None:
    bench = loaded()
    result = reconcile(bench.reconcile_ports(sources=[]))
    assert (result.accounted, result.verdict) == (False, "unknown")
    assert "skipped or lost" in str(result.findings)


def test_records_that_were_compacted_after_they_were_loaded_are_no_alarm() -> None:
    bench = loaded()
    bench.kafka.compact(TP, 0, 3)
    assert "in the warehouse but not on the broker: offset 0 (d.A)" in found(bench)
    [account] = compacted(bench).partitions
    assert (account.findings, account.read, account.retired, account.gaps) == ((), 3, 1, 1)
    rows(bench)[0] = Row(1, TOPIC, 0, 3)
    assert compacted(bench).verdict == "yes"  # neither record exists any more
    rows(bench).pop()
    assert compacted(bench).verdict == "no"


def compacted(bench: Bench) -> Reconciliation:
    return reconcile(bench.reconcile_ports(compacts=lambda topic: True))


def test_a_batch_that_cannot_be_read_again_leaves_its_partition_unknown_and_the_others_compared() -> None:
    bench = loaded(Bench(settings=SKIPPING, partitions=2))
    bench.produce(1, partition=1)
    bench.extract()
    bench.load()
    bench.kafka.damage(TP, 1, 3)
    result = bench.reconcile()
    assert (result.verdict, [account.accounted for account in result.partitions]) == (
        "unknown",
        [False, True],
    )
    assert "the broker's records cannot be compared" in result.findings[0]


def test_stops_and_unread_records_are_part_of_the_verdict() -> None:
    bench = loaded(Bench(settings=SKIPPING, partitions=2))
    bench.produce(1, 1, partition=1)
    bench.kafka.add_partitions(TOPIC, 3)
    bench.produce(1, partition=2)
    result = bench.reconcile()
    assert (result.verdict, result.is_whole, result.unread) == ("yes", True, 3)
    bench.produce(99)
    bench.extract()
    result = bench.reconcile()
    assert (result.verdict, result.is_whole, result.unread) == ("yes", False, 1)
    assert [stop.reason for stop in result.stops] == ["unknown_schema"]
    assert f"kbq resume --topic {TOPIC} --partition 0" in result.next_steps


def test_quarantined_rows_are_accounted_for_once_an_operator_accepts_their_loss() -> None:
    bench = staged()
    bench.warehouse.bad_paths.update(path for path in bench.paths("staging/") if ".d.A." in path)
    bench.load()
    assert f"{TOPIC}[0]: d.A: 1 row in quarantine and in no table" in found(bench)
    operate.propose_resume_table(bench.store, A).apply()
    result = bench.reconcile()
    assert (result.verdict, result.partitions[0].quarantined) == ("yes", 1)


def test_altered_values_are_found_by_a_sample_of_the_broker_s_records_and_nothing_is_left_behind() -> None:
    bench = Bench(settings=SKIPPING, keep_records=True)
    loaded(bench)
    before = set(bench.store.objects)
    same = reconcile(bench.reconcile_ports(), values="all")
    assert (same.verdict, same.values.compared, same.values.problems) == ("yes", 3, ())
    bench.warehouse.stored[A].records[0]["x"] = 7
    result = reconcile(bench.reconcile_ports(), values="sample")
    [finding] = result.findings
    assert finding == f"d.A: {TP} epoch 1: offset 0 differs from the broker's record in x"
    assert f"kbq reset --topic {TOPIC} --partition 0 --from-offset 0" in finding.next_step
    assert result.verdict == "no"
    assert reconcile(bench.reconcile_ports(), values="none").verdict == "yes"
    assert set(bench.store.objects) == before


def test_rows_of_a_topic_that_was_recreated_are_not_compared_with_the_records_of_the_new_one() -> None:
    bench = loaded(Bench(settings=SKIPPING, keep_records=True))
    for record in bench.warehouse.stored[A].records:
        record["x"] = 7
    bench.kafka.recreate_topic(TOPIC)
    bench.produce(1)
    operate.propose_reset(bench.store, bench.kafka, TOPIC).apply()
    bench.extract()
    bench.load()
    result = reconcile(bench.reconcile_ports(), values="all")
    assert (result.verdict, result.values.compared, result.findings) == ("yes", 1, ())


def test_a_topic_that_was_recreated_and_not_yet_reset_is_compared_by_number_alone() -> None:
    bench = loaded(Bench(settings=SKIPPING, keep_records=True))
    bench.kafka.recreate_topic(TOPIC)
    bench.produce(3, 3, 3, 3, 3, 3)
    result = reconcile(bench.reconcile_ports(), values="all")
    assert (result.verdict, result.is_whole, result.values.compared) == ("yes", False, 0)
    assert [stop.reason for stop in result.stops] == ["recreated"]
    rows(bench).pop()
    result = reconcile(bench.reconcile_ports(), values="none")
    assert (result.verdict, "below offset 5" in str(result.findings)) == ("no", True)


def _first_kept(table: TableReference, topics: frozenset[str]) -> date | None:
    """The table A keeps no row of the bench, whose records are of 1970-01-01."""
    return date(1970, 1, 2) if table == A else None


@pytest.mark.parametrize("retention", [0, 5])
def test_rows_that_a_table_dropped_because_of_their_age_are_accounted_for_and_others_are_not(
    retention: int,
) -> None:
    """Whether or not Kafka still has their records. Reading these again would double the rows that are left."""
    bench = loaded()
    bench.kafka.delete_before(TP, retention)
    ports = bench.reconcile_ports()
    ports = replace(ports, count=replace(ports.count, first_kept=_first_kept))
    rows(bench).pop(0)
    result = reconcile(ports)
    assert (result.verdict, "older than the table keeps rows" in str(result.notes)) == ("yes", True)
    bench.warehouse.stored[B].rows.clear()
    assert reconcile(ports).verdict == "no"


def test_what_cannot_be_compared_is_reported() -> None:
    bench = loaded(Bench(settings=SKIPPING, keep_records=True))
    bench.registry.down = True
    values = reconcile(bench.reconcile_ports(), values="sample").values
    assert (values.compared, "the registry is down" in values.problems[0]) == (0, True)
    gone = reconcile(bench.reconcile_ports([]), values="sample").values
    assert gone.problems == (f"{TOPIC}: the source list no longer selects the topic",)
    assert gone.uncompared == values.uncompared == (TOPIC,)


def compared(bench: Bench) -> ValueReport:
    """The values of all rows. None may be left out by chance."""
    return reconcile(bench.reconcile_ports(), values="all").values


def personal(**keys: bytes) -> Bench:
    """Two rows of text pseudonyms, the second under the last of the keys."""
    bench = Bench(settings=SETTINGS.with_options(pii="x:pseudonym"), keep_records=True)
    for current in keys:
        bench.pseudonyms = Pseudonyms(current, keys)
        bench.produce(4)
        bench.extract()
    bench.load()
    return bench


def test_pseudonyms_are_compared_under_today_s_key_and_under_earlier_ones() -> None:
    bench = personal(a=b"a" * 32, b=b"b" * 32)
    values = compared(bench)
    assert (values.compared, values.findings, values.problems) == (2, (), ())
    assert {row["x"][:2] for row in bench.warehouse.stored[A].records} == {"a.", "b."}
    bench.warehouse.stored[A].records[0]["x"] = "a.altered"
    [finding] = compared(bench).findings
    assert "offset 0 differs from the broker's record in x" in finding


def test_pseudonyms_are_not_compared_without_keys_and_that_is_reported() -> None:
    bench = personal(a=b"a" * 32)
    bench.pseudonyms = None
    values = compared(bench)
    assert (values.compared, values.findings, values.uncompared) == (0, (), (TOPIC,))
    assert "there is no key" in values.problems[0]


def documents(*texts: str) -> Bench:
    """A topic of JSON documents, one window each, so that the inferred schema grows in between."""
    bench = Bench(settings=TopicSettings.of(dataset="d", table="A", format="json_columns"), keep_records=True)
    for text in texts:
        bench.kafka.produce(TP, text.encode(), timestamp=1000)
        bench.extract()
        bench.load()
    return bench


def test_documents_are_compared_and_those_with_another_side_column_are_counted() -> None:
    bench = documents('{"a": 1, "b": []}', '{"a": 2}', '{"a": 3, "b": [4]}')
    values = compared(bench)
    assert (values.compared, values.findings, values.problems) == (3, (), ())
    stored = bench.warehouse.stored[A].records
    stored[0]["_kbq_rest"] = '{"b":[],"c":1}'  # as before `c` was a column
    stored[1]["a"] = 7
    values = compared(bench)
    assert f"d.A: rows of {TOPIC} with another _kbq_rest: 1 of 3;" in values.problems[0]
    assert (values.compared, values.uncompared) == (2, (TOPIC,))
    assert "offset 1 differs from the broker's record in a" in values.findings[0]


def test_error_rows_are_compared_but_for_the_message() -> None:
    bench = Bench(settings=SETTINGS)
    bench.kafka.produce(TP, b"\x01bad", key=b"k")
    bench.extract()
    bench.load()
    [row] = bench.warehouse.stored[ERRORS].records
    row["message"] = "of an older release"
    assert (compared(bench).compared, compared(bench).findings) == (1, ())
    row["value"] = b"\x01good"
    [finding] = compared(bench).findings
    assert finding == f"{ERRORS}: {TP} epoch 1: offset 0 differs from the broker's record in value"


def test_sealed_values_are_left_out_by_name() -> None:
    private, _ = new_key_pair("k")
    opened = parse_opening_key(private)
    bench = Bench(
        settings=SETTINGS.with_options(pii="x:drop", pii_errors="seal"),
        seal_key=SealKey("k", opened.keys["k"].public_key()),
    )
    bench.kafka.produce(TP, b"\x01bad", key=b"k")
    bench.extract()
    bench.load()
    result = reconcile(bench.reconcile_ports(), values="all")
    excluded = f"{ERRORS}: {TOPIC}: `value` may be sealed, each time in other bytes"
    assert (result.values.compared, result.values.findings, result.values.excluded) == (1, (), (excluded,))
    assert reconciliation_json(result)["values"] == {
        "compared": 1, "differing": [], "not_compared": [], "not_compared_topics": [],
        "not_compared_columns": [excluded],
    }  # fmt: skip
    shown = io.StringIO()
    Console(file=shown, width=200).print(render_reconciliation(result))
    assert f"columns not compared: {excluded}" in shown.getvalue()
    bench.warehouse.stored[ERRORS].records[0]["reason"] = "TOMBSTONE"
    assert "differs from the broker's record in reason" in compared(bench).findings[0]


def test_a_warehouse_that_compares_no_values_says_so_for_every_topic() -> None:
    bench = loaded()
    bench.warehouse.compares = False
    values = reconcile(bench.reconcile_ports(), values="all").values
    assert (values.compared, values.uncompared) == (0, (TOPIC,))
