"""status, reconcile, errors: the output matches the state."""

from __future__ import annotations

import base64
import json
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from kbq_assets.cli.context import ExitCode
from kbq_assets.cli.errors import hex_dump
from kbq_assets.core.errors import ConfigurationError, KbqError, NotFound, Unavailable
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets_tests.cli.conftest import Shell
from kbq_assets_tests.fakes.platform import GOOD, POISON, TOPIC, UNKNOWN_SCHEMA, FakePlatform

ORDERS = TableReference("shop", "orders")
TP = TopicPartition(TOPIC, 0)
HALF_AN_HOUR = 1_800


def refusing(world: FakePlatform, refused: TableReference, error: KbqError) -> Shell:
    """`kbq` over the world's warehouse, in which a table's columns cannot be read."""

    class Refusing:
        def columns(self, table: TableReference) -> object:
            if table == refused:
                raise error
            return world.warehouse.columns(table)

        def __getattr__(self, name: str) -> object:
            return getattr(world.warehouse, name)

    return Shell(world, warehouse=Refusing)


# status


def test_status_shows_lag_backlog_errors_and_rows(world: FakePlatform, loaded: Shell) -> None:
    world.produce(2)
    status = loaded.json("status")
    zero = next(p for p in status["partitions"] if p["partition"] == 0)
    assert (zero["position"], zero["lag"], zero["errors"], zero["pending_rows"]) == (4, 2, 1, 0)
    assert {t["table"]: t["loaded_rows"] for t in status["tables"]} == {
        "shop.kbq_errors": 1,
        "shop.orders": 3,
    }
    loaded.done("extract")
    status = loaded.json("status")
    assert [p["pending_rows"] for p in status["partitions"]] == [2, 0]
    assert sum(t["pending_rows"] for t in status["tables"]) == 2
    assert "lag 0 positions, 0 new partitions; 2 rows to load; 0 stopped, 0 parked" in loaded.done("status")


def test_a_table_whose_last_load_failed_is_not_ready(world: FakePlatform, loaded: Shell) -> None:
    world.produce(2)
    loaded.done("extract")
    gone = NotFound("the project is gone", next_step="ask its owner")
    assert refusing(world, ORDERS, gone)("load").exit_code == ExitCode.FAILED
    # The next commands are other processes: only what the load stored can tell them.
    tables = {t["table"]: (t["state"], t["message"]) for t in loaded.json("status")["tables"]}
    why = "the last load failed: NotFound: the project is gone\n  next: ask its owner"
    assert tables == {"shop.orders": ("failing", why), "shop.kbq_errors": ("ready", "")}
    assert f"failing: shop.orders: {why}" in loaded.done("status")
    checked = loaded("check")
    assert checked.exit_code == ExitCode.FAILED
    assert (
        "no_table_is_parked: shop.orders: its last load failed: NotFound: the project is gone"
        in checked.output
    )
    loaded.done("load", "--table", "shop.kbq_errors")  # says nothing about the other
    assert "failing: shop.orders" in loaded.done("status")
    loaded.done("load")
    assert {t["state"] for t in loaded.json("status")["tables"]} == {"ready"}
    loaded.done("check")


def test_a_table_that_gets_no_answer_for_long_fails_its_check(world: FakePlatform, loaded: Shell) -> None:
    silent = refusing(world, ORDERS, Unavailable(f"no answer about {ORDERS}: " + "x" * 100_000))
    world.produce(2)
    loaded.done("extract")
    assert silent("load").exit_code == ExitCode.TRY_AGAIN
    orders = next(t for t in loaded.json("status")["tables"] if t["table"] == "shop.orders")
    assert orders["state"] == "failing"
    assert orders["message"].startswith("the last load failed: Unavailable: no answer about shop.orders: xxx")
    assert len(orders["message"]) < 1_000, "what a warehouse says is not kept whole"
    loaded.done("check")
    world.clock.sleep(HALF_AN_HOUR)
    loaded.done("check")
    assert silent("load").exit_code == ExitCode.TRY_AGAIN
    assert "no_table_is_parked: shop.orders: its last load failed: Unavailable" in loaded("check").output
    loaded.done("load")
    loaded.done("check")


def test_a_partition_whose_extractions_get_no_answer_is_shown_until_one_does(
    world: FakePlatform, run: Shell
) -> None:
    world.produce(3)
    world.registry.down = True
    assert run("extract").exit_code == ExitCode.TRY_AGAIN
    stopped = "error: no_partition_is_stopped"
    said = "shop.orders.v1[0]: interrupted: in 1 run: Unavailable: the registry is down"
    assert said in run.done("status")
    world.kafka.down = True
    assert said in run("status").stdout
    world.kafka.down = False
    assert stopped not in run("check").output
    world.clock.sleep(HALF_AN_HOUR)
    assert stopped not in run("check").output, "one run alone may have had bad luck"
    assert run("extract").exit_code == ExitCode.TRY_AGAIN
    assert "in 2 runs in a row" in run.json("status")["interrupted"][0]["message"]
    assert f"{stopped}: shop.orders.v1: shop.orders.v1[0]: interrupted" in run("check").output
    world.registry.down = False
    run.done("extract")
    assert run.json("status")["interrupted"] == []
    assert stopped not in run("check").output


@pytest.mark.parametrize(
    ("error", "code", "what"),
    [
        (Unavailable("no memory for Spark"), ExitCode.TRY_AGAIN, "interrupted"),
        (ConfigurationError("no Java"), ExitCode.FAILED, "failed"),
    ],
)
def test_a_run_that_an_error_ends_is_shown_until_one_succeeds(
    world: FakePlatform, run: Shell, error: KbqError, code: ExitCode, what: str
) -> None:
    def no_engine(store: object = None) -> object:
        raise error

    world.produce(3)
    assert Shell(world, engine=no_engine)("extract").exit_code == code
    said = f"{TOPIC}: {what}: in 1 run: {type(error).__name__}: {error.message}"
    assert said in run.done("status")
    assert (f"{TOPIC}: all of it: {what}" in run("check").output) == (code == ExitCode.FAILED)
    run.done("extract")
    assert run.json("status")["interrupted"] == []
    assert "all of it" not in run("check").output


def test_an_interruption_of_records_that_are_gone_is_not_shown(world: FakePlatform, run: Shell) -> None:
    world.produce(3)
    world.registry.down = True
    run("extract")
    world.source_topics.write_text("other dataset=shop\n")
    assert run.json("status")["interrupted"] == []


def test_status_says_how_what_is_stopped_or_parked_goes_on(world: FakePlatform, loaded: Shell) -> None:
    world.produce(value=UNKNOWN_SCHEMA)
    loaded("extract")
    loaded.done("park", "--table", "shop.orders", "--yes")
    text = loaded.done("status")
    assert "next: kbq resume --topic shop.orders.v1 --partition 0" in text
    assert "next: kbq resume --table shop.orders" in text
    status = loaded.json("status")
    assert [stop["reason"] for stop in status["stops"]] == ["unknown_schema"]
    assert {t["table"]: t["state"] for t in status["tables"]} == {
        "shop.kbq_errors": "ready",
        "shop.orders": "parked",
    }


def test_status_and_plan_say_when_a_stop_is_tried_again(world: FakePlatform, loaded: Shell) -> None:
    world.produce(value=UNKNOWN_SCHEMA)
    loaded("extract")
    (stop,) = loaded.json("status")["stops"]
    assert (stop["tries"], stop["next_try_ms"]) == (0, pytest.approx(world.store.now_ms() + 60_000, abs=100))
    world.store.time_ms += 60_000
    loaded("extract")
    for command in ("status", "plan"):
        assert "  KBQ tries again after " in loaded.done(command)
        assert "; a try failed" in loaded.done(command)


def test_a_topic_that_stops_as_a_whole_has_no_partition(world: FakePlatform, loaded: Shell) -> None:
    world.kafka.recreate_topic(TOPIC)
    (stop,) = loaded.json("status")["stops"]
    assert (stop["topic"], stop["partition"], stop["reason"]) == (TOPIC, None, "recreated")
    assert f"stopped: {TOPIC}: recreated" in loaded.done("status")


# reconcile


def test_everything_loaded_is_accounted_for(world: FakePlatform, loaded: Shell) -> None:
    table = "row:shop.orders"
    world.expected[TP] = {0: table, 1: table, 2: table, 3: "error"}
    account = loaded.json("reconcile")
    totals = {"produced": 4, "staged": 3, "loaded": 3, "errors": 1, "skipped": 0}
    assert account["accounted"] is True
    assert account["totals"] == totals
    assert account["topics"] == {TOPIC: totals}
    assert [p["partition"] for p in account["partitions"]] == [0, 1]
    assert loaded.done("reconcile").endswith("every record accounted for: yes\n")


@pytest.mark.parametrize("damage", ["lost", "doubled"])
def test_a_row_lost_or_doubled_by_hand_is_named_and_fails(
    world: FakePlatform, loaded: Shell, damage: str
) -> None:
    rows = world.warehouse.stored[ORDERS].rows
    if damage == "lost":
        rows.pop(1)
    else:
        rows.append(rows[1])
    result = loaded("reconcile")
    assert result.exit_code == 1
    assert "every record accounted for: no" in result.stdout
    assert f"{TP} epoch 1: " in result.stdout
    assert "offset 1" in result.stdout
    document = json.loads(loaded("reconcile", "--json").stdout)
    assert document["accounted"] is False
    assert [p["accounted"] for p in document["partitions"]] == [False, True]


def test_gaps_and_what_waits_are_in_the_account(world: FakePlatform, loaded: Shell) -> None:
    world.kafka.gap(TP, 2)
    world.produce(1)
    loaded.done("extract")
    world.produce(5)
    zero, _ = loaded.json("reconcile")["partitions"]
    assert (zero["gaps"], zero["pending"], zero["unread"], zero["staged"]) == (2, 1, 5, 4)
    text = loaded.done("reconcile")
    assert f"{TP}: 1 to load, 5 unread" in text


def test_reconcile_takes_the_topics_it_is_given(world: FakePlatform, loaded: Shell) -> None:
    world.source_topics.write_text("* dataset=shop table=orders\n")
    world.kafka.create_topic("other", 1)
    world.produce(2, topic="other")
    loaded.done("extract")
    loaded.done("load")
    assert loaded.json("reconcile", "--topic", "other")["totals"]["loaded"] == 2
    assert set(loaded.json("reconcile")["topics"]) == {"other", TOPIC}
    assert loaded("reconcile", "--topic", "nowhere").exit_code == 1


# errors


def test_bad_records_are_listed_without_their_bytes(loaded: Shell) -> None:
    (row,) = loaded.json("errors", "list")["errors"]
    assert (row["topic"], row["partition"], row["offset"], row["reason"]) == (TOPIC, 0, 3, "WRONG_MAGIC")
    assert row["value_size"] == len(POISON)
    assert loaded.json("errors", "list", "--topic", TOPIC)["errors"] == [row]
    assert loaded("errors", "list", "--topic", "other").exit_code == 1
    assert f"{TP}       3" in loaded.done("errors", "list")


@pytest.mark.parametrize("width", [40, 80, 100])
def test_a_narrow_terminal_gets_whole_values_to_copy(
    loaded: Shell, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    (row,) = loaded.json("errors", "list")["errors"]
    monkeypatch.setattr("kbq_assets.cli.errors.console", partial(Console, width=width, soft_wrap=True))
    title, line = loaded.done("errors", "list").splitlines()
    assert title == title.rstrip() and line == line.rstrip(), "blanks would become lines of their own"
    assert line.startswith(f"{TP}       3  no time  {row['reason']}  ")
    assert line.endswith(row["message"])


def test_a_list_has_the_newest_up_to_its_limit(world: FakePlatform, run: Shell) -> None:
    for time in (30, 10, 20):
        world.kafka.produce(TP, POISON, timestamp=time)
    run.done("extract")
    run.done("load")
    rows = run.json("errors", "list", "--limit", "2")["errors"]
    assert [row["timestamp_ms"] for row in rows] == [30, 20]


def test_a_bad_record_is_shown_as_bytes_text_and_json(world: FakePlatform, run: Shell) -> None:
    world.kafka.produce(
        TP, b'{"a": [1]}', key=b"\x00\xff", headers=[("trace", b"x1"), ("none", None)], timestamp=0
    )
    run.done("extract")
    run.done("load")
    text = run.done("errors", "show", TOPIC, "0", "0")
    assert f"{TP} offset 0, epoch 1, 1970-01-01T00:00:00.000Z" in text
    assert "reason: WRONG_MAGIC: " in text
    assert "00000000  00 ff " in text
    assert "header trace: 2 B: x1" in text
    assert "header none: null" in text
    assert 'value: 10 B: {"a": [1]}' in text
    assert '7b 22 61 22 3a 20 5b 31 5d 7d                    {"a": [1]}' in text
    assert "value as JSON:" in text
    (row,) = run.json("errors", "show", TOPIC, "0", "0")
    assert base64.b64decode(row["value_base64"]) == b'{"a": [1]}'
    assert row["headers"] == [{"key": "trace", "value_base64": "eDE="}, {"key": "none", "value_base64": None}]


def test_the_raw_bytes_can_be_had(loaded: Shell) -> None:
    assert loaded("errors", "show", TOPIC, "0", "3", "--raw").stdout_bytes == POISON


def test_terminal_sequences_of_a_record_are_not_printed(world: FakePlatform, run: Shell) -> None:
    world.produce(value=b"\x1b[2Jboo")
    run.done("extract")
    run.done("load")
    assert "\x1b" not in run.done("errors", "show", TOPIC, "0", "0")


def test_a_position_without_a_bad_record_is_not_found(loaded: Shell) -> None:
    result = loaded("errors", "show", TOPIC, "0", "1")
    assert result.exit_code == 1
    assert "no error table has offset 1 of shop.orders.v1[0]" in result.stderr


def test_files_in_quarantine_are_listed(world: FakePlatform, run: Shell) -> None:
    world.produce(2)
    run.done("extract")
    (path,) = (e.path for e in world.store.list("staging/"))
    world.warehouse.bad_paths.add(path)
    run.done("load")
    (quarantined,) = run.json("errors", "list")["quarantined"]
    assert quarantined["path"] == path.replace("staging/", "quarantine/")
    assert (quarantined["table"], quarantined["rows"]) == ("shop.orders", 2)
    assert "files that the warehouse rejected:" in run.done("errors", "list")


def test_a_hex_dump_has_sixteen_bytes_a_line() -> None:
    assert list(hex_dump(bytes(range(48, 66)))) == [
        "00000000  30 31 32 33 34 35 36 37 38 39 3a 3b 3c 3d 3e 3f  0123456789:;<=>?",
        "00000010  40 41                                            @A",
    ]


def test_a_source_list_that_is_not_there_is_named(tmp_path: Path, world: FakePlatform, run: Shell) -> None:
    world.produce(value=GOOD)
    world.source_topics.unlink()
    result = run("extract")
    assert result.exit_code == 1
    assert "set KBQ_SOURCE_TOPICS" in result.stderr


def test_a_plan_says_that_parked_tables_load_nothing(loaded: Shell) -> None:
    loaded.done("park", "--table", "shop.orders", "--yes")
    assert "1 parked table loads nothing; next: kbq status" in loaded.done("plan")


def test_without_a_broker_status_shows_what_the_staging_area_knows(
    world: FakePlatform, loaded: Shell
) -> None:
    world.kafka.down = True
    found = loaded("status")
    assert found.exit_code == 75
    assert f"{TP}" in found.stdout and "shop.orders" in found.stdout
    assert "lags and new stops unknown" in found.stdout and "the broker is down" in found.stderr


def test_without_a_broker_json_has_the_reason_and_what_the_staging_area_knows(
    world: FakePlatform, loaded: Shell
) -> None:
    before = json.loads(loaded.done("status", "--json"))
    assert before["broker_error"] is None
    world.produce(value=UNKNOWN_SCHEMA)
    assert loaded("extract").exit_code == 1
    world.kafka.down = True
    result = loaded("status", "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["broker_error"]) == (75, "the broker is down")
    assert [stop["reason"] for stop in found["stops"]] == ["unknown_schema"], "as the last run left it"
    assert (found["new_partitions"], {p["lag"] for p in found["partitions"]}) == (None, {None})
    assert found["tables"] == before["tables"]
