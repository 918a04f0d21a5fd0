"""Verification, retention, orphans and resets of backups (PROTOCOL B5 to B8)."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any, cast

import pytest

from kbq_assets.core.backup import commits as backup
from kbq_assets.core.backup.backup_names import BackupFileName
from kbq_assets.core.config.settings import parse_settings
from kbq_assets.core.errors import NotFound, Refused
from kbq_assets.core.extraction.units import WindowLimits
from kbq_assets.core.protocol.commits import Commit, StagedFile, map_files
from kbq_assets.core.protocol.manifests import Limits
from kbq_assets.pipelines.backup.backups import Backups
from kbq_assets.pipelines.backup.clean import clean_backups
from kbq_assets.pipelines.backup.verify import verify_topic
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.pipelines.protocol import state
from kbq_assets.wire.backup.read import read_chunks
from kbq_assets_tests.fixtures.tiny_manifests import NO_TAIL, TINY, tiny_manifests
from kbq_assets_tests.pipelines.backup.test_extraction import BACKED_UP, bench, copied, files, produced
from kbq_assets_tests.pipelines.bench import TOPIC, TP, Bench

DAY = backup.DAY_MS


def backed_up(windows: int = 4) -> Bench:
    world = Bench(BACKED_UP, window=WindowLimits(records=2))
    world.produce(*[1] * (2 * windows))
    world.extract()
    return world


def swap_file(world: Bench, old: StagedFile, new: StagedFile) -> None:
    """Commit other facts of a file."""
    path = f"commits/{TOPIC}.json"
    state.change(
        world.backup_area, Commit, path, lambda now: map_files(now, lambda f: new if f == old else f)
    )


def backups_of(world: Bench) -> Backups:
    """The commands of backups."""
    deployment = Deployment(
        parse_settings({"KBQ_HOME": "/nowhere"}),
        world.clock,
        cast("Any", _NoSources()),
        lambda: world.store,
        lambda: world.store,
        lambda: world.kafka,
        lambda: world.warehouse,
        lambda role: (),
        lambda area, role: world.backups,
    )
    return Backups(deployment, lambda: world.registry)


class _NoSources:
    """A source list without topics: a backup is found where it is."""

    def select(self, topics: object) -> dict[str, Any]:
        return {}


def names(world: Bench) -> list[str]:
    return [path for path in world.backups.objects if path.startswith(f"backup/{TOPIC}/")]


class TestVerify:
    def test_an_intact_backup_is_read_whole(self) -> None:
        world = backed_up()
        found = verify_topic(world.backup_area, TOPIC)
        assert (found.files, found.records, found.damages, found.missing_schemas) == (4, 8, (), ())
        assert found.bytes == sum(file.bytes for file in files(world))

    @pytest.mark.parametrize(
        "damage", ["gone", "flipped", "cut", "of another window", "same size and checksum"]
    )
    def test_damage_is_found_and_named(self, damage: str) -> None:
        world = backed_up()
        bad, other = files(world)[1], files(world)[2]
        stored = world.backups.objects.pop(bad.path)
        data = bytearray(stored.data)
        data[len(data) // 2] ^= 4
        changed = {
            "flipped": bytes(data),
            "cut": stored.data[:-3],
            "of another window": world.backups.objects[other.path].data,
        }
        if damage in changed:
            world.backups.objects[bad.path] = replace(stored, data=changed[damage])
        if damage == "same size and checksum":  # the commit was written for other bytes
            world.backups.objects[bad.path] = stored
            swap_file(world, bad, replace(bad, content="0" * 64))
        found = verify_topic(world.backup_area, TOPIC)
        assert [(d.path, d.first, d.until, d.topic_partition) for d in found.damages] == [
            (bad.path, bad.window, bad.until, TP)
        ]
        assert found.files == 4

    def test_files_of_the_release_that_hashed_rows_are_verified_by_their_rows(self) -> None:
        world = backed_up(1)
        [file] = files(world)
        name, rows = BackupFileName.parse(file.path), hashlib.sha256()
        with world.backup_area.open_read(file.path) as stream:
            for _, block in read_chunks(stream, name.epoch, name.range):
                rows.update(block.data)
        swap_file(world, file, replace(file, content=rows.hexdigest()))
        assert verify_topic(world.backup_area, TOPIC).damages == ()
        swap_file(world, replace(file, content=rows.hexdigest()), replace(file, content="1" * 64))
        assert len(verify_topic(world.backup_area, TOPIC).damages) == 1

    def test_a_range_is_verified_alone(self) -> None:
        world = backed_up()
        world.backups.objects.pop(files(world)[0].path)
        found = verify_topic(world.backup_area, TOPIC, partition=0, first=2, until=5)
        assert (found.files, found.damages) == (2, ())
        assert verify_topic(world.backup_area, TOPIC, partition=1).files == 0

    def test_schemas_that_the_registry_could_not_give_are_named(self) -> None:
        world = bench()
        world.registry.down = True
        world.produce(1, 3)
        world.extract()
        assert verify_topic(world.backup_area, TOPIC).missing_schemas == ((TOPIC, 1), (TOPIC, 3))

    def test_a_topic_without_a_backup_is_not_found(self) -> None:
        with pytest.raises(NotFound, match="no backup"):
            verify_topic(backed_up().backup_area, "other")


class TestRetention:
    def test_windows_leave_by_the_stores_age_of_their_files_oldest_first(self) -> None:
        world = backed_up()
        old = [file.path for file in files(world)[:2]]
        world.backups.time_ms += 3 * DAY
        for file in files(world)[2:]:
            stored = world.backups.objects[file.path]
            world.backups.objects[file.path] = replace(stored, updated_ms=world.backups.time_ms)
        report = clean_backups(world.backup_area, days=2)
        assert (report.orphans, report.failures) == (2, ())
        assert not set(old) & set(names(world))
        assert [file.window for file in files(world)] == [4, 6]
        assert world.backup_commit().partitions[0].next == 8
        assert clean_backups(world.backup_area, days=2).orphans == 0

    def test_without_days_everything_is_kept_for_ever(self) -> None:
        world = backed_up()
        before = names(world)
        world.backups.time_ms += 10_000 * DAY
        assert clean_backups(world.backup_area, days=0).orphans == 0
        assert names(world) == before
        assert copied(world) == produced(world)

    def test_a_file_that_is_gone_does_not_keep_its_successors(self) -> None:
        world = backed_up()
        world.backups.objects.pop(files(world)[0].path)
        world.backups.time_ms += 3 * DAY
        clean_backups(world.backup_area, days=1)
        assert files(world) == []
        world.produce(1)
        world.extract()
        assert [file.window for file in files(world)] == [8]

    def test_loading_and_the_tables_clean_up_delete_no_backup(self) -> None:
        world = backed_up()
        before = names(world)
        world.load()
        world.extract()
        world.load()
        assert names(world) == before
        assert copied(world) == produced(world)


class TestOrphans:
    def test_only_files_below_the_position_or_of_older_epochs_are_orphans(self) -> None:
        world = backed_up()
        state_ = world.backup_commit()
        listed = files(world)[0].path
        name = BackupFileName.parse(listed)

        def at(first: int, epoch: int = 1, topic: str = TOPIC) -> str:
            tp = name.range.topic_partition._replace(topic=topic)
            range_ = replace(name.range, topic_partition=tp, from_offset=first, until_offset=first + 1)
            return replace(name, range=range_, epoch=epoch, attempt="dead").format()

        paths = [listed, at(7), at(8), at(9), at(9, 0), at(3, 2), at(3, 1, "other")]
        found = backup.orphans(dict.fromkeys(paths, 0), [state_], 0)
        assert found == sorted([at(7), at(9, 0)])

    def test_a_dead_attempts_file_goes_and_a_listed_one_stays(self) -> None:
        world = backed_up()
        kept = names(world)
        dead = kept[0].replace(kept[0].split("/")[2], "dead")
        world.backups.create(dead, b"x")
        assert clean_backups(world.backup_area, days=0).orphans == 1
        assert names(world) == kept


class TestReset:
    def test_a_reset_keeps_every_file_and_begins_a_new_epoch(self) -> None:
        world = backed_up()
        before = files(world)
        world.kafka.recreate_topic(TOPIC)
        world.produce(1, 1, 1)
        [stop] = world.extract().backup.stops
        assert (stop.reason, stop.commands) == ("recreated", (f"kbq backup reset --topic {TOPIC}",))
        described = world.kafka.topics()[TOPIC]
        area, path = world.backup_area, f"commits/{TOPIC}.json"
        state.change(
            area, Commit, path, lambda now: backup.reset(now, {0: 0}, {0: 0}, "fake", described.topic_id)
        )
        world.extract()
        assert files(world)[: len(before)] == before
        epochs = [BackupFileName.parse(file.path).epoch for file in files(world)]
        assert epochs == [1, 1, 1, 1, 2, 2]
        commit = world.backup_commit()
        assert (commit.partitions[0].next, commit.partitions[0].totals.records) == (3, 11)
        first, second = (backup.windows_of(commit, 0, epoch) for epoch in (1, 2))
        assert [len(first), len(second)] == [4, 2]
        assert clean_backups(area, days=0).orphans == 0
        assert verify_topic(area, TOPIC).records == 11

    @pytest.mark.parametrize("positions", [0, 4])
    def test_a_new_leader_before_the_first_record_since_a_reset_stops_nothing(self, positions: int) -> None:
        world = backed_up()
        world.kafka.recreate_topic(TOPIC)
        world.kafka.elect_leader(TP)
        world.kafka.gap(TP, positions)
        backups_of(world).reset(TOPIC, None, "earliest").apply()
        for _ in range(2):
            world.kafka.elect_leader(TP)
            world.kafka.gap(TP)
            assert world.extract().backup.stops == ()
        world.produce(1)
        assert world.extract().backup.stops == ()
        assert world.backup_commit().partitions[0].next == positions + 3
        assert verify_topic(world.backup_area, TOPIC).records == 8 + 1

    def test_a_partition_that_the_topic_no_longer_has_keeps_its_files_and_begins_again(self) -> None:
        world = Bench(BACKED_UP, partitions=66)
        world.produce(1, 1, partition=1)
        world.produce(1, 1, partition=65)
        world.extract()
        before = names(world)
        world.kafka.recreate_topic(TOPIC, 1)
        proposal = backups_of(world).reset(TOPIC, None, "earliest")
        assert f"{TOPIC}[65] is gone from the broker" in proposal.lines
        proposal.apply()
        assert world.extract().backup.stops == ()
        world.kafka.add_partitions(TOPIC, 66)
        world.produce(1, 1, 1, partition=1)
        world.produce(1, 1, 1, partition=65)
        assert world.extract().backup.stops == ()
        assert len(before) == 2
        assert set(before) < set(names(world))
        commits = [found.value for found in state.read_commits(world.backup_area)]
        assert [commit.totals.records for commit in commits] == [2 + 3, 2 + 3]
        assert clean_backups(world.backup_area, days=0).orphans == 0

    def test_a_reset_of_one_partition_is_refused_while_another_stands_in_the_former_log(self) -> None:
        world = Bench(BACKED_UP, partitions=2)
        world.produce(1, 1, partition=1)
        world.extract()
        world.kafka.recreate_topic(TOPIC)
        with pytest.raises(Refused, match="recreated") as refused:
            backups_of(world).reset(TOPIC, 0, "earliest")
        assert refused.value.next_step.startswith(f"kbq backup reset --topic {TOPIC},")
        with pytest.raises(NotFound, match="2 partitions"):
            backups_of(world).reset(TOPIC, 2, "earliest")

    def test_commands_of_backups_name_each_other_and_never_those_of_tables(self) -> None:
        world = backed_up()
        backups = backups_of(world)
        with pytest.raises(Refused) as no_gap:
            backups.accept_gap(TP)
        with pytest.raises(Refused) as no_stop:
            backups.resume(TOPIC, None)
        world.kafka.delete_topic(TOPIC)
        with pytest.raises(NotFound) as gone:
            backups.accept_gap(TP)
        steps = [error.value.next_step for error in (no_gap, no_stop, gone)]
        assert steps == [
            "kbq backup status shows the stopped partitions",
            "kbq backup status lists what is stopped",
            f"kbq backup reset --topic {TOPIC}",
        ]

    @pytest.mark.parametrize("limits", [TINY, NO_TAIL])
    def test_windows_of_two_epochs_at_one_position_stay_apart_in_manifests(self, limits: Limits) -> None:
        with tiny_manifests(limits):
            world = backed_up()
            area, path = world.backup_area, f"commits/{TOPIC}.json"
            ids = world.backup_commit().topic_id
            state.change(area, Commit, path, lambda now: backup.reset(now, {0: 0}, {0: 0}, "fake", ids))
            world.extract()
            before = files(world)
            assert [(BackupFileName.parse(f.path).epoch, f.window) for f in before] == [
                (epoch, first) for epoch in (1, 2) for first in (0, 2, 4, 6)
            ]
            swap_file(world, before[2], replace(before[2], rows=7))
            assert files(world) == [replace(f, rows=7) if f == before[2] else f for f in before]
            clean_backups(area, days=0)
            assert set(names(world)) == {file.path for file in before}
            # Retention only takes the oldest windows.
            for file in before[1:]:
                world.backups.objects[file.path] = replace(
                    world.backups.objects[file.path], updated_ms=world.backups.time_ms + 3 * DAY
                )
            world.backups.time_ms += 3 * DAY
            clean_backups(area, days=2)
            assert set(names(world)) == {file.path for file in before[1:]}
            assert [file.path for file in files(world)] == [file.path for file in before[1:]]
