"""plan, extract, load, clean: their output matches what they do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

import pytest

from kbq_assets.cli.context import ExitCode
from kbq_assets.core.errors import ConfigurationError, KbqError, Unavailable
from kbq_assets.core.loading.completeness import moment
from kbq_assets.core.protocol.commits import Commit
from kbq_assets.core.protocol.names import TableReference, commit_path, table_state_path
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.pipelines.protocol import state
from kbq_assets.ports.object_store import StoredObject
from kbq_assets.ports.warehouse import JobError
from kbq_assets_tests.cli.conftest import Shell
from kbq_assets_tests.fakes.faults import Outcome
from kbq_assets_tests.fakes.platform import GOOD, POISON, TOPIC, UNKNOWN_SCHEMA, FakePlatform
from kbq_assets_tests.fakes.warehouse import TRANSIENT

ORDERS = TableReference("shop", "orders")
PERMANENT = JobError("invalid", "no", transient=False)


def nothing(document: Mapping[str, Any]) -> bool:
    """Whether a plan has nothing to do."""
    return not any(document["extract"][key] for key in ("units", "creations", "additions", "gaps")) and (
        not document["load"]["batches"]
    )


@pytest.mark.parametrize("arguments", [(), ("extract",), ("load",), ("--json",), ("--topic", TOPIC)])
@pytest.mark.parametrize("extracted", [False, True])
def test_a_plan_changes_nothing(
    world: FakePlatform, run: Shell, arguments: tuple[str, ...], extracted: bool
) -> None:
    world.produce(3)
    if extracted:
        run.done("extract")
        world.produce(2)
    before = world.objects()
    run.done("plan", *arguments)
    assert world.objects() == before
    assert world.warehouse.jobs == {}


def test_reading_an_empty_platform_creates_nothing(world: FakePlatform, run: Shell) -> None:
    for command in (["status"], ["reconcile"], ["plan"], ["errors", "list"]):
        run.done(*command)
    assert world.objects() == {}


def test_a_plan_informs_of_what_waits_for_an_operator_and_the_check_fails(
    world: FakePlatform, run: Shell
) -> None:
    world.source_topics.write_text("mistyped nothing=1\n" + world.source_topics.read_text())
    world.kafka.create_topic("mistyped", 1)
    world.produce(1)
    world.produce(value=UNKNOWN_SCHEMA)
    assert "stopped: mistyped: wrong_entry: " in run.done("plan")
    assert run("extract").exit_code == ExitCode.FAILED
    assert f"stopped: {TOPIC}[0]: unknown_schema" in run.done("plan")
    assert "Exit code 0 even if something waits for an operator (`kbq check` fails then)" in " ".join(
        run.done("plan", "--help").split()
    )
    assert run("check").exit_code == ExitCode.FAILED


def test_a_plan_says_what_waits_and_what_limits_leave(world: FakePlatform, run: Shell) -> None:
    options = "dataset=shop table=orders min_records=3 max_records=4"
    world.settings.catalog.source_topics.write_text(f"{TOPIC} {options}\n")
    world.produce(9)
    young = world.clock.now_ms()
    world.kafka.produce(TopicPartition(TOPIC, 1), GOOD, timestamp=young)
    planned = run.json("plan")["extract"]
    assert [(w["partition"], w["message"]) for w in planned["waiting"]] == [(1, "about 1 of 3 records")]
    assert [(t["partition"], t["positions"]) for t in planned["throttled"]] == [(0, 5)]
    text = run.done("plan", "extract")
    assert f"waits for more: {TOPIC}[1]: about 1 of 3 records, for at most 3,600 s" in text
    assert f"left for later runs by a limit: {TOPIC}[0]: 5 positions" in text
    said = run.done("extract")
    assert ("1 partition waits for more records" in said, "5 positions left" in said) == (True, True)


def test_a_plan_names_a_commit_that_the_store_does_not_give_now(world: FakePlatform, run: Shell) -> None:
    world.produce(1)
    run.done("extract")
    read = world.store.get

    def get(path: str) -> StoredObject:
        if path == commit_path(TOPIC, 0):
            raise Unavailable("no answer", next_step="wait")
        return read(path)

    with patch.object(world.store, "get", get):
        shown = run("plan", "extract")
        document = json.loads(run("plan", "extract", "--json").stdout)
    assert f"not planned now: {TOPIC}[0]: no answer" in shown.stdout
    assert shown.exit_code == ExitCode.TRY_AGAIN
    assert document["extract"]["failures"][f"{TOPIC}[0]"] == "no answer\n  next: wait"


@pytest.mark.parametrize(
    ("path", "error", "said", "code"),
    [
        (
            commit_path(TOPIC, 0),
            Unavailable("no answer"),
            "not planned now: {path}: no answer",
            ExitCode.TRY_AGAIN,
        ),
        (commit_path(TOPIC, 0), ConfigurationError("403"), "failed: {path}: 403", ExitCode.FAILED),
        (
            table_state_path(ORDERS),
            Unavailable("no answer"),
            "failed: {table}: no answer",
            ExitCode.TRY_AGAIN,
        ),
        (table_state_path(ORDERS), ConfigurationError("403"), "failed: {table}: 403", ExitCode.FAILED),
    ],
)
def test_a_plan_of_a_load_names_what_it_cannot_read_and_ends_as_the_load(
    world: FakePlatform, run: Shell, path: str, error: KbqError, said: str, code: ExitCode
) -> None:
    world.produce(1)
    run.done("extract")
    run.done("load")
    world.produce(1)
    run.done("extract")
    read = world.store.get

    def get(asked: str) -> StoredObject:
        if asked == path:
            raise error
        return read(asked)

    with patch.object(world.store, "get", get):
        for arguments in (["load"], ["load", str(ORDERS)], []):
            shown = run("plan", *arguments)
            assert said.format(path=path, table=ORDERS) in shown.stdout, shown
            assert shown.exit_code == code
        document = json.loads(run("plan", "load", "--json").stdout)["load"]
        assert run("load").exit_code == code
    named = {**document["refused"], **document["unavailable"], **document["failed"]}
    assert named == {path if path == commit_path(TOPIC, 0) else str(ORDERS): error.message}


def test_a_plan_says_when_the_hour_of_what_waits_ends(world: FakePlatform, run: Shell) -> None:
    options = "dataset=shop table=orders min_records=3 max_wait_seconds=9000 close_hours=true"
    world.settings.catalog.source_topics.write_text(f"{TOPIC} {options}\n")
    for _ in range(2):
        world.kafka.produce(TopicPartition(TOPIC, 1), GOOD, timestamp=world.clock.now_ms())
        text = run.done("plan", "extract")
        run.done("extract")
    read = state.read(world.store, Commit, commit_path(TOPIC, 0)).value
    ends = read.partitions[1].watermark.next_hour_ms(900_000)
    assert f"for at most 9,000 s, or until {moment(ends)} UTC, when its hour ends" in " ".join(text.split())


def test_an_extraction_says_what_each_topic_cost(world: FakePlatform, run: Shell) -> None:
    world.produce(3)
    [cost] = run.json("extract")["costs"]
    assert (cost["topic"], cost["records"], cost["cost"]) == (TOPIC, 3, 0.0)


def test_a_plan_names_ranges_new_topics_and_batches(world: FakePlatform, run: Shell) -> None:
    world.produce(3)
    world.produce(1, partition=1)
    planned = run.json("plan")["extract"]
    assert planned["creations"] == [{"topic": TOPIC, "shard": 0, "starts": {"0": 0, "1": 0}}]
    assert [(u["partition"], u["from"], u["until"]) for u in planned["units"]] == [(0, 0, 3), (1, 0, 1)]
    assert planned["positions"] == 4
    run.done("extract")
    (batch,) = run.json("plan", "load")["load"]["batches"]
    assert (batch["table"], batch["schema_id"], batch["files"], batch["rows"]) == ("shop.orders", 1, 2, 4)
    assert batch["bytes"] == sum(len(world.objects()[path]) for path in batch["paths"])
    text = run.done("plan")
    assert "0 positions of 0 partitions; 2 have nothing new" in text
    assert "4 rows in the next batches of 1 table\n" in text


def test_a_source_list_without_a_topic_is_named(world: FakePlatform, run: Shell) -> None:
    world.source_topics.write_text("# none yet\n")
    for command in ("plan", "extract"):
        found = run(command)
        assert (found.exit_code, "chooses no topic; next: kbq doctor" in found.stderr) == (0, True), command


def test_who_has_no_topic_needs_no_broker(world: FakePlatform, run: Shell) -> None:
    world.source_topics.write_text("")
    world.kafka.down = True
    for command in ("status", "check", "plan", "extract", "load"):
        run.done(command)
    world.source_topics.write_text(f"{TOPIC}\n")
    assert run("status").exit_code == 75


def test_a_plan_shows_one_side_when_asked(run: Shell) -> None:
    assert set(run.json("plan", "extract")) == {"extract"}
    assert set(run.json("plan", "load")) == {"load"}
    assert set(run.json("plan")) == {"extract", "load"}


def test_what_was_planned_is_done_and_then_nothing_is_left(world: FakePlatform, run: Shell) -> None:
    world.produce(5)
    world.produce(value=POISON)
    report = run.json("extract")
    assert (report["records"], report["staged"], report["errors"]) == (6, 5, 1)
    assert [(p["partition"], p["from"], p["until"]) for p in report["partitions"]] == [(0, 0, 6)]
    loaded = run.json("load")
    assert {t["table"]: t["rows"] for t in loaded["tables"]} == {"shop.kbq_errors": 1, "shop.orders": 5}
    assert nothing(run.json("plan"))
    assert run.json("load")["rows"] == 0
    assert len(world.warehouse.rows(ORDERS)) == 5


def test_a_run_with_nothing_to_read_starts_no_engine(world: FakePlatform, run: Shell) -> None:
    run.done("extract")
    assert world.engines_opened == 0
    world.produce(1)
    run.done("extract")
    run.done("extract")
    assert world.engines_opened == 1


def test_a_new_partition_is_planned_as_an_addition(world: FakePlatform, run: Shell) -> None:
    run.done("extract")
    world.kafka.add_partitions(TOPIC, 3)
    world.produce(1, partition=2)
    assert run.json("plan")["extract"]["additions"] == [{"topic": TOPIC, "partition": 2, "start": 0}]
    assert "new partition shop.orders.v1[2] at 0" in run.done("plan")


def test_extract_reads_the_topics_it_is_given(world: FakePlatform, run: Shell) -> None:
    world.source_topics.write_text("* dataset=shop\n")
    world.kafka.create_topic("other", 1)
    world.produce(1)
    world.produce(1, topic="other")
    assert [p["topic"] for p in run.json("extract", "--topic", "other")["partitions"]] == ["other"]


@pytest.mark.parametrize(("encoding", "stopped"), [("latin-1", {"caf\ufffd"}), ("utf-8-sig", {"café"})])
def test_a_list_in_another_encoding_stops_the_lines_that_need_it(
    world: FakePlatform, run: Shell, encoding: str, stopped: set[str]
) -> None:
    lines = f"{TOPIC} dataset=shop table=orders  # of the café\ncafé dataset=shop\n"
    world.source_topics.write_bytes(lines.encode(encoding))
    world.produce(3)
    result = run("extract", "--json")
    assert result.exit_code == ExitCode.FAILED
    assert {stop["topic"] for stop in json.loads(result.stdout)["stops"]} == stopped
    assert run.json("status")["partitions"][0]["records"] == 3, "the other line's topic goes on"
    assert {stop["reason"] for stop in run.json("plan")["extract"]["stops"]} == {"wrong_entry"}, (
        "and exits with 0"
    )


def test_a_deleted_topic_fails_the_run_though_nothing_is_left_to_read(
    world: FakePlatform, run: Shell
) -> None:
    world.source_topics.write_text(
        f"{TOPIC} dataset=shop table=orders\nnew.topic dataset=shop\ntmp.* dataset=shop\n"
    )
    world.kafka.create_topic("tmp.1", 1)
    world.produce(3)
    run.done("extract")
    world.kafka.delete_topic(TOPIC)
    assert run("extract").exit_code == ExitCode.FAILED
    [stop] = run.json("status")["stops"]
    assert (stop["topic"], stop["partition"], stop["reason"]) == (TOPIC, None, "topic_gone")
    assert run("reconcile").exit_code == ExitCode.FAILED
    run.done("load")
    world.source_topics.write_text("tmp.* dataset=shop\n")
    run.done("extract")
    assert run.json("status")["stops"] == []


def test_a_deleted_topic_of_a_pattern_is_missed_until_somebody_says_that_it_is_to_be_gone(
    world: FakePlatform, run: Shell
) -> None:
    world.source_topics.write_text("tmp.* dataset=shop table=orders backup=true\n")
    for name in ("tmp.1", "tmp.2", "tmp.kept"):
        world.kafka.create_topic(name, 1)
        world.kafka.produce(TopicPartition(name, 0), GOOD)
    run.done("extract")
    run.done("load")
    command = "kbq resume --topic tmp.1 --gone"
    for name in ("tmp.1", "tmp.2"):
        world.kafka.delete_topic(name)
    result = run("extract")
    assert (result.exit_code, command in result.stdout) == (ExitCode.FAILED, True)
    for document in (run.json("status"), run.json("plan")["extract"]):
        assert {(stop["topic"], stop["reason"]) for stop in document["stops"]} == {
            ("tmp.1", "topic_gone"),
            ("tmp.2", "topic_gone"),
        }
    assert command in run("check").stdout
    assert run("reconcile").exit_code == ExitCode.FAILED
    run.done("resume", "--topic", "tmp.?", "--gone", "--yes")
    assert run.json("status")["stops"] == []
    run.done("extract")
    run.done("check")
    run.done("reconcile")
    assert run("resume", "--topic", "tmp.*", "--gone", "--yes").exit_code != 0, "nothing is gone any more"
    # Once the broker shows it again, it is missed like any other.
    world.kafka.create_topic("tmp.1", 1)
    assert [stop["reason"] for stop in run.json("plan")["extract"]["stops"]] == ["recreated"]
    run("extract")
    world.kafka.delete_topic("tmp.1")
    assert {stop["reason"] for stop in run.json("status")["stops"]} == {"topic_gone"}


@pytest.mark.parametrize("command", ["extract", "plan"])
def test_a_topic_that_would_select_nothing_is_an_error(run: Shell, command: str) -> None:
    result = run(command, "--topic", "shop.order.v1")
    assert result.exit_code == 1
    assert "not extracted: shop.order.v1" in result.stderr


def test_a_stopped_partition_is_reported_with_its_commands_and_exit_code_1(
    world: FakePlatform, run: Shell
) -> None:
    world.produce(value=UNKNOWN_SCHEMA)
    world.produce(1, partition=1)
    result = run("extract")
    assert result.exit_code == 1
    assert "next: kbq resume --topic shop.orders.v1 --partition 0 --as-errors" in result.stdout
    (stop,) = run.json("plan")["extract"]["stops"]
    assert (stop["topic"], stop["partition"], stop["reason"]) == (TOPIC, 0, "unknown_schema")
    assert stop["commands"] == [
        f"kbq resume --topic {TOPIC} --partition 0",
        f"kbq resume --topic {TOPIC} --partition 0 --as-errors",
    ]


def test_a_registry_that_is_down_means_try_again(world: FakePlatform, run: Shell) -> None:
    world.produce(2)
    world.registry.down = True
    result = run("extract")
    assert result.exit_code == 75
    assert "interrupted: shop.orders.v1[0]" in result.stdout
    world.registry.down = False
    assert run.json("extract")["records"] == 2


def test_a_broker_that_is_down_means_try_again(world: FakePlatform, run: Shell) -> None:
    world.kafka.down = True
    result = run("extract")
    assert result.exit_code == 75
    assert "next: " in result.stderr
    assert "Traceback" not in result.output


def test_load_takes_the_tables_it_is_given(world: FakePlatform, run: Shell) -> None:
    world.produce(1)
    world.produce(value=POISON)
    run.done("extract")
    assert [t["table"] for t in run.json("load", "--table", "shop.kbq_errors")["tables"]] == [
        "shop.kbq_errors"
    ]
    assert run("load", "--table", "shop.nowhere").exit_code == 1
    assert run("load", "--table", "nodot").exit_code == 1
    assert world.warehouse.rows(ORDERS) == ()


def test_a_parked_table_is_reported_with_its_command_and_exit_code_1(world: FakePlatform, run: Shell) -> None:
    world.produce(1)
    run.done("extract")
    world.warehouse.job_errors = lambda job: PERMANENT
    result = run("load")
    assert result.exit_code == 1
    assert "next: kbq resume --table shop.orders" in result.stdout


@pytest.mark.parametrize("silent", [False, True])
def test_a_warehouse_that_fails_for_now_means_try_again(
    world: FakePlatform, run: Shell, silent: bool
) -> None:
    world.produce(1)
    run.done("extract")
    if silent:
        view = world.warehouse.view("cli")
        world.warehouse.faults = lambda call: Outcome.UNAVAILABLE
        world.warehouse = view  # type: ignore[assignment]
    else:
        world.warehouse.job_errors = lambda job: TRANSIENT
    assert run("load").exit_code == 75


def test_a_commit_that_a_load_cannot_read_now_means_try_again(world: FakePlatform, run: Shell) -> None:
    world.produce(1)
    run.done("extract")
    commit = f"commits/{TOPIC}.json"
    world.store.faults = lambda call: Outcome.UNAVAILABLE if call.target == commit else Outcome.OK
    store, world.store = world.store, world.store.view("cli")  # type: ignore[assignment]
    result = run("load")
    assert (result.exit_code, f"interrupted: {commit}: " in result.stdout) == (75, True)
    assert [*json.loads(run("load", "--json").stdout)["unavailable"]] == [commit]
    world.store = store
    assert run.json("load")["rows"] == 1


@pytest.mark.parametrize("registry", ["commits/_topics.json", "tables/_tables.json"])
@pytest.mark.parametrize("arguments", [("extract",), ("load",), ("plan", "load")])
def test_a_registry_that_cannot_be_read_now_means_try_again_and_says_why(
    world: FakePlatform, run: Shell, registry: str, arguments: tuple[str, ...]
) -> None:
    world.produce(1)
    run.done("extract")
    run.done("load")
    world.store.faults = lambda call: Outcome.UNAVAILABLE if call.target == registry else Outcome.OK
    world.store = world.store.view("cli")  # type: ignore[assignment]
    result = run(*arguments)
    assert result.exit_code == ExitCode.TRY_AGAIN
    assert f"without {registry}, a lost object would look like a new one" in result.stderr


def test_clean_deletes_orphans_and_says_how_many(world: FakePlatform, run: Shell) -> None:
    world.produce(1)
    run.done("extract")
    orphan = f"staging/1-dead/{TOPIC}.0.shop.orders.1.0.avro"
    world.store.create(orphan, b"")
    assert run.json("clean")["orphans"] == 1
    assert orphan not in world.objects()
    assert "deleted 0 orphans" in run.done("clean")


def test_a_gap_that_the_policy_records_is_in_the_plan(world: FakePlatform, run: Shell) -> None:
    world.source_topics.write_text(f"{TOPIC} dataset=shop table=orders on_retention_loss=record\n")
    world.produce(3)
    run.done("extract")
    world.produce(3)
    world.kafka.delete_before(TopicPartition(TOPIC, 0), 5)
    assert run.json("plan")["extract"]["gaps"] == [{"topic": TOPIC, "partition": 0, "until": 5}]
    assert "gap of shop.orders.v1[0] until 5" in run.done("plan")


def test_debug_shows_where_an_error_came_from(world: FakePlatform, run: Shell) -> None:
    world.kafka.down = True
    result = run("--debug", "status")
    assert "Traceback" in result.stderr
    assert result.exit_code == 75


def test_documents_are_documents_whatever_the_exit_code(world: FakePlatform, run: Shell) -> None:
    world.produce(value=UNKNOWN_SCHEMA)
    world.produce(1, partition=1, value=GOOD)
    result = run("extract", "--json")
    assert result.exit_code == 1
    assert [stop["reason"] for stop in json.loads(result.stdout)["stops"]] == ["unknown_schema"]


def test_a_resident_extraction_prints_what_each_cycle_read_and_each_stop_once(
    world: FakePlatform, run: Shell
) -> None:
    world.produce(3)
    run("extract")
    world.produce(2, partition=1)
    world.kafka.delete_before(TopicPartition(TOPIC, 1), 1)
    world.produce(2)
    result = run("extract", "--resident", "--every", "0.1", "--cycles", "3")
    assert result.exit_code == 0
    assert result.stdout.count("extracted 2 records of 1 partition in ") == 1
    assert result.stdout.count("stopped: ") == 1
    assert result.stderr == "ended: 3 cycles are done\n"


def test_a_resident_extraction_can_be_read_by_programs(world: FakePlatform, run: Shell) -> None:
    world.produce(3)
    lines = run("extract", "--resident", "--every", "0.1", "--cycles", "2", "--json").stdout.splitlines()
    assert [json.loads(line)["records"] for line in lines] == [3, 0]


@pytest.mark.parametrize("option", [("--every", "5"), ("--cycles", "2")])
def test_options_of_a_resident_extraction_need_one(run: Shell, option: tuple[str, str]) -> None:
    result = run("extract", *option)
    assert (result.exit_code, "need --resident" in result.stderr) == (2, True)


def test_a_topic_of_the_list_that_the_broker_does_not_have_is_named(world: FakePlatform, run: Shell) -> None:
    world.produce(2)
    with world.source_topics.open("a") as file:
        file.write("\nshop.ordrs dataset=shop\nother-* dataset=shop\n")
    sentence = "not on the broker: shop.ordrs; next: kbq doctor\n"
    for command in ("plan", "extract", "extract"):
        found = run(command)
        assert (found.exit_code, found.stderr) == (0, sentence), command
    world.kafka.topics_by_name.pop(TOPIC)
    gone = run("extract")
    assert (gone.exit_code, gone.stderr, "topic_gone" in gone.stdout) == (1, sentence, True)


@pytest.mark.parametrize("options", ["", " backup=true"], ids=["tables", "tables and backup"])
def test_a_topic_that_may_not_be_read_needs_a_person_and_the_others_continue(
    world: FakePlatform, run: Shell, options: str
) -> None:
    world.source_topics.write_text(f"* dataset=shop table=orders{options}\n")
    world.kafka.create_topic("other", 1)
    world.produce(2)
    world.produce(3, topic="other")
    world.kafka.refused.add("other")
    ended = run("extract")
    failed = "failed: other[0]: other[0] [0, 3): Topic authorization failed\n  next: grant the ACL\n"
    assert failed in ended.stdout and "interrupted" not in ended.stdout
    assert (f"backup {failed}" in ended.stdout) == bool(options)
    assert ended.exit_code == ExitCode.FAILED
    assert {p["topic"]: p["position"] for p in run.json("status")["partitions"] if p["lag"]} == {"other": 0}
    assert "other[0]: failed: in 1 run: other[0] [0, 3): Topic authorization failed" in run.done("status")
    assert "Topic authorization failed" in run("check").stdout, "at once: no retry can help"
    world.kafka.refused.clear()
    run.done("extract")
    assert not any(p["lag"] for p in run.json("status")["partitions"]), "without another command"
    assert "authorization" not in run("check").stdout
