"""The operator's commands say what they give up, ask for confirmation, and do exactly that."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import pytest
from rich.console import Console

from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.ports.warehouse import JobError
from kbq_assets_tests.cli.conftest import Shell
from kbq_assets_tests.fakes.platform import POISON, TOPIC, UNKNOWN_SCHEMA, FakePlatform

TP = TopicPartition(TOPIC, 0)
ORDERS = TableReference("shop", "orders")


def stopped_by_schema(world: FakePlatform, run: Shell) -> list[str]:
    world.produce(1)
    world.produce(value=UNKNOWN_SCHEMA)
    run("extract")
    return ["resume", "--topic", TOPIC]


def parked(world: FakePlatform, run: Shell) -> list[str]:
    world.produce(1)
    run.done("extract")
    world.warehouse.job_errors = lambda job: JobError("invalid", "no", transient=False)
    run("load")
    world.warehouse.job_errors = None
    return ["resume", "--table", "shop.orders"]


def loaded_table(world: FakePlatform, run: Shell) -> list[str]:
    world.produce(1)
    run.done("extract")
    run.done("load")
    return ["park", "--table", "shop.orders"]


def lost_to_retention(world: FakePlatform, run: Shell) -> list[str]:
    world.produce(3)
    run.done("extract")
    world.produce(5)
    world.kafka.delete_before(TP, 6)
    return ["accept-gap", "--topic", TOPIC, "--partition", "0"]


def recreated(world: FakePlatform, run: Shell) -> list[str]:
    world.produce(3)
    run.done("extract")
    run.done("load")
    world.kafka.recreate_topic(TOPIC)
    return ["reset", "--topic", TOPIC]


def unseen(world: FakePlatform, run: Shell) -> list[str]:
    world.produce(3)
    return ["bootstrap", "--topic", TOPIC, "--at", "latest"]


def with_done_files(world: FakePlatform, run: Shell) -> list[str]:
    world.produce(5)
    world.store.create(f"done/{TOPIC}.0.shop.orders.0.2.done", b"")
    return ["bootstrap", "--from-done-files"]


SITUATIONS = [
    stopped_by_schema,
    parked,
    loaded_table,
    lost_to_retention,
    recreated,
    unseen,
    with_done_files,
]
Situation = Callable[[FakePlatform, Shell], list[str]]


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("answer", ["n\n", "\n", ""])
def test_without_a_yes_nothing_changes(
    world: FakePlatform, run: Shell, situation: Situation, answer: str
) -> None:
    command = situation(world, run)
    before = world.objects()
    result = run(*command, answer=answer)
    assert result.exit_code == 1
    assert "nothing was changed" in result.stdout
    assert world.objects() == before


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("yes", [False, True])
def test_a_yes_does_it(world: FakePlatform, run: Shell, situation: Situation, yes: bool) -> None:
    command = situation(world, run)
    before = world.objects()
    result = run(*command, *(["--yes"] if yes else []), answer=None if yes else "y\n")
    assert result.exit_code == 0, result.output
    assert "done: " in result.stdout
    assert world.objects() != before


def test_a_resumed_partition_is_read_again(world: FakePlatform, run: Shell) -> None:
    run.done(*stopped_by_schema(world, run), "--yes")
    world.registry.schemas[99] = world.registry.schemas[1]
    assert run.json("extract")["staged"] == 1
    assert run.json("status")["stops"] == []


def test_bad_records_can_be_taken_as_error_rows(world: FakePlatform, run: Shell) -> None:
    command = stopped_by_schema(world, run)
    result = run(*command, "--partition", "0", "--as-errors", "--yes")
    assert "its bad records become error rows: up to 1, by its offsets [1, 2)" in result.stdout
    report = run.json("extract")
    assert (report["staged"], report["errors"]) == (0, 1)


def test_an_accepted_gap_is_reported_counted_and_skipped(world: FakePlatform, run: Shell) -> None:
    command = lost_to_retention(world, run)
    result = run(*command, "--yes")
    assert "gives up shop.orders.v1[0] [3, 6): 3 positions" in result.stdout
    assert run.json("extract")["records"] == 2
    zero = run.json("status")["partitions"][0]
    assert (zero["lost"], zero["position"]) == (3, 8)


@pytest.mark.parametrize(
    "command",
    [
        ("accept-gap", "--topic", "mistyped", "--partition", "0"),
        ("restage", "staging/1-4f0c9d21a7/mistyped.0.shop.orders.17.4200.avro"),
    ],
)
def test_a_topic_that_was_never_read_is_named_and_the_next_step_lists_those_that_were(
    run: Shell, command: tuple[str, ...]
) -> None:
    refused = run(*command)
    assert refused.exit_code == 1
    assert "mistyped" in refused.output and "next: kbq status lists" in refused.output


def test_a_reset_begins_a_new_epoch_and_old_rows_stay(world: FakePlatform, run: Shell) -> None:
    result = run(*recreated(world, run), "--yes")
    assert "epoch 1 -> 2" in result.stdout
    assert "shop.orders.v1[0]: position 3 -> 0" in result.stdout
    world.produce(2)
    run.done("extract")
    run.done("load")
    assert [(row.epoch, row.offset) for row in world.warehouse.rows(ORDERS)] == [
        (1, 0),
        (1, 1),
        (1, 2),
        (2, 0),
        (2, 1),
    ]


def test_a_reset_refuses_while_rows_wait_to_be_loaded(world: FakePlatform, run: Shell) -> None:
    world.produce(3)
    run.done("extract")
    before = world.objects()
    result = run("reset", "--topic", TOPIC, "--yes")
    assert result.exit_code == 3
    assert "--give-up-pending" in result.stderr
    assert world.objects() == before
    result = run("reset", "--topic", TOPIC, "--give-up-pending", "--at", "latest", "--yes")
    assert "gives up 3 staged rows not loaded yet" in result.stdout
    assert run.json("load")["rows"] == 0


def test_a_narrow_terminal_gets_whole_paths_for_the_next_command(
    world: FakePlatform, run: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.produce(2)
    run.done("extract")
    (path,) = (each.path for each in world.store.list("staging/"))
    world.warehouse.bad_paths.add(path)
    run.done("load")
    monkeypatch.setattr("kbq_assets.cli.quarantine.console", partial(Console, width=60, soft_wrap=True))
    _, line = run.done("quarantine", "list").splitlines()
    assert line.split()[0] == path.replace("staging/", "quarantine/")


def test_a_file_in_quarantine_is_listed_and_brought_back(world: FakePlatform, run: Shell) -> None:
    for _ in range(3):
        world.produce(2)
        run.done("extract")
    path = sorted(p for p in world.objects() if p.startswith("staging/"))[0]
    world.warehouse.bad_paths.add(path)
    run("load")
    kept = path.replace("staging/", "quarantine/")
    [listed] = run.json("quarantine", "list", "--table", "shop.orders")
    assert (listed["path"], listed["rows"], listed["state"]) == (kept, 2, "in quarantine")
    assert "it is one of the bad files" in listed["error"]
    assert listed["until_offset"] - listed["first_offset"] == 2
    assert run("check").exit_code == 1
    world.warehouse.bad_paths.clear()
    run.done("quarantine", "retry", kept, "--yes")
    assert "waits to be loaded" in run.done("quarantine", "list")
    run.done("load")
    rows = world.warehouse.rows(TableReference("shop", "orders"))
    assert sorted(row.offset for row in rows) == list(range(6))
    assert "no file is in quarantine" in run.done("quarantine", "list")
    run.done("check")
    run.done("reconcile")
    assert "kbq quarantine list" in run("quarantine", "retry", path, "--yes").output
    assert run("quarantine", "retry").exit_code == 2


def test_a_table_that_refuses_most_files_continues_with_them_in_quarantine(
    world: FakePlatform, run: Shell
) -> None:
    for partition in (0, 1):
        world.produce(2, partition=partition)
    run.done("extract")
    world.warehouse.bad_paths |= {path for path in world.objects() if path.startswith("staging/")}
    assert "2 of 2 files are refused" in run("load").output
    assert run.json("quarantine", "list") == []
    run.done("resume", "--table", "shop.orders", "--to-quarantine", "--yes")
    run("load")
    assert len(run.json("quarantine", "list")) == 2
    run.done("quarantine", "drop", "--table", "shop.orders", "--yes")
    assert (run.json("quarantine", "list"), [p for p in world.objects() if p.startswith("quarantine/")]) == (
        [],
        [],
    )
    run.done("check")


def _lost_in_the_backlog(world: FakePlatform, run: Shell) -> None:
    """Six rows in the parked table's backlog, three of them in a staged file that is gone."""
    for partition in (0, 1):
        world.produce(3, partition=partition)
    run.done("extract")
    world.store.delete(next(path for path in world.objects() if path.startswith("staging/")))
    assert "missing_files" in run("load").output
    run.done("extract")
    assert not any(
        path.startswith("commits/shop") and b"staging/" in data for path, data in world.objects().items()
    )


def test_a_lost_file_in_a_backlog_is_given_up_by_the_documented_commands(
    world: FakePlatform, run: Shell
) -> None:
    _lost_in_the_backlog(world, run)
    shown = run("reset", "--topic", TOPIC, "--give-up-pending", answer="n")
    assert "gives up 6 staged rows in the backlog of shop.orders" in shown.output
    run.done("reset", "--topic", TOPIC, "--give-up-pending", "--yes")
    run.done("resume", "--table", "shop.orders", "--yes")
    run.done("load")
    run.done("extract")
    run.done("load")
    table = TableReference("shop", "orders")
    assert sorted((r.epoch, r.partition, r.offset) for r in world.warehouse.rows(table)) == [
        (2, partition, offset) for partition in (0, 1) for offset in range(3)
    ]
    assert not any(path.startswith("backlog/") for path in world.objects())
    run.done("check")
    run.done("reconcile")


@pytest.mark.parametrize("harm", ["gone", "damaged"])
@pytest.mark.parametrize("place", ["commit", "backlog"])
def test_a_file_is_read_again_by_the_documented_commands(
    world: FakePlatform, run: Shell, harm: str, place: str
) -> None:
    for partition in (0, 1):
        world.produce(3, partition=partition)
    run.done("extract")
    path = next(path for path in world.objects() if path.startswith("staging/"))
    stored = world.store.objects.pop(path)
    if harm == "damaged":
        world.store.objects[path] = dataclasses.replace(
            stored, data=stored.data[:-1] + bytes([stored.data[-1] ^ 1])
        )
    assert path in run("load").output
    if place == "backlog":
        run.done("extract")
    assert "[0, 3) again, for 3 rows" in run("restage", path, answer="n").output
    assert run("load").exit_code != 0
    run.done("restage", path, "--yes")
    run.done("resume", "--table", "shop.orders", "--yes")
    run.done("load")
    rows = world.warehouse.rows(TableReference("shop", "orders"))
    assert sorted((r.epoch, r.partition, r.offset) for r in rows) == [
        (1, p, o) for p in (0, 1) for o in range(3)
    ]
    run.done("extract")
    run.done("clean")
    assert not any(path.startswith(("backlog/", "staging/")) for path in world.objects())
    run.done("check")
    run.done("reconcile")
    assert f"neither commit nor backlog lists {path}" in run("restage", path, "--yes").output


def test_a_range_that_kafka_no_longer_has_is_not_read_again(world: FakePlatform, run: Shell) -> None:
    world.produce(3)
    run.done("extract")
    path = next(path for path in world.objects() if path.startswith("staging/"))
    world.kafka.delete_before(TopicPartition(TOPIC, 0), 1)
    result = run("restage", path, "--yes")
    assert result.exit_code == 3
    assert f"Kafka no longer has {TOPIC}[0] [0, 3): it has [1, 3)" in result.output
    assert f"kbq reset --topic {TOPIC} --give-up-pending" in result.output


def test_other_rows_than_the_files_replace_nothing(
    world: FakePlatform, run: Shell, unchanged: Callable[[], bool]
) -> None:
    world.produce(3)
    run.done("extract")
    path = next(path for path in world.objects() if path.startswith("staging/"))
    before = world.objects()
    world.source_topics.write_text(f"{TOPIC} dataset=shop table=elsewhere\n")
    result = run("restage", path, "--yes")
    assert (result.exit_code, "the range has other rows now" in result.output) == (3, True)
    assert world.objects() == before


def test_a_reset_that_gives_nothing_up_keeps_the_backlog(world: FakePlatform, run: Shell) -> None:
    world.produce(3)
    run.done("extract")
    run.done("load")
    run.done("park", "--table", "shop.orders", "--yes")
    world.produce(2)
    run.done("extract")
    run.done("extract")
    shown = run.done("reset", "--topic", TOPIC, "--yes")
    assert "keeps, for the resumed table, 2 staged rows in the backlog of shop.orders" in shown
    run.done("resume", "--table", "shop.orders", "--yes")
    run.done("load")
    table = TableReference("shop", "orders")
    assert [(row.epoch, row.offset) for row in world.warehouse.rows(table)] == [(1, n) for n in range(5)]


def test_a_reset_of_a_partition_names_what_it_gives_up_of_the_others(world: FakePlatform, run: Shell) -> None:
    """All partitions of a commit begin the new epoch; only the one that is named is read again."""
    world.produce(3)
    world.produce(2, partition=1)
    run.done("extract")
    run.done("load")
    world.produce(1)
    world.produce(4, partition=1)
    run.done("extract")
    shown = run("reset", "--topic", TOPIC, "--partition", "0", "--give-up-pending", answer="n").output
    assert "gives up 5 staged rows not loaded yet" in shown
    assert f"does not read {TOPIC}[1] again: 4 rows of these, from offset 2 on" in shown
    assert "does not read" not in run("reset", "--topic", TOPIC, "--give-up-pending", answer="n").output


def test_what_is_loaded_does_not_hold_up_a_reset(world: FakePlatform, run: Shell) -> None:
    world.produce(3)
    run.done("extract")
    run.done("load")
    run.done("reset", "--topic", TOPIC, "--partition", "0", "--yes")


def test_a_held_table_waits_and_others_go_on(world: FakePlatform, run: Shell) -> None:
    run.done(*loaded_table(world, run), "--yes")
    world.produce(2)
    world.produce(value=POISON)
    run.done("extract")
    assert run("load").exit_code == 1
    assert len(world.warehouse.rows(ORDERS)) == 1
    assert len(world.warehouse.rows(TableReference("shop", "kbq_errors"))) == 1
    run.done("resume", "--table", "shop.orders", "--yes")
    assert run.json("load")["rows"] == 2


@pytest.mark.parametrize(
    ("arguments", "start"),
    [
        (["--at", "earliest"], 0),
        (["--at", "latest"], 4),
        (["--at", "offset", "--offset", "3"], 3),
        (["--at", "timestamp", "--timestamp", "2000"], 2),
        (["--at", "timestamp", "--timestamp", "1970-01-01T00:00:02Z"], 2),
        (["--at", "timestamp", "--timestamp", "1970-01-01T00:00:02"], 2),
        (["--at", "timestamp", "--timestamp", "1970-01-01T02:00:02+02:00"], 2),
    ],
)
def test_a_topic_starts_where_bootstrap_says(
    tmp_path: object, world: FakePlatform, run: Shell, arguments: list[str], start: int
) -> None:
    world.kafka.delete_topic(TOPIC)
    world.kafka.create_topic(TOPIC, 1)
    for second in range(4):
        world.kafka.produce(TP, POISON, timestamp=second * 1000)
    result = run("bootstrap", "--topic", TOPIC, *arguments, "--yes")
    assert f"{TP} starts at {start}" in result.stdout
    assert [p["position"] for p in run.json("status")["partitions"]] == [start]


def test_done_files_say_where_to_go_on(world: FakePlatform, run: Shell) -> None:
    command = with_done_files(world, run)
    result = run("extract")
    assert result.exit_code == 1
    assert f"next: kbq bootstrap --topic {TOPIC} --from-done-files" in result.stdout
    run.done(*command, "--topic", TOPIC, "--yes")
    assert run.json("extract")["records"] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bootstrap"], "give --topic and --at"),
        (["bootstrap", "--topic", TOPIC], "give --topic and --at"),
        (["bootstrap", "--at", "latest"], "give --topic and --at"),
        (["bootstrap", "--topic", TOPIC, "--at", "offset"], "--at offset and --offset go together"),
        (["bootstrap", "--topic", TOPIC, "--at", "latest", "--offset", "1"], "--at offset and --offset"),
        (["bootstrap", "--topic", TOPIC, "--at", "timestamp"], "--at timestamp and --timestamp"),
        (["bootstrap", "--from-done-files", "--at", "latest"], "leave out --at"),
        (
            ["bootstrap", "--topic", TOPIC, "--at", "timestamp", "--timestamp", "yesterday"],
            "neither ISO 8601 nor milliseconds",
        ),
        (["resume"], "give --topic or --table"),
        (["resume", "--topic", TOPIC, "--table", "a.b"], "give --topic or --table"),
        (["resume", "--table", "a.b", "--as-errors"], "need --topic"),
        (["resume", "--table", "a.b", "--partition", "1"], "need --topic"),
        (["reset"], "Missing option '--topic'"),
        (["accept-gap", "--topic", TOPIC], "Missing option '--partition'"),
        (["park"], "Missing option '--table'"),
    ],
)
def test_a_command_line_that_says_too_little_or_too_much_is_a_usage_error(
    world: FakePlatform, run: Shell, arguments: list[str], message: str
) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["bootstrap", "--topic", "nowhere", "--at", "latest"], 1, "topic nowhere is not on the broker"),
        (["bootstrap", "--topic", TOPIC, "--at", "latest"], 3, "already has a commit"),
        (["bootstrap", "--from-done-files", "--topic", "other"], 1, "there are no done files"),
        (["resume", "--topic", TOPIC], 3, "is stopped"),
        (["resume", "--topic", "other"], 1, "other has no commit"),
        (["resume", "--table", "shop.orders"], 3, "is not parked"),
        (["resume", "--table", "shop.other"], 1, "nothing was ever loaded into shop.other"),
        (["park", "--table", "shop.other"], 1, "nothing was ever loaded into shop.other"),
        (["accept-gap", "--topic", TOPIC, "--partition", "0"], 3, "there is no gap"),
        (["accept-gap", "--topic", TOPIC, "--partition", "9"], 1, "has no position"),
        (["reset", "--topic", "nowhere"], 1, "topic nowhere is not on the broker"),
        (["reset", "--topic", TOPIC, "--partition", "9"], 1, "has 2 partitions"),
    ],
)
def test_what_cannot_be_done_is_reported_before_anything_is_asked(
    world: FakePlatform, run: Shell, arguments: list[str], code: int, message: str
) -> None:
    loaded_table(world, run)
    before = world.objects()
    result = run(*arguments)
    assert result.exit_code == code
    assert message in result.stderr
    assert "next: " in result.stderr
    assert "Do it?" not in result.output
    assert world.objects() == before
