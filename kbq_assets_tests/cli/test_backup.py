"""`kbq backup`, and the documented fix for each stop of a backup."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kbq_assets.core.backup import merging
from kbq_assets.core.errors import ConfigurationError, Unavailable
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets_tests.cli.conftest import Shell
from kbq_assets_tests.fakes.platform import TOPIC, UNKNOWN_SCHEMA, FakePlatform

TP = TopicPartition(TOPIC, 0)
OPERATIONS = (Path(__file__).parents[2] / "docs" / "backup.md").read_text(encoding="utf-8")


def source(world: FakePlatform, options: str) -> None:
    world.source_topics.write_text(f"{TOPIC} dataset=shop table=orders {options}\n")


@pytest.fixture
def backed_up(world: FakePlatform, run: Shell) -> FakePlatform:
    source(world, "backup=true")
    world.produce(3)
    run.done("extract")
    return world


def positions(run: Shell) -> dict[str, tuple[int, int]]:
    found = run("backup", "status", "--json")
    assert found.exit_code in (0, 1)
    return {
        f"{p['topic']}[{p['partition']}]": (p["epoch"], p["position"])
        for p in json.loads(found.stdout)["partitions"]
    }


def test_status_shows_positions_and_verify_reads_everything(backed_up: FakePlatform, run: Shell) -> None:
    backed_up.produce(2)
    found = run.json("backup", "status")
    assert [
        (f"{p['topic']}[{p['partition']}]", p["position"], p["lag"], p["records"])
        for p in found["partitions"]
    ] == [
        (f"{TOPIC}[0]", 3, 2, 3),
        (f"{TOPIC}[1]", 0, 0, 0),
    ]
    assert f"{TOPIC}[0]" in run.done("backup", "status")
    assert f"{TOPIC}: 1 file, 3 records" in run.done("backup", "verify")
    verified = run.json("backup", "verify", "--topic", TOPIC)[TOPIC]
    assert (verified["files"], verified["records"], verified["damaged"]) == (1, 3, [])


def test_compact_joins_small_files_and_says_what_it_would_do(
    backed_up: FakePlatform, run: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "LEAST_FILES", 3)
    for _ in range(3):
        backed_up.produce(3)
        run.done("extract")
    listed = [p for p in backed_up.store.objects if p.startswith(f"backup/{TOPIC}/")]
    planned = run.json("backup", "compact", "--plan")[TOPIC]
    assert (planned["before"], planned["after"]) == (len(listed), 1)
    assert f"{TOPIC}: {len(listed)} files would become 1" in run.done("backup", "compact", "--plan")
    where = run.json("where", TOPIC, "0", "4")
    assert f"{TOPIC}: {len(listed)} files became 1" in run.done("backup", "compact", "--topic", TOPIC)
    assert f"{TOPIC}: 0 files became 0" in run.done("backup", "compact")
    assert run.json("where", TOPIC, "0", "4") != where
    assert run.json("backup", "verify")[TOPIC]["records"] == 12
    [bad] = [p for p in backed_up.store.objects if "/merge-" in p]
    backed_up.store.objects.pop(bad)
    for _ in range(2):
        backed_up.produce(3)
        run.done("extract")
    result = run("backup", "compact")
    assert result.exit_code == 1
    assert f"damaged: {bad}: " in result.stdout


def test_a_damaged_file_is_reported_with_exit_code_1(backed_up: FakePlatform, run: Shell) -> None:
    [path] = [p for p in backed_up.store.objects if p.startswith(f"backup/{TOPIC}/")]
    stored = backed_up.store.objects[path]
    backed_up.store.objects[path] = replace(stored, data=stored.data[:-1])
    result = run("backup", "verify")
    assert result.exit_code == 1
    assert f"damaged: {TOPIC}[0] [0, 3): {path}" in result.stdout
    assert f"or kbq backup reset --topic {TOPIC} --partition 0 copies again" in result.stdout


@pytest.mark.parametrize(
    "chosen", [("--partition", "7"), ("--from", "3"), ("--partition", "0", "--from", "9")]
)
def test_a_range_without_a_file_is_not_verified(
    backed_up: FakePlatform, run: Shell, chosen: tuple[str, ...]
) -> None:
    result = run("backup", "verify", "--topic", TOPIC, *chosen)
    assert (result.exit_code, "has no file of this range" in result.stderr) == (1, True), result.output
    run.done("backup", "verify", "--topic", TOPIC, "--partition", "0", "--from", "2", "--until", "9")


def test_verify_adds_the_schemas_that_were_missing(world: FakePlatform, run: Shell) -> None:
    source(world, "backup=only")
    world.registry.down = True
    world.produce(2)
    run.done("extract")
    assert run.json("backup", "verify")[TOPIC]["missing_schemas"] == [1]
    world.registry.down = False
    assert run.json("backup", "verify")[TOPIC]["missing_schemas"] == []
    assert any(path.startswith(f"backup/@/schemas/{TOPIC}/1-") for path in world.store.objects)


def test_a_stop_of_the_tables_is_none_of_the_backup(backed_up: FakePlatform, run: Shell) -> None:
    backed_up.produce(value=UNKNOWN_SCHEMA)
    assert run("extract").exit_code == 1
    assert run("backup", "status").exit_code == 0
    assert positions(run)[f"{TOPIC}[0]"] == (1, 4)


def backup_check(run: Shell) -> str:
    """What `kbq check` prints of stopped backups; its exit code is 1 if it does."""
    result = run("check")
    _, found, text = result.stdout.partition(f"error: no_backup_is_stopped: {TOPIC}: ")
    assert result.exit_code == 1 or not found
    return text


def test_status_shows_how_far_backups_are_behind(backed_up: FakePlatform, run: Shell) -> None:
    assert "backups: 2 partitions, lag 0 positions; 0 stopped" in run.done("status")
    source(backed_up, "backup=only")
    backed_up.produce(4)
    assert "backups: 2 partitions, lag 4 positions; 0 stopped" in run.done("status")
    assert run.json("status")["backups"] == run.json("backup", "status")


@pytest.mark.parametrize("mode", ["true", "only"])
def test_a_backup_further_behind_than_the_topic_allows_fails_its_check(
    backed_up: FakePlatform, run: Shell, mode: str
) -> None:
    source(backed_up, f"backup={mode} max_lag_records=3")
    backed_up.produce(3)
    assert backup_check(run) == ""
    backed_up.produce(1)
    assert "its backup is 4 positions behind, more than max_lag_records" in backup_check(run)
    run.done("extract")
    assert backup_check(run) == ""


def test_without_backups_nobody_asks_for_their_place(world: FakePlatform) -> None:
    world.produce(2)
    run = Shell(world, backup=lambda area, role: _Away())
    run.done("extract")
    run.done("check")
    assert "backup" not in run.done("status")
    found = {r["subject"]: r for r in run.json("check")["checks"] if r["check"] == "no_backup_is_stopped"}
    assert found[TOPIC]["message"] == "it has no backup"


def lost(world: FakePlatform) -> None:
    world.produce(5)
    world.kafka.delete_before(TP, 6)


def recreated(world: FakePlatform) -> None:
    world.kafka.recreate_topic(TOPIC)
    world.produce(2)


def truncated(world: FakePlatform) -> None:
    world.kafka.truncate(TP, 1)


def damaged(world: FakePlatform) -> None:
    world.produce(2)
    world.kafka.damage(TP, 3, 5)


def nothing(world: FakePlatform) -> None:
    """Nobody fixes anything outside of KBQ."""


def repaired(world: FakePlatform) -> None:
    world.kafka.repair(TP)


@pytest.mark.parametrize(
    ("reason", "reach", "fix", "command", "position"),
    [
        ("retention_loss", lost, nothing, f"accept-gap --topic {TOPIC} --partition 0", (1, 8)),
        ("recreated", recreated, nothing, f"reset --topic {TOPIC}", (2, 2)),
        ("truncated", truncated, nothing, f"reset --topic {TOPIC} --partition 0", (2, 1)),
        ("damaged_batch", damaged, repaired, f"resume --topic {TOPIC} --partition 0", (1, 5)),
        ("damaged_batch", damaged, nothing, f"accept-gap --topic {TOPIC} --partition 0", (1, 5)),
    ],
)
def test_every_stop_names_its_way_back(
    backed_up: FakePlatform,
    run: Shell,
    reason: str,
    reach: Callable[[FakePlatform], None],
    fix: Callable[[FakePlatform], None],
    command: str,
    position: tuple[int, int],
) -> None:
    source(backed_up, "backup=only")
    reach(backed_up)
    run("extract")
    stopped = run("backup", "status")
    assert stopped.exit_code == 1
    assert f"{reason}: " in stopped.stdout
    assert f"kbq backup {command}" in stopped.stdout
    assert f"`{reason}`" in OPERATIONS
    assert f"{reason}: " in backup_check(run) and f"  next: kbq backup {command}" in backup_check(run)
    assert f"backup stopped: {TOPIC}" in run.done("status") and f"kbq backup {command}" in run.done("status")
    assert [stop["reason"] for stop in run.json("status")["backups"]["stops"]] == [reason]
    before = set(backed_up.store.objects)
    fix(backed_up)
    run.done("backup", *command.split(), "--yes")
    assert run("extract").exit_code == 0
    assert run("backup", "status").exit_code == 0
    assert backup_check(run) == "" and "backup stopped" not in run.done("status")
    assert positions(run)[f"{TOPIC}[0]"] == position
    assert before <= set(backed_up.store.objects), "what was copied stays"
    assert run("backup", "verify").exit_code == 0


def test_a_reset_says_how_many_positions_it_leaves_uncopied(backed_up: FakePlatform, run: Shell) -> None:
    backed_up.produce(5)
    backed_up.produce(2, partition=1)
    shown = run("backup", "reset", "--topic", TOPIC, "--at", "latest", answer="n").output
    assert f"{TOPIC}[0]: position 3 -> 8 gives up 5 positions uncopied" in shown
    assert f"{TOPIC}[1]: position 0 -> 2 gives up 2 positions uncopied" in shown
    again = run("backup", "reset", "--topic", TOPIC, "--partition", "0", answer="n").output
    assert f"{TOPIC}[0]: position 3 -> 0\n" in again and "uncopied" not in again
    assert positions(run)[f"{TOPIC}[0]"] == (1, 3)


class _Away:
    """A store that does not answer."""

    def __getattr__(self, name: str) -> object:
        raise Unavailable("the bucket of backups does not answer", next_step="bring it back")


def _closed(area: str, role: object) -> ObjectStore:
    raise ConfigurationError("the bucket refuses the credentials", next_step="bring it back")


@pytest.mark.parametrize("away", [lambda area, role: _Away(), _closed])
def test_a_place_out_of_reach_is_seen_and_comes_back_without_help(
    backed_up: FakePlatform, run: Shell, away: Callable[..., ObjectStore]
) -> None:
    backed_up.produce(2)
    without = Shell(backed_up, backup=away)
    result = without("extract")
    assert result.exit_code == 1
    assert "backup_unreachable" in result.stdout
    assert without.json("status")["partitions"][0]["position"] == 5
    assert without("backup", "status").exit_code == 1
    assert "all of it: backup_unreachable: " in backup_check(without)
    assert "next: bring it back" in without.done("status")
    assert without.json("status")["stops"] == [], "the tables go on"
    run.done("extract")
    assert positions(run)[f"{TOPIC}[0]"] == (1, 5)


def test_personal_data_is_refused_without_a_place_for_it(world: FakePlatform, run: Shell) -> None:
    source(world, "backup=true pii=x:drop")
    refused = run("extract")
    assert refused.exit_code == 1
    assert TOPIC in refused.stderr + refused.stdout
    assert "KBQ_BACKUP_PERSONAL_LOCATION" in refused.stderr + refused.stdout
    assert not any(path.startswith("backup/") for path in world.store.objects)


def test_clean_drops_what_is_too_old(tmp_path: Path) -> None:
    world = FakePlatform(tmp_path, environ={"KBQ_BACKUP": "true", "KBQ_BACKUP_DAYS": "3"})
    run = Shell(world)
    world.produce(3)
    run.done("extract")
    run.done("clean")
    assert run.json("backup", "verify")[TOPIC]["files"] == 1
    world.store.time_ms += 4 * 86_400_000
    assert "deleted 1 orphan," in run.done("clean")
    assert run.json("backup", "verify")[TOPIC]["files"] == 0


def test_plan_shows_what_is_copied(backed_up: FakePlatform, run: Shell) -> None:
    backed_up.produce(2)
    planned = run.json("plan")
    assert planned["extract"]["backups"]["regular"]["units"] == []
    assert "1 partition with the tables'" in run.done("plan")
