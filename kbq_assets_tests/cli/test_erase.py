"""`kbq erase`: a person's records are gone, everybody else's stay, and no later step brings the person back."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable
from pathlib import Path

import fastavro
import pytest

from kbq_assets.core.config.parts import PiiSettings
from kbq_assets.core.extraction import publishing
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.pipelines.erasure.erasures import Erasures
from kbq_assets_tests.cli.conftest import Shell, cycle
from kbq_assets_tests.fakes.faults import Call, Outcome
from kbq_assets_tests.fakes.platform import (
    GOOD,
    POISON,
    SCHEMAS,
    SOURCES,
    TOPIC,
    UNKNOWN_SCHEMA,
    FakePlatform,
)

ORDERS, ERRORS = (TableReference("shop", name) for name in ("orders", "kbq_errors"))
PERSON = "anna@example.com"


def named(text: str) -> bytes:
    """A good record of schema 2 with a name."""
    return struct.pack(">bI", 0, 2) + b"\x02" + bytes([2 * len(text)]) + text.encode()


@pytest.fixture
def world(tmp_path: Path) -> FakePlatform:
    """Anna's records are 0:1, 0:3 (a bad one) and 1:0; others are of Bert, or have no key."""
    made = FakePlatform(tmp_path, keep_records=True, sources=SOURCES.strip() + " error_share=1\n")
    for partition, key, value in (
        (0, b"bert", GOOD), (0, PERSON.encode(), named(PERSON)), (0, None, GOOD),
        (0, PERSON.encode(), POISON), (0, b"bert", POISON), (1, PERSON.encode(), GOOD), (1, b"bert", GOOD),
    ):  # fmt: skip
        made.kafka.produce(TopicPartition(TOPIC, partition), value, key=key)
    return made


@pytest.fixture
def run(world: FakePlatform) -> Shell:
    shell = Shell(world)
    cycle(shell)
    return shell


def offsets(world: FakePlatform, table: TableReference) -> list[tuple[int, int, int]]:
    return sorted((row.epoch, row.partition, row.offset) for row in world.warehouse.rows(table))


def start(run: Shell, *options: str) -> str:
    return run.done("erase", "start", TOPIC, *(options or ("--key", PERSON)), "--yes")


def is_whole(run: Shell) -> None:
    """Every record is accounted for, by count and one by one, and no check fails."""
    run.done("reconcile")
    run.done("reconcile", "--counts")
    run.done("check")


def test_a_plan_names_what_an_erasure_deletes_and_changes_nothing(
    run: Shell, unchanged: Callable[[], bool]
) -> None:
    shown = run.done("erase", "plan", TOPIC, "--key", PERSON)
    assert "erases 3 records" in shown and f"{TOPIC}[0]: 2 records below 5" in shown
    assert "shop.orders: 2 rows" in shown and "shop.kbq_errors: 1 row " in shown
    assert "beyond reach: Kafka" in shown and PERSON not in shown
    assert unchanged()


def test_rows_and_error_rows_of_a_person_are_deleted_and_all_others_stay(
    world: FakePlatform, run: Shell
) -> None:
    before = [record for record in world.warehouse.records(ORDERS) if record["_kafka_offset"] in (2,)]
    shown = start(run)
    assert (offsets(world, ORDERS), offsets(world, ERRORS)) == (
        [(1, 0, 0), (1, 0, 2), (1, 1, 1)],
        [(1, 0, 4)],
    )
    assert before[0] in world.warehouse.records(ORDERS)
    assert "done, 3 records" in shown and "3 erased" not in shown
    is_whole(run)
    totals = run.json("reconcile", "--counts")["totals"]
    assert (totals["erased"], totals["committed"], totals["skipped"]) == (3, 4, 0)
    assert "2 erased" in run.done("reconcile")
    assert "everything is deleted" in run.done("erase", "verify", "1")


def test_nothing_that_kbq_stores_or_prints_has_a_personal_value(world: FakePlatform, run: Shell) -> None:
    shown = start(run) + run.done("erase", "list") + run.done("erase", "status", "1")
    shown += run.done("erase", "list", "--json") + run.done("erase", "status", "1", "--json")
    assert PERSON not in shown
    stored = {path: data for path, data in world.objects().items() if PERSON.encode() in path.encode() + data}
    assert stored == {}
    [entry] = run.json("erase", "list")
    assert (entry["records"], entry["phase"], entry["until"]) == (3, "done", {"0": 5, "1": 2})


def test_a_person_who_comes_back_is_kept(world: FakePlatform, run: Shell) -> None:
    start(run)
    world.kafka.produce(TopicPartition(TOPIC, 0), named(PERSON), key=PERSON.encode())
    cycle(run)
    assert (1, 0, 5) in offsets(world, ORDERS)
    is_whole(run)
    # A second erasure forgets the new record too, and counts both.
    start(run)
    assert offsets(world, ORDERS) == [(1, 0, 0), (1, 0, 2), (1, 1, 1)]
    assert run.json("reconcile", "--counts")["totals"]["erased"] == 4
    is_whole(run)


def test_neither_a_reset_nor_a_replay_brings_a_person_back(world: FakePlatform, run: Shell) -> None:
    start(run)
    run.done("replay", "start", TOPIC, "--from", "earliest", "--yes")
    assert "3 skipped" not in run.done("replay", "status", "1")
    run.done("replay", "promote", "1", "--yes")
    run.done("replay", "accept", "1", "--yes")
    assert offsets(world, ORDERS) == [(1, 0, 0), (1, 0, 2), (1, 1, 1)]
    is_whole(run)
    run.done("reset", "--topic", TOPIC, "--at", "earliest", "--yes")
    cycle(run)
    assert {place for place in offsets(world, ORDERS) if place[0] == 2} == {(2, 0, 0), (2, 0, 2), (2, 1, 1)}
    assert {place for place in offsets(world, ERRORS) if place[0] == 2} == {(2, 0, 4)}
    is_whole(run)
    assert run.json("reconcile", "--counts")["totals"]["erased"] == 3


def test_a_reset_to_before_the_first_extracted_record_brings_no_person_back(
    world: FakePlatform, run: Shell
) -> None:
    """Kafka has records before the position where the partition began; a batch among them cannot be read."""
    run.done("reset", "--topic", TOPIC, "--at", "latest", "--yes")
    cycle(run)
    world.kafka.damage(TopicPartition(TOPIC, 0), 2, 3)
    by_column = run.done("erase", "plan", TOPIC, "--where", f"n={PERSON}")
    assert f"{TOPIC}[1]: records before 2 were not searched by column" in by_column
    assert f"not searched: {TOPIC}[0]: the records [2, 3) cannot be read by key" in start(run)
    world.kafka.repair(TopicPartition(TOPIC, 0))
    run.done("reset", "--topic", TOPIC, "--at", "earliest", "--yes")
    cycle(run)
    read = [place for table in (ORDERS, ERRORS) for place in offsets(world, table) if place[0] == 3]
    assert sorted(read) == [(3, 0, 0), (3, 0, 2), (3, 0, 4), (3, 1, 1)]


def test_records_of_partitions_that_were_never_extracted_are_erased(world: FakePlatform, run: Shell) -> None:
    world.kafka.add_partitions(TOPIC, 65)
    for partition in (2, 64):
        for key in (PERSON, "bert"):
            world.kafka.produce(TopicPartition(TOPIC, partition), named(key), key=key.encode())
    assert "done, 5 records" in start(run)
    cycle(run)
    assert [place for place in offsets(world, ORDERS) if place[1] > 1] == [(1, 2, 1), (1, 64, 1)]
    is_whole(run)


def test_the_variants_of_a_column_are_searched(world: FakePlatform, run: Shell) -> None:
    """A schema with a contradicting type was staged under another column."""
    sources = world.source_topics.read_text().strip()
    world.source_topics.write_text(f"{sources} on_incompatible=variant_column\n")
    world.registry.schemas[3] = SCHEMAS[1].replace("long", "string")
    for text in ("1", "2"):
        value = struct.pack(">bI", 0, 3) + b"\x02" + text.encode()
        world.kafka.produce(TopicPartition(TOPIC, 1), value)
    cycle(run)
    assert "x__string" in world.warehouse.records(ORDERS)[-1]
    shown = run.done("erase", "plan", TOPIC, "--where", "x=2")
    assert "erases 1 record," in shown and "no column x__string" not in shown
    start(run, "--where", "x=2")
    assert (1, 1, 3) not in offsets(world, ORDERS) and (1, 1, 2) in offsets(world, ORDERS)


def test_tables_of_other_topics_are_not_named_as_not_searched(world: FakePlatform, run: Shell) -> None:
    world.source_topics.write_text(f"{world.source_topics.read_text()}\nother dataset=shop table=others\n")
    other = TopicPartition("other", 0)
    world.kafka.create_topic("other", 1)
    world.kafka.produce(other, named(PERSON))
    cycle(run)
    shown = run.done("erase", "plan", "other", "--where", f"n={PERSON}")
    assert "shop.orders" not in shown and "shop.kbq_errors" not in shown
    refused = run("erase", "plan", "other", "--where", f"nothing={PERSON}")
    assert "its tables: shop.others\n" in refused.output


def test_rows_are_found_by_a_column_and_error_rows_are_named_as_not_searched(
    world: FakePlatform, run: Shell
) -> None:
    shown = run.done("erase", "plan", TOPIC, "--where", f"n={PERSON}")
    assert "erases 1 record," in shown and "not searched: shop.kbq_errors has no column n" in shown
    start(run, "--where", f"n={PERSON}")
    assert (1, 0, 1) not in offsets(world, ORDERS) and len(offsets(world, ORDERS)) == 4
    assert len(offsets(world, ERRORS)) == 2
    is_whole(run)
    refused = run("erase", "plan", TOPIC, "--where", f"nothing={PERSON}")
    assert refused.exit_code == 3 and PERSON not in refused.output


def test_a_column_of_files_that_wait_is_searched(world: FakePlatform, run: Shell) -> None:
    """In the backlog of a parked table, whose rows no search of the table sees."""
    run.done("park", "--table", str(ORDERS), "--yes")
    with_canary(world)
    for _ in range(2):
        run.done("extract")
    start(run, "--where", f"n={CANARY}")
    assert CANARY not in staged(world) and "bert" in staged(world)
    run.done("resume", "--table", str(ORDERS), "--yes")
    cycle(run)
    assert (1, 1, 3) not in offsets(world, ORDERS) and (1, 1, 4) in offsets(world, ORDERS)
    is_whole(run)


def test_records_are_erased_by_the_positions_that_other_commands_print(
    world: FakePlatform, run: Shell, tmp_path: Path
) -> None:
    """Such as error rows, which have no columns."""
    listed = tmp_path / "errors.json"
    listed.write_text(run.done("errors", "list", "--topic", TOPIC, "--json"))
    assert "erases 2 records" in run.done("erase", "plan", TOPIC, "--positions-file", str(listed))
    shown = run("erase", "start", TOPIC, "--positions-file", "-", "--yes", answer="0 3\n")
    assert shown.exit_code == 0 and "done, 1 record\n" in shown.output
    assert offsets(world, ERRORS) == [(1, 0, 4)] and len(offsets(world, ORDERS)) == 5
    is_whole(run)
    for positions, said in (("0 5", "no record 5"), ("7 0", "no partition 7"), ("0 1 2", "in epoch 2")):
        refused = run("erase", "plan", TOPIC, "--positions-file", "-", answer=positions)
        assert refused.exit_code == 3 and said in refused.output


def test_a_row_of_a_former_epoch_is_erased_by_its_position(world: FakePlatform, run: Shell) -> None:
    run.done("reset", "--topic", TOPIC, "--at", "earliest", "--yes")
    cycle(run)
    before = offsets(world, ORDERS)
    shown = run("erase", "start", TOPIC, "--positions-file", "-", "--yes", answer="0 1 1\n")
    assert shown.exit_code == 0, shown.output
    assert offsets(world, ORDERS) == [place for place in before if place != (1, 0, 1)]


def test_sealed_error_rows_are_erased_by_key(world: FakePlatform, tmp_path: Path) -> None:
    key = tmp_path / "seal.key"
    run = Shell(world)
    run.done("pii", "keygen", str(key))
    world.settings = dataclasses.replace(world.settings, pii=PiiSettings(seal_key=f"file:{key}.pub"))
    world.source_topics.write_text(world.source_topics.read_text().strip() + " pii=n:drop pii_errors=seal\n")
    cycle(run)
    opened = run.done("pii", "open", "--key", str(key), "--topic", TOPIC)
    assert opened.count(PERSON) == 1
    assert PERSON not in repr(world.warehouse.records(ERRORS))
    # Nobody but the owner of the private key finds such a row by its contents; its position is enough.
    mine = "".join(line for line in opened.splitlines(True) if PERSON in line)
    planned = run("erase", "plan", TOPIC, "--positions-file", "-", answer=mine)
    assert "erases 1 record," in planned.output and PERSON not in planned.output
    start(run)
    assert offsets(world, ERRORS) == [(1, 0, 4)]
    assert PERSON not in run.done("pii", "open", "--key", str(key), "--topic", TOPIC)
    is_whole(run)


def test_an_erased_record_is_named_as_such(run: Shell) -> None:
    start(run)
    assert "erased: it is never read again" in run.done("where", TOPIC, "0", "1")
    assert "erased" not in run.done("where", TOPIC, "0", "2")


def test_a_customer_who_came_back_in_another_partition_is_not_erased(world: FakePlatform, run: Shell) -> None:
    """The entity topic got more partitions, so the key moved."""
    world.kafka.create_topic("shop.customers", 3)
    for partition, key, value, time in (
        (1, PERSON, None, 1000), (0, PERSON, b"again", 2000),
        (0, "bert", b"here", 1000), (0, "bert", b"here", 3000), (2, "bert", b"late", 5000), (2, "bert", None, 4000),
    ):  # fmt: skip
        at = TopicPartition("shop.customers", partition)
        world.kafka.produce(at, value, key=key.encode(), timestamp=time)
    shown = run.done("erase", "plan", TOPIC, "--tombstones", "shop.customers")
    assert "erases 3 records" in shown and f"{TOPIC}[1]: 1 record below 2" in shown
    start(run, "--tombstones", "shop.customers")
    assert (1, 0, 1) in offsets(world, ORDERS) and (1, 0, 0) not in offsets(world, ORDERS)
    world.kafka.leaderless.add(TopicPartition("shop.customers", 2))
    unknown = run("erase", "plan", TOPIC, "--tombstones", "shop.customers")
    assert (unknown.exit_code, "no offsets for shop.customers[2]" in unknown.output) == (75, True)


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_batch_that_waits_and_cannot_be_read_does_not_hold_up_an_erasure(
    world: FakePlatform, run: Shell, is_stopped: bool
) -> None:
    """Only if a partition has stopped there can somebody give its batch up, and with it the records of others."""
    tp = TopicPartition(TOPIC, 0)
    for key in (b"bert", PERSON.encode(), PERSON.encode()):
        world.kafka.produce(tp, GOOD, key=key)
    world.kafka.damage(tp, 5, 7)
    assert not is_stopped or run("extract").exit_code == 1
    shown = start(run)
    assert f"not searched: {TOPIC}[0]: the records [5, 7) cannot be read by key" in shown
    assert f"{TOPIC}[0]: 3 records below 8" in shown
    world.kafka.repair(tp)
    run("resume", "--topic", TOPIC, "--yes")
    cycle(run)
    assert (1, 0, 6) in offsets(world, ORDERS) and (1, 0, 7) not in offsets(world, ORDERS)
    start(run)
    assert offsets(world, ORDERS) == [(1, 0, 0), (1, 0, 2), (1, 0, 5), (1, 1, 1)]
    is_whole(run)


def test_tombstones_of_a_topic_that_cannot_be_read_name_nobody(world: FakePlatform, run: Shell) -> None:
    """The batch may have a later record of a person who came back."""
    customers = TopicPartition("shop.customers", 0)
    world.kafka.create_topic(customers.topic, 1)
    for value in (None, GOOD):
        world.kafka.produce(customers, value, key=PERSON.encode())
    world.kafka.damage(customers, 1, 2)
    refused = run("erase", "plan", TOPIC, "--tombstones", customers.topic)
    assert refused.exit_code == 3 and "next: give the keys with --key-file" in refused.output


def test_tombstones_of_an_entity_topic_name_who_is_erased(world: FakePlatform, run: Shell) -> None:
    world.kafka.create_topic("shop.customers", 2)
    for partition, key, value in (
        (0, b"bert", None), (0, b"bert", GOOD), (1, PERSON.encode(), GOOD), (1, PERSON.encode(), None), (1, None, None),
    ):  # fmt: skip
        world.kafka.produce(TopicPartition("shop.customers", partition), value, key=key)
    shown = start(run, "--tombstones", "shop.customers")
    assert "done, 3 records" in shown and PERSON not in shown
    assert offsets(world, ORDERS) == [(1, 0, 0), (1, 0, 2), (1, 1, 1)]
    is_whole(run)
    again = run("erase", "start", TOPIC, "--tombstones", "shop.customers", "--yes")
    assert again.exit_code == 3 and "all are erased" in again.output
    assert run("erase", "plan", TOPIC, "--tombstones", "shop.nothing").exit_code == 1


PII = " pii=n:pseudonym:customer,_key:pseudonym:customer keys=true headers=false"


@pytest.fixture
def hidden(world: FakePlatform, tmp_path: Path) -> Shell:
    """A topic whose names are pseudonyms. Anna has 0:1 under the key of 2025, and 1:2 under that of 2026; her key is in
    three records more."""
    world.source_topics.write_text(world.source_topics.read_text().strip() + PII)
    run, file = Shell(world), tmp_path / "keys.json"
    run.done("pii", "new-key", str(file), "--id", "2025")
    world.settings = dataclasses.replace(world.settings, pii=PiiSettings(f"file:{file}"))
    cycle(run)
    run.done("pii", "new-key", str(file), "--id", "2026")
    world.kafka.produce(TopicPartition(TOPIC, 1), named(PERSON), key=b"bert")
    cycle(run)
    return run


@pytest.mark.parametrize(
    ("column", "gone"), [("n", [(1, 0, 1), (1, 1, 2)]), ("_kafka_key", [(1, 0, 1), (1, 1, 0)])]
)
def test_rows_are_found_by_the_pseudonyms_of_a_value_under_every_key(
    world: FakePlatform, hidden: Shell, column: str, gone: list[tuple[int, int, int]]
) -> None:
    before = offsets(world, ORDERS)
    assert PERSON not in repr(world.warehouse.records(ORDERS))
    chosen = hidden("erase", "plan", TOPIC, "--pseudonym-of-file", "-", answer=f"{column}={PERSON}\n")
    assert "erases 2 records" in chosen.output
    assert chosen.output.count(f"shop.kbq_errors has no column {column}") <= 1
    shown = start(hidden, "--pseudonym-of", f"{column}={PERSON}")
    assert offsets(world, ORDERS) == [place for place in before if place not in gone]
    is_whole(hidden)
    assert "everything is deleted" in hidden.done("erase", "verify", "1")
    stored = {path: data for path, data in world.objects().items() if path.startswith("erasures/")}
    for text in (PERSON, "2025.", "2026."):
        assert text not in shown + chosen.output + repr(stored)


@pytest.mark.parametrize(
    ("given", "prepare", "said"),
    [
        (f"x={PERSON}", lambda world: None, "columns with pseudonyms: n, _key"),
        (PERSON, lambda world: None, "--pseudonym-of take"),
        (
            f"n={PERSON}",
            lambda world: setattr(
                world, "settings", dataclasses.replace(world.settings, pii=PiiSettings(""))
            ),
            "set KBQ_PII_KEYS",
        ),
        (f"n={PERSON}", lambda world: world.source_topics.write_text("others"), "does not select"),
    ],
)
def test_without_a_way_to_a_pseudonym_nothing_is_searched(
    world: FakePlatform, hidden: Shell, given: str, prepare: Callable[[FakePlatform], object], said: str
) -> None:
    prepare(world)
    refused = hidden("erase", "start", TOPIC, "--pseudonym-of", given, "--yes")
    assert refused.exit_code == 1 and said in refused.output and PERSON not in refused.output
    assert hidden.json("erase", "list") == []


def test_values_come_from_a_file_or_from_standard_input(
    world: FakePlatform, run: Shell, tmp_path: Path
) -> None:
    (tmp_path / "keys").write_text(f"{PERSON}\n\nbert\n")
    assert "erases 6 records" in run.done("erase", "plan", TOPIC, "--key-file", str(tmp_path / "keys"))
    piped = run("erase", "plan", TOPIC, "--where-file", "-", answer=f"n={PERSON}\n")
    assert "erases 1 record," in piped.output
    missing = run("erase", "plan", TOPIC, "--key-file", str(tmp_path / "none"))
    assert missing.exit_code == 1 and "cannot be read" in missing.output
    assert run("erase", "plan", TOPIC).exit_code == 1


CANARY = "canary-9d2e@example.com"


def with_canary(world: FakePlatform) -> None:
    """Three more records. The middle one belongs to a person whose value no other record has."""
    for key in ("bert", CANARY, "bert"):
        world.kafka.produce(TopicPartition(TOPIC, 1), named(key), key=key.encode())


def staged(world: FakePlatform) -> str:
    """Everything that files of the store say, decompressed by another library."""
    paths = [entry.path for entry in world.store.list("") if entry.path.endswith(".avro")]
    return repr([list(fastavro.reader(world.store.open_read(path))) for path in paths])


def test_staged_files_are_written_again_before_they_are_loaded(world: FakePlatform, run: Shell) -> None:
    with_canary(world)
    run.done("extract")
    assert CANARY in staged(world)
    assert "erases 1 record," in run.done("erase", "plan", TOPIC, "--where", f"n={CANARY}")
    assert "staged: 1 file is rewritten without 1 row\n" in run.done("erase", "plan", TOPIC, "--key", CANARY)
    assert "1 file rewritten" in start(run, "--key", CANARY)
    assert CANARY not in staged(world) and "bert" in staged(world)
    is_whole(run)
    assert run.json("reconcile", "--counts")["totals"]["erased"] == 1
    run.done("load")
    assert [place for place in offsets(world, ORDERS) if place[1] == 1] == [
        (1, 1, 0),
        (1, 1, 1),
        (1, 1, 2),
        (1, 1, 4),
    ]
    is_whole(run)


def test_files_in_the_backlog_of_a_parked_table_are_written_again(world: FakePlatform, run: Shell) -> None:
    run.done("park", "--table", str(ORDERS), "--yes")
    with_canary(world)
    run.done("extract")
    run.done("extract")
    assert [path for path in world.objects() if path.startswith("backlog/")]
    start(run, "--key", CANARY)
    assert CANARY not in staged(world)
    is_whole_but_parked(run)
    run.done("resume", "--table", str(ORDERS), "--yes")
    run.done("load")
    assert (1, 1, 3) not in offsets(world, ORDERS) and (1, 1, 4) in offsets(world, ORDERS)
    is_whole(run)


def is_whole_but_parked(run: Shell) -> None:
    run.done("reconcile")
    run.done("reconcile", "--counts")


def test_a_file_in_quarantine_is_written_again_and_comes_back(world: FakePlatform, run: Shell) -> None:
    with_canary(world)
    run.done("extract")
    [path] = [path for path in world.objects() if path.startswith("staging/")]
    world.warehouse.bad_paths.add(path)
    run("load")
    assert [path for path in world.objects() if path.startswith("quarantine/")]
    start(run, "--key", CANARY)
    assert CANARY not in staged(world)
    run.done("quarantine", "retry", "--table", str(ORDERS), "--yes")
    run.done("load")
    assert (1, 1, 3) not in offsets(world, ORDERS) and (1, 1, 4) in offsets(world, ORDERS)
    is_whole(run)


def begin(run: Shell) -> None:
    """An erasure that died before its first step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Erasures, "resume", lambda self, number: None)
        start(run, "--key", CANARY)


def test_files_of_a_backlog_that_a_reset_gave_up_are_written_again(world: FakePlatform, run: Shell) -> None:
    run.done("park", "--table", str(ORDERS), "--yes")
    with_canary(world)
    run.done("extract")
    run.done("extract")
    begin(run)
    run.done("reset", "--topic", TOPIC, "--at", "earliest", "--give-up-pending", "--yes")
    run.done("erase", "resume", "1")
    assert CANARY not in staged(world)
    run.done("resume", "--table", str(ORDERS), "--yes")
    cycle(run)
    found = [place for place in offsets(world, ORDERS) if place[1:] > (1, 1)]
    assert found == [(2, 1, 2), (2, 1, 4)]
    is_whole(run)


def test_files_in_quarantine_that_a_reset_gave_up_are_written_again(world: FakePlatform, run: Shell) -> None:
    """Their job was in flight at the reset, and failed."""
    with_canary(world)
    run.done("extract")
    [path] = [path for path in world.objects() if path.startswith("staging/")]
    world.warehouse.bad_paths.add(path)
    world.warehouse.auto_run = False
    run("load")
    begin(run)
    run.done("reset", "--topic", TOPIC, "--at", "earliest", "--give-up-pending", "--yes")
    world.warehouse.auto_run = True
    while world.warehouse.step():
        pass
    run("load")
    assert [path for path in world.objects() if path.startswith("quarantine/")]
    run.done("erase", "resume", "1")
    assert CANARY not in staged(world) and "bert" in staged(world)
    run.done("quarantine", "retry", "--table", str(ORDERS), "--yes")
    cycle(run)
    found = [place for place in offsets(world, ORDERS) if place[1:] > (1, 1)]
    assert found == [(1, 1, 2), (1, 1, 4), (2, 1, 2), (2, 1, 4)]
    is_whole(run)


def test_a_file_of_erased_rows_alone_is_loaded_without_rows(world: FakePlatform, run: Shell) -> None:
    world.kafka.produce(TopicPartition(TOPIC, 1), GOOD, key=PERSON.encode())
    run.done("extract")
    start(run)
    run.done("load")
    assert offsets(world, ORDERS) == [(1, 0, 0), (1, 0, 2), (1, 1, 1)]
    is_whole(run)


def test_a_damaged_staged_file_stops_an_erasure_by_name(world: FakePlatform, run: Shell) -> None:
    with_canary(world)
    run.done("extract")
    [path] = [path for path in world.objects() if path.startswith("staging/")]
    whole = world.store.objects[path].data
    world.store.delete(path)
    world.store.create(path, whole[:-20])
    refused = run("erase", "start", TOPIC, "--key", CANARY, "--yes")
    assert refused.exit_code == 3 and "kbq restage" in refused.output
    world.store.delete(path)
    world.store.create(path, whole)
    start(run, "--key", CANARY)
    is_whole(run)


@pytest.mark.parametrize("is_gone", [False, True], ids=["damaged", "gone"])
def test_a_file_that_cannot_be_read_is_restaged_then_the_erasure_goes_on(
    world: FakePlatform, run: Shell, is_gone: bool
) -> None:
    """After the erasure, the range would give other rows than the entry counts, and could not be restaged."""
    start(run, "--key", "bert")
    with_canary(world)
    run.done("extract")
    [path] = [path for path in world.objects() if path.startswith("staging/")]
    whole = world.store.objects[path].data
    world.store.delete(path)
    if not is_gone:
        world.store.create(path, whole[:-20])
    refused = run("erase", "start", TOPIC, "--key", CANARY, "--yes")
    assert (refused.exit_code, f"kbq restage {path}" in refused.output) == (3, True), refused.output
    assert run("erase", "status", "2").exit_code == 1  # the plan refused already
    run.done("restage", path, "--yes")
    start(run, "--key", CANARY)
    assert CANARY not in staged(world)
    cycle(run)
    assert (1, 1, 3) not in offsets(world, ORDERS)
    is_whole(run)


@pytest.mark.parametrize("others", [0, 2], ids=["of nobody else", "first of several"])
def test_a_file_that_is_lost_after_its_first_record_was_erased_is_restaged(
    world: FakePlatform, run: Shell, others: int
) -> None:
    for key in (PERSON, *["bert"] * others):
        world.kafka.produce(TopicPartition(TOPIC, 0), GOOD, key=key.encode())
    run.done("extract")
    start(run)
    [path] = [path for path in world.objects() if path.startswith("staging/")]
    world.store.delete(path)
    assert f"1 staged file is gone: {path}" in run("load").output
    run.done("restage", path, "--yes")
    run.done("resume", "--table", "shop.orders", "--yes")
    cycle(run)
    rows = [(1, 0, 0), (1, 0, 2), *((1, 0, 6 + n) for n in range(others)), (1, 1, 1)]
    assert offsets(world, ORDERS) == rows
    is_whole(run)


def test_records_that_wait_in_kafka_are_never_read(world: FakePlatform, run: Shell) -> None:
    world.kafka.produce(TopicPartition(TOPIC, 1), named(PERSON), key=PERSON.encode())
    start(run)
    world.kafka.produce(TopicPartition(TOPIC, 1), GOOD, key=PERSON.encode())
    cycle(run)
    assert offsets(world, ORDERS) == [(1, 0, 0), (1, 0, 2), (1, 1, 1), (1, 1, 3)]
    assert run.json("reconcile", "--counts")["totals"]["erased"] == 4
    is_whole(run)


@pytest.mark.parametrize("checked", [True, False])
def test_what_was_read_before_an_erasure_is_not_published(
    world: FakePlatform, run: Shell, monkeypatch: pytest.MonkeyPatch, checked: bool
) -> None:
    """A reset reads the person again; before its swap, the person is erased. Without the rule of publication (X2) the
    person would be back."""
    if not checked:
        monkeypatch.setattr(publishing, "_check_erasures", lambda commit, outcome: None)
    start(run, "--key", "bert")
    run.done("reset", "--topic", TOPIC, "--at", "earliest", "--yes")
    begun: list[str] = []

    def faults(call: Call) -> Outcome:
        if call.operation == "swap" and call.target.startswith("commits/shop") and not begun:
            begun.append(call.target)
            Shell(world)("erase", "start", TOPIC, "--key", PERSON, "--yes")
        return Outcome.OK

    world.store.faults = faults
    store = world.store.view("extractor")
    parts = world.reopened(store=lambda: store)
    parts.extractor.extract()
    world.store.faults = None
    assert begun
    cycle(run)
    assert run.json("erase", "status", "2")["phase"] == "done"
    rows = [*offsets(world, ORDERS), *offsets(world, ERRORS)]
    assert ([place for place in rows if place[0] == 2] == [(2, 0, 2)]) == checked
    if checked:
        is_whole(run)


@pytest.mark.parametrize(
    ("prepare", "named_next"),
    [
        (lambda run: run.done("replay", "start", TOPIC, "--from", "earliest", "--yes"), "kbq replay drop 1"),
        (lambda run: run.world.kafka.delete_topic(TOPIC), "kbq plan --topic"),
    ],
)
def test_what_cannot_be_reached_is_refused_by_name(
    run: Shell, prepare: Callable[[Shell], object], named_next: str
) -> None:
    prepare(run)
    refused = run("erase", "start", TOPIC, "--key", PERSON, "--yes")
    assert refused.exit_code == 3 and named_next in refused.output
    assert run.json("erase", "list") == []


def test_an_erasure_of_nobody_is_refused_and_unknown_ones_are_named(run: Shell) -> None:
    assert run("erase", "start", TOPIC, "--key", "nobody", "--yes").exit_code == 3
    assert run("erase", "status", "1").exit_code == 1
    assert "nothing was erased" in run.done("erase", "list")
    assert run("erase", "start", TOPIC, "--key", PERSON, answer="n\n").exit_code == 1
    assert run.json("erase", "list") == []


def test_an_unknown_schema_that_was_given_up_is_erased_too(world: FakePlatform, run: Shell) -> None:
    world.kafka.produce(TopicPartition(TOPIC, 1), UNKNOWN_SCHEMA, key=PERSON.encode())
    run("extract")
    run.done("resume", "--topic", TOPIC, "--as-errors", "--yes")
    cycle(run)
    start(run)
    assert offsets(world, ERRORS) == [(1, 0, 4)]
    is_whole(run)
