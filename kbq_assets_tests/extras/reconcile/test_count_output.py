"""`kbq reconcile --counts`: numbers as documents and tables; exit codes for schedulers."""

from __future__ import annotations

import json

import pytest

from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets_tests.cli.conftest import Shell
from kbq_assets_tests.fakes.platform import TOPIC, FakePlatform
from kbq_assets_tests.fakes.warehouse import Row

ORDERS = TableReference("shop", "orders")
TP = TopicPartition(TOPIC, 0)


def test_the_document_has_every_number(world: FakePlatform, loaded: Shell) -> None:
    world.produce(2)
    loaded.done("extract")
    world.produce(1)
    document = loaded.json("reconcile", "--counts")
    assert (document["accounted"], document["since"], document["findings"]) == (True, None, [])
    assert document["totals"] == {
        "committed": 6,
        "loaded": 4,
        "pending": 2,
        "quarantined": 0,
        "skipped": 0,
        "erased": 0,
        "lost": 0,
        "unread": 1,
    }
    orders = next(t for t in document["tables"] if t["table"] == "shop.orders")
    assert {
        name: orders[name] for name in ("topic", "partition", "epoch", "rows", "distinct", "duplicates")
    } == {
        "topic": TOPIC,
        "partition": 0,
        "epoch": 1,
        "rows": 3,
        "distinct": 3,
        "duplicates": 0,
    }
    assert (orders["first"], orders["last"], orders["loaded"], orders["in_flight"]) == (0, 2, 3, 0)
    assert [(p["partition"], p["position"], p["pending"]) for p in document["partitions"]] == [
        (0, 6, 2),
        (1, 0, 0),
    ]


def test_people_see_a_line_per_table_and_the_verdict(loaded: Shell) -> None:
    lines = loaded.done("reconcile", "--counts").splitlines()
    assert [line.split() for line in lines[1:3]] == [
        ["shop.kbq_errors", "1", "1", "1", "1", "0", "yes"],
        ["shop.orders", "1", "3", "3", "3", "0", "yes"],
    ]
    assert lines[3].startswith("2 partitions, 4 rows committed: 4 loaded, 0 to load, 0 quarantined;")
    assert lines[-2].startswith("not seen: ")
    assert lines[-1] == "all counts agree: yes"


@pytest.mark.parametrize("damage", ["lost", "doubled"])
def test_numbers_that_differ_fail_and_are_named(world: FakePlatform, loaded: Shell, damage: str) -> None:
    rows = world.warehouse.stored[ORDERS].rows
    if damage == "lost":
        rows.pop(1)
    else:
        rows.append(rows[1])
    result = loaded("reconcile", "--counts")
    assert result.exit_code == 1
    assert result.stdout.endswith("all counts agree: no\n")
    assert f"shop.orders: {TP} epoch 1: {len(rows)} rows" in result.stdout
    assert ("doubled: offset 1 (shop.orders and shop.orders)" in result.stdout) == (damage == "doubled")
    assert json.loads(loaded("reconcile", "--counts", "--json").stdout)["accounted"] is False


def test_since_a_date_the_document_says_what_is_not_seen(world: FakePlatform, loaded: Shell) -> None:
    everything = loaded.json("reconcile", "--counts")
    assert loaded.json("reconcile", "--counts", "--since", "1970-01-01")["tables"] == everything["tables"]
    later = loaded.json("reconcile", "--counts", "--since", "2999-12-31")
    assert (later["since"], later["tables"], len(later["not_seen"])) == ("2999-12-31", [], 2)
    assert "counts since 2999-12-31 agree: yes" in loaded.done(
        "reconcile", "--counts", "--since", "2999-12-31"
    )


def test_tables_and_topics_are_chosen(world: FakePlatform, loaded: Shell) -> None:
    world.warehouse.stored[ORDERS].rows.clear()
    assert loaded("reconcile", "--counts", "--table", "shop.kbq_errors").exit_code == 0
    assert loaded("reconcile", "--counts", "--table", "shop.orders").exit_code == 1
    assert loaded("reconcile", "--counts", "--topic", TOPIC).exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--since", "2024-01-01"), 2),
        (("--table", "shop.orders"), 2),
        (("--counts", "--since", "yesterday"), 2),
        (("--counts", "--table", "shop.nothing"), 1),
        (("--counts", "--topic", "nothing"), 1),
    ],
)
def test_what_cannot_be_counted_is_refused(loaded: Shell, arguments: tuple[str, ...], code: int) -> None:
    assert loaded("reconcile", *arguments).exit_code == code


def test_expired_rows_are_a_note(world: FakePlatform, loaded: Shell) -> None:
    world.warehouse.stored[ORDERS].rows.pop(0)
    assert loaded("reconcile", "--counts").exit_code == 1
    world.source_topics.write_text(f"{TOPIC} dataset=shop table=orders partition_expiry_days=30\n")
    world.clock.sleep(40 * 86_400)
    older = "2 rows, but 3 were loaded (they are older than the table keeps rows)"
    assert older in loaded.done("reconcile", "--counts")
    assert len(loaded.json("reconcile", "--counts")["notes"]) == 1


def test_a_broker_that_is_down_means_try_again(world: FakePlatform, loaded: Shell) -> None:
    world.kafka.down = True
    assert loaded("reconcile", "--counts").exit_code == 75


def test_many_findings_are_cut_for_people_and_whole_in_the_document(
    world: FakePlatform, loaded: Shell
) -> None:
    rows = world.warehouse.stored[ORDERS].rows
    rows.extend(Row(1, TOPIC, partition, 0) for partition in range(100, 160))
    text = loaded("reconcile", "--counts").stdout
    assert "and 70 more; --json has all" in text
    assert len(json.loads(loaded("reconcile", "--counts", "--json").stdout)["findings"]) == 120
