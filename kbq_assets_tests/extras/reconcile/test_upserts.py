"""Reconciliation covers upsert tables: each record is a row, superseded, or deleted. Damage is reported."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import duckdb
import pytest
from rich.console import Console

from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.topics.personal import Pseudonyms
from kbq_assets.core.topics.source_list import SourceEntry
from kbq_assets.extras.reconcile.cli import render_reconciliation
from kbq_assets.extras.reconcile.newest import UpsertAccount
from kbq_assets.extras.reconcile.records import Reconciliation, reconcile
from kbq_assets.pipelines.operate.commands import propose_reset
from kbq_assets_tests.pipelines.bench import TOPIC, TP, A
from kbq_assets_tests.pipelines.statements.test_upsert_load import UpsertBench


class ReconciledBench(UpsertBench):
    """Its warehouse is compared, and changed by hand."""

    path: Path

    def settled(self, **ports: object) -> Reconciliation:
        self.warehouse = self.duckdb  # type: ignore[assignment]
        return reconcile(self.reconcile_ports([SourceEntry(TOPIC, self.settings)], **ports))

    def account(self, **ports: object) -> UpsertAccount:
        [account] = self.settled(**ports).upserts
        return account

    def by_hand(self, sql: str) -> None:
        with duckdb.connect(str(self.path)) as connection:
            connection.execute(sql)


def new_bench(path: Path, **options: object) -> ReconciledBench:
    bench = ReconciledBench(path, **options)
    bench.path = path / "w.duckdb"
    return bench


def fill(bench: ReconciledBench, schemas: list[int]) -> None:
    """Twelve records for five keys, in two partitions, a quarter of them tombstones."""
    chance = random.Random(1)
    bench.change(b"k0", 1, partition=0)
    for number in range(12):
        key = b"k%d" % chance.randrange(1, 6)
        x = None if chance.random() < 0.25 else number
        bench.change(key, x, schema=chance.choice(schemas), partition=key[-1] % 2)
    bench.cycle()


@pytest.fixture(scope="module")
def filled_bench(tmp_path_factory: pytest.TempPathFactory) -> ReconciledBench:
    """Loads cost seconds: the tests of a table share them."""
    bench = new_bench(tmp_path_factory.mktemp("filled"))
    bench.change(b"gone", None)
    fill(bench, [1, 2])
    return bench


@pytest.fixture
def filled(filled_bench: ReconciledBench) -> Iterator[ReconciledBench]:
    """The table as it was before each test."""
    before, settings = filled_bench.path.read_bytes(), filled_bench.settings
    logs = copy.deepcopy(filled_bench.kafka.topics_by_name)
    yield filled_bench
    filled_bench.kafka.topics_by_name = logs
    filled_bench.path.write_bytes(before)
    filled_bench.settings = settings


def test_the_account_is_that_of_an_independent_computation(filled: ReconciledBench) -> None:
    result, account = filled.settled(), filled.account()
    living = len(filled.expected())
    deleted = len(filled.last) - living
    assert (result.verdict, account.findings) == ("yes", ())
    assert (account.rows, account.superseded, account.deleted) == (living, 14 - len(filled.last), deleted)
    assert deleted
    assert result.topics == [TOPIC]


def test_a_table_may_mark_deletions_and_records_that_wait_are_not_missing(
    tmp_path: Path,
) -> None:
    bench = new_bench(tmp_path, deletes="mark")
    fill(bench, [1])
    account = bench.account()
    assert (account.rows, account.superseded, account.findings) == (len(bench.last), 13 - len(bench.last), ())
    assert account.deleted
    bench.change(b"k0", None)
    bench.change(b"new", 7)
    bench.extract()
    assert (bench.settled().verdict, bench.account().rows) == ("yes", account.rows)


DELETED = "DELETE FROM d.A WHERE _kafka_key = 'k0'"
DOUBLED = "INSERT INTO d.A SELECT * FROM d.A WHERE _kafka_key = 'k0'"
UNKNOWN = "UPDATE d.A SET _kafka_offset = 9999 WHERE _kafka_key = 'k0'"
STRANGE = "UPDATE d.A SET _kafka_partition = 77 WHERE _kafka_key = 'k0'"
FORGOTTEN = "DELETE FROM d._kbq_deleted_A"


@pytest.mark.parametrize(
    ("sql", "named"),
    [
        (DELETED, f"keys without their newest row: {TOPIC}[0] offset 1"),
        (DOUBLED, f"doubled rows: {TOPIC}[0] offset 1 (2 rows)"),
        (UNKNOWN, f"rows without an applied record: {TOPIC}[0] offset 9999"),
        (STRANGE, f"rows without an applied record: 1 row of {TOPIC}[77] epoch 1"),
        (FORGOTTEN, "deletions that are not stored: "),
    ],
)
def test_what_was_done_by_hand_is_named(filled: ReconciledBench, sql: str, named: str) -> None:
    filled.by_hand(sql)
    result = filled.settled()
    assert result.verdict == "no"
    assert any(named in finding for finding in result.findings), result.findings


def test_a_row_set_to_an_older_version_is_named_with_the_newest(filled: ReconciledBench) -> None:
    filled.by_hand("UPDATE d.A SET _kafka_offset = 2 WHERE _kafka_key = 'k2'")
    [older] = [each for each in filled.settled().findings if "older than their key's newest record" in each]
    assert f"{TOPIC}[0] offset 2 (newest: {TOPIC}[0] offset 8)" in older
    assert f"kbq reset --topic {TOPIC} --partition 0 --from-offset 2 " in older.next_step


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"load": "append", "key": ""}, "load=append does not keep only the newest record"),
        ({"load": "scd2"}, "load=scd2 does not keep only the newest record"),
        ({"pii": "x:keep,_key:pseudonym"}, "there is no key"),
    ],
)
def test_what_cannot_be_compared_is_reported(
    filled: ReconciledBench, options: dict[str, str], why: str
) -> None:
    filled.settings = filled.settings.with_options(**options)
    result = filled.settled()
    assert result.verdict == "unknown"
    [finding] = [str(each) for each in result.findings]
    assert finding.startswith(f"{A}: not compared: ") and why in finding
    shown = StringIO()
    Console(file=shown, width=300).print(render_reconciliation(result))
    assert why in shown.getvalue() and "records superseded" not in shown.getvalue()


def hidden(path: Path, pii: str, **options: object) -> ReconciledBench:
    """A table of pseudonyms, under the key `a`."""
    bench = new_bench(path, pii=pii, **options)
    bench.pseudonyms = Pseudonyms("a", {"a": b"a" * 32, "b": b"b" * 32})
    fill(bench, [1, 2])
    return bench


@pytest.mark.parametrize("pii", ["x:pseudonym,_key:keep,y:keep", "x:keep,_key:pseudonym,y:keep"])
def test_pseudonyms_under_one_key_are_compared(tmp_path: Path, pii: str) -> None:
    bench = hidden(tmp_path, pii)
    account, living = bench.account(), len(bench.expected())
    assert (bench.settled().verdict, account.findings) == ("yes", ())
    assert (account.rows, account.deleted) == (living, len(bench.last) - living)
    bench.pseudonyms = Pseudonyms("b", bench.pseudonyms.keys)  # type: ignore[union-attr]
    assert bench.settled().verdict == "yes"  # the rows have the key of before
    bench.by_hand("DELETE FROM d.A WHERE _kafka_offset = (SELECT MAX(_kafka_offset) FROM d.A)")
    assert "keys without their newest row" in str(bench.account().findings)
    assert bench.settled().verdict == "no"


@pytest.mark.parametrize("deletes", ["remove", pytest.param("mark", marks=pytest.mark.slow)])
def test_keys_whose_pseudonyms_changed_are_compared_as_far_as_that_says_something(
    tmp_path: Path, deletes: str
) -> None:
    bench = hidden(tmp_path, "x:keep,_key:pseudonym,y:keep", deletes=deletes)
    bench.pseudonyms = Pseudonyms("b", bench.pseudonyms.keys)  # type: ignore[union-attr]
    bench.change(b"k0", 8)
    bench.cycle()
    assert bench.settled().verdict == "unknown"
    assert [str(each) for each in bench.account().findings] == [
        f"{A}: several rows of a key, because pseudonyms changed: rows that are older than their key's newest record:"
        f" {TOPIC}[0] offset 0 (newest: {TOPIC}[0] offset {bench.kafka.view('t').offsets([TP])[TP].latest - 1})"
    ]
    bench.by_hand("DELETE FROM d.A WHERE x = 8")
    assert bench.settled().verdict == "no"


def test_a_row_that_may_be_too_old_for_the_table_leaves_the_verdict_unknown(filled: ReconciledBench) -> None:
    """The records are of 1970."""
    filled.by_hand(DELETED)
    filled.settings = filled.settings.with_options(partition_expiry_days=30)
    result = filled.settled()
    why = "keys without their newest row, which may be older than partition_expiry_days"
    assert (result.verdict, list(result.findings)) == ("unknown", [f"{A}: {why}: {TOPIC}[0] offset 1"])


def test_rows_of_a_former_log_are_not_taken_for_doubled_ones(tmp_path: Path) -> None:
    """A recreated topic has other keys under the same offsets."""
    bench = new_bench(tmp_path)
    bench.change(b"k1", 1)
    bench.change(b"k2", 2)
    bench.cycle()
    bench.kafka.recreate_topic(TOPIC, 2)
    bench.change(b"k7", 7)
    bench.extract()
    propose_reset(bench.store, bench.kafka, TOPIC).apply()
    bench.cycle()
    result = bench.settled()
    assert result.verdict == "unknown"
    assert list(result.findings) == [f"{A}: Kafka no longer has the records of 2 rows"]


def test_rows_whose_records_kafka_lost_leave_the_verdict_unknown(filled: ReconciledBench) -> None:
    filled.kafka.delete_before(TopicPartition(TOPIC, 0), 2)
    result = filled.settled()
    assert result.verdict == "unknown"
    assert f"{A}: Kafka no longer has the records of 1 row" in result.findings
    filled.by_hand(
        DOUBLED.replace("k0", "k1") + ";" + DOUBLED.replace("k0", "k2") + ";" + DOUBLED.replace("k0", "k3")
    )
    assert filled.settled().verdict == "no"
