"""`kbq where` finds a record anywhere between Kafka and its row, or reports that it is nowhere."""

from __future__ import annotations

import json
import struct
from dataclasses import replace

import pytest

from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets_tests.cli.conftest import Shell
from kbq_assets_tests.fakes.platform import GOOD, TOPIC, UNKNOWN_SCHEMA, FakePlatform

#: Of schema 1, cut in its value.
DAMAGED = struct.pack(">bI", 0, 1) + b"\x80"
TP = TopicPartition(TOPIC, 0)
RECORD = ("where", TOPIC, "0", "0")


def kinds(run: Shell, *args: str) -> list[str]:
    return [place["kind"] for place in json.loads(run(*(args or RECORD), "--json").stdout)]


def staged(world: FakePlatform) -> str:
    [path] = [entry.path for entry in world.store.list("staging/")]
    return path


def test_a_topic_that_kbq_does_not_know(run: Shell) -> None:
    shown = run("where", "nowhere", "0", "7")
    assert (shown.exit_code, "it has no commit, and is not in the source list" in shown.stdout) == (1, True)


def test_a_topic_that_is_not_extracted_yet(world: FakePlatform, run: Shell) -> None:
    world.produce(1)
    assert f"{TP} is not extracted yet" in run.done("where", TOPIC, "0", "0")


def test_a_record_on_its_way_to_the_warehouse(world: FakePlatform, run: Shell) -> None:
    world.produce(1, partition=1)
    run.done("extract")
    run.done("load")
    world.produce(3)
    run.done("extract")
    assert "not extracted yet: the position is 3" in run.done("where", TOPIC, "0", "3")
    shown = run.done(*RECORD)
    assert "3 rows of offsets 0 to 2: waits for the next load of shop.orders" in shown
    assert "next: kbq load\n" in shown
    run.done("park", "--table", "shop.orders", "--yes")
    parked = run.done(*RECORD)
    assert (
        "waits: shop.orders is parked: operator" in parked
        and "next: kbq resume --table shop.orders" in parked
    )
    run.done("resume", "--table", "shop.orders", "--yes")
    run.done("load")
    assert "1 row, epoch 1" in run.done(*RECORD)
    run.done("extract")  # prunes the window
    assert kinds(run) == ["commit", "table"]
    assert kinds(run, *RECORD, "--no-query") == ["commit"]


def test_a_bad_record_is_in_the_error_table_with_its_reason(world: FakePlatform, run: Shell) -> None:
    world.produce(value=DAMAGED)
    run.done("extract")
    run.done("load")
    shown = run.done(*RECORD)
    assert "TRUNCATED" in shown and f"next: kbq errors show {TOPIC} 0 0" in shown
    assert kinds(run)[-1] == "error table"


def test_a_record_behind_a_stop(world: FakePlatform, run: Shell) -> None:
    world.produce(value=UNKNOWN_SCHEMA)
    run("extract")
    assert "not extracted yet: the position is 0; it is stopped: " in run.done(*RECORD)


@pytest.mark.parametrize("backup", ["true", "only"])
def test_a_record_s_copies_are_named_by_file_and_epoch(world: FakePlatform, run: Shell, backup: str) -> None:
    world.source_topics.write_text(f"{TOPIC} dataset=shop table=orders backup={backup}\n")
    world.produce(3)
    run.done("extract")
    places = json.loads(run.done("where", TOPIC, "0", "1", "--json"))
    [copy] = [place for place in places if place["kind"] == "backup"]
    assert copy["name"] in world.store.objects and copy["name"].startswith(f"backup/{TOPIC}/")
    found = "3 records of offsets 0 to 2, epoch 1: block 0 at byte {}, record 1 of the block (from 0)"
    assert copy["text"] == found.format(copy["block"]["byte"])
    data = world.store.objects[copy["name"]].data
    marker = data[-16:]  # it ends the header, then every block
    assert copy["block"] == {"block": 0, "byte": data.index(marker) + len(marker), "index": 1}
    assert (len(places) == 1) == (backup == "only"), "nothing is said of tables that there are not"
    run.done("backup", "reset", "--topic", TOPIC, "--yes")
    run.done("extract")
    assert kinds(run, "where", TOPIC, "0", "1").count("backup") == 2
    assert "backup" not in kinds(run, "where", TOPIC, "0", "3")


def test_a_file_of_the_backup(world: FakePlatform, run: Shell) -> None:
    world.source_topics.write_text(world.source_topics.read_text().rstrip() + " backup=true\n")
    world.produce(3)
    run.done("extract")
    [path] = [path for path in world.objects() if path.startswith(f"backup/{TOPIC}/")]
    assert "3 records" in run.done("where", "--file", path)
    gone = run.done("where", "--file", path.replace("1_0_", "7_0_"))
    assert "the backup lists no such file" in gone and "next: kbq backup status" in gone
    assert run("where", "--file", "backup/x").exit_code == 1


def test_a_copy_explains_no_missing_row(world: FakePlatform, run: Shell) -> None:
    world.source_topics.write_text(f"{TOPIC} dataset=shop table=orders backup=true\n")
    world.produce(3)
    for command in ("extract", "load", "extract"):
        run.done(command)
    next(iter(world.warehouse.stored.values())).rows.clear()
    lost = run(*RECORD)
    assert lost.exit_code == 1 and "3 records of offsets 0 to 2, epoch 1: block 0 at byte" in lost.stdout


def test_a_copy_says_that_it_lacks_an_offset_or_is_damaged(world: FakePlatform, run: Shell) -> None:
    world.source_topics.write_text(f"{TOPIC} dataset=shop table=orders backup=only\n")
    world.produce()
    world.kafka.gap(TP)
    world.produce()
    run.done("extract")
    assert "none is at offset 1: it has no record, or was erased" in run.done("where", TOPIC, "0", "1")
    assert "record 1 of the block (from 0)" in run.done("where", TOPIC, "0", "2")
    [path] = [path for path in world.objects() if path.startswith(f"backup/{TOPIC}/")]
    world.store.objects[path] = replace(world.store.objects[path], data=b"Obj")
    damaged = run.done("where", TOPIC, "0", "2")
    assert (
        "it is not an Avro container file" in damaged
        and f"next: kbq backup verify --topic {TOPIC}" in damaged
    )


def test_a_file_of_the_backup_that_was_merged_names_the_merged_one(world: FakePlatform, run: Shell) -> None:
    world.source_topics.write_text(f"{TOPIC} dataset=shop table=orders backup=only\n")
    for _ in range(12):
        world.produce()
        run.done("extract")
    before = sorted(path for path in world.objects() if path.startswith(f"backup/{TOPIC}/"))
    run.done("backup", "compact", "--topic", TOPIC)
    [gone, merged] = run.json("where", "--file", before[5])
    assert "it was merged" in gone["text"] and "/merge-" in merged["name"]
    assert "record 0 of the block" in run.done("where", TOPIC, "0", "5")


def test_a_backup_that_cannot_be_read_keeps_no_other_place_away(world: FakePlatform, run: Shell) -> None:
    world.source_topics.write_text(f"{TOPIC} dataset=shop table=orders backup=true\n")
    world.produce(1)
    run.done("extract")
    path = f"backup/@/commits/{TOPIC}.json"
    world.store.objects[path] = replace(world.store.objects[path], data=b"{")
    assert set(kinds(run)) == {"commit", "staged file", "backup"}
    assert path.removeprefix("backup/@/") in run(*RECORD).stdout


def test_a_record_that_was_given_up(world: FakePlatform, run: Shell) -> None:
    world.produce()
    run.done("extract")
    world.produce(3)
    world.kafka.delete_before(TopicPartition(TOPIC, 0), 3)
    run("extract")
    run.done("accept-gap", "--topic", TOPIC, "--partition", "0", "--yes")
    assert "given up by kbq accept-gap" in run.done("where", TOPIC, "0", "2")


def test_a_record_in_quarantine(world: FakePlatform, run: Shell) -> None:
    world.produce()
    run.done("extract")
    path = staged(world)
    world.warehouse.bad_paths.add(path)
    run.done("load")
    shown = run.done(*RECORD)
    assert path.replace("staging/", "quarantine/") in shown
    assert f"next: kbq quarantine retry {path}" in shown


@pytest.mark.parametrize("settled", ["kbq order skip", "kbq quarantine drop"])
def test_a_record_that_no_job_loaded_is_not_called_loaded(
    world: FakePlatform, run: Shell, settled: str
) -> None:
    if settled == "kbq order skip":
        world.source_topics.write_text(f"{TOPIC} dataset=shop table=orders order=offset\n")
    world.produce()
    run.done("extract")
    world.warehouse.bad_paths.add(staged(world))
    run("load")
    if settled == "kbq order skip":
        run.done("order", "skip", "shop.orders", "--batch", "1", "--reason", "by-hand", "--yes")
    else:
        run.done("quarantine", "drop", "--table", "shop.orders", "--yes")
    shown = run.done(*RECORD)
    assert "given up" in shown and "loaded" not in shown


def test_a_record_that_a_policy_skipped_is_nowhere(world: FakePlatform, run: Shell) -> None:
    world.source_topics.write_text(f"{TOPIC} dataset=shop table=orders errors=skip")
    world.produce(value=DAMAGED)
    run.done("extract")
    run.done("load")
    result = run(*RECORD)
    assert (result.exit_code, "no row, file or gap contains it" in result.stdout) == (1, True)


def test_a_file_and_a_job_lead_to_each_other(world: FakePlatform, run: Shell) -> None:
    world.produce(2)
    run.done("extract")
    path = staged(world)
    assert "2 rows of offsets 0 to 1" in run.done("where", "--file", path)
    run.done("load")
    jobs = world.warehouse.jobs.values()
    [job] = {each.status.job_id for each in jobs if any(path in uri for uri in each.status.source_uris)}
    [place] = run.json("where", "--job", job)
    assert path in place["name"]
    assert place["text"] == f"{TOPIC}[0] from offset 0, epoch 1, for shop.orders: loaded 2 rows in total"
    world.produce(1, partition=1)
    run.done("extract")
    run.done("load")
    run.done("extract")
    [file, loaded] = run.json("where", "--file", path)
    assert file["text"].endswith("for shop.orders: loaded")
    assert (loaded["kind"], loaded["name"]) == ("load job", job)
    assert loaded["text"] == "loaded it into shop.orders: 2 rows of 1 file"
    assert loaded["commands"] == [f"kbq where --job {job}"]
    assert run("where", "--job", "kbq-unknown-1").exit_code == 1


def test_the_name_of_another_attempt_s_file_is_not_taken_for_loaded(world: FakePlatform, run: Shell) -> None:
    world.produce(2)
    run.done("extract")
    path = staged(world)
    other = path.replace("/1-", "/1-x")
    assert "nothing of it is loaded" in run.done("where", "--file", other)
    for command in ("load", "extract"):
        run.done(command)
    [place] = run.json("where", "--file", other)
    assert (
        "shop.orders has everything of its schema below offset 2; none of the last 100 jobs read it"
        in place["text"]
    )
    later = other.replace(".0.avro", ".2.avro")
    assert "its attempt failed, or it was given up" in run.done("where", "--file", later)


def test_files_are_found_by_their_addresses_too(world: FakePlatform, run: Shell) -> None:
    world.source_topics.write_text(f"{TOPIC} dataset=shop table=orders backup=true\n")
    world.produce(2)
    run.done("extract")
    path = staged(world)
    [copy] = [path for path in world.objects() if path.startswith(f"backup/{TOPIC}/")]
    for address in (f"gs://bucket/staging/{path}", f"file:///kbq/backup/{path}", f"/kbq/{path}"):
        assert run.json("where", "--file", address)[0]["name"] == path
    assert run.json("where", "--file", f"gs://other/x/{copy}")[0]["name"] == copy
    of_replay = run.json("where", "--file", f"gs://bucket/replayed/7/{path}")
    assert (of_replay[0]["kind"], of_replay[0]["commands"]) == ("replay", ["kbq replay status 7"])


@pytest.mark.parametrize("folder", ["staging", "quarantine", "gs://bucket/quarantine/lake"])
def test_a_file_in_quarantine(world: FakePlatform, run: Shell, folder: str) -> None:
    world.produce()
    run.done("extract")
    path = staged(world)
    world.warehouse.bad_paths.add(path)
    run.done("load")
    run.done("extract")
    shown = run.done("where", "--file", path.replace("staging", folder))
    assert f"next: kbq quarantine retry {path}" in shown


@pytest.mark.parametrize(
    "args",
    [
        ("t",),
        ("t", "0"),
        (),
        ("t", "0", "1", "--job", "j"),
        ("--file", "x", "--job", "j"),
        ("--key", "k"),
        ("t", "0", "1", "--time", "5"),
        ("t", "--file", "x"),
    ],
)
def test_one_question_at_a_time(run: Shell, args: tuple[str, ...]) -> None:
    assert run("where", *args).exit_code == 2


def found(run: Shell, *args: str) -> list[tuple[int, int]]:
    return [(each["partition"], each["offset"]) for each in run.json("where", TOPIC, *args)]


@pytest.mark.parametrize("options", ["", " backup=true"])
def test_records_of_a_time_or_with_a_key(world: FakePlatform, run: Shell, options: str) -> None:
    world.source_topics.write_text(world.source_topics.read_text().rstrip() + options + "\n")
    for minute, key in enumerate([b"a", b"b", b"a", None, b"b"], 1):
        world.kafka.produce(TP, GOOD, key=key, timestamp=minute * 60_000)
    world.kafka.produce(TopicPartition(TOPIC, 1), GOOD, key=b"a", timestamp=60_000)
    run.done("extract")
    run.done("load")
    assert found(run, "--time", "1970-01-01T00:03Z") == [(0, 2)]
    assert found(run, "--key", "a") == [(0, 0), (0, 2), (1, 0)]
    assert found(run, "0", "--key", "a", "--limit", "1") == [(0, 0)]
    shown = run.done("where", TOPIC, "0", "--key", "b")
    assert f"{TOPIC}[0] offset 1:" in shown and f"{TOPIC}[0] offset 4:" in shown
    world.kafka.delete_before(TP, 3)
    kept = [(0, 0), (0, 2), (1, 0)] if options else [(1, 0)]
    assert found(run, "--key", "a") == kept
    assert found(run, "0", "--time", "1970-01-01T00:02Z") == [(0, 1) if options else (0, 3)]
    none = run("where", TOPIC, "--key", "nobody")
    assert (none.exit_code, "there is no such record" in none.output) == (1, True)
    assert "is not on the broker" in run("where", "nowhere", "--key", "a").output


def test_a_name_that_is_no_staged_file(run: Shell) -> None:
    result = run("where", "--file", "x")
    assert (result.exit_code, "staging/<epoch>-<attempt>/" in result.output + result.stderr) == (1, True)
