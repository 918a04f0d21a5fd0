"""Small files of a backup are merged while everything else continues (PROTOCOL B10)."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest

from kbq_assets.adapters.backup import BackupLog, BackupSource
from kbq_assets.core.backup import commits as backup
from kbq_assets.core.backup import merging
from kbq_assets.core.backup.backup_names import BackupFileName, merge_attempt
from kbq_assets.core.erasure.forgotten_records import rewritten
from kbq_assets.core.errors import KbqError, NotFound, Unavailable, UnsupportedFormat
from kbq_assets.core.extraction.units import WindowLimits
from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol.commits import Commit, PartitionCommit, StagedFile
from kbq_assets.core.protocol.manifests import Limits
from kbq_assets.core.protocol.offsets import OffsetRange
from kbq_assets.pipelines.backup import merge as merges
from kbq_assets.pipelines.backup.area import BackupArea
from kbq_assets.pipelines.backup.clean import clean_backups, void_merges
from kbq_assets.pipelines.backup.merge import MergeReport, merge_topic, plan_topic
from kbq_assets.pipelines.backup.times import offset_at
from kbq_assets.pipelines.backup.verify import verify_topic
from kbq_assets.pipelines.protocol import state
from kbq_assets.ports.backup_copies import CopyTask, leave_out
from kbq_assets.ports.kafka import RecordBatch
from kbq_assets_tests.fakes.faults import Call, Crash, Outcome
from kbq_assets_tests.fixtures.tiny_manifests import NO_TAIL, TINY, tiny_manifests
from kbq_assets_tests.pipelines.backup.test_extraction import BACKED_UP, copied, files, produced
from kbq_assets_tests.pipelines.backup.test_upkeep import DAY, names, swap_file
from kbq_assets_tests.pipelines.bench import TOPIC, TP, Bench
from kbq_assets_tests.sizes import thinned

COMMIT = f"commits/{TOPIC}.json"


def backed_up(windows: int = 12) -> Bench:
    world = Bench(BACKED_UP, window=WindowLimits(records=2))
    world.produce(*[1] * (2 * windows))
    world.extract()
    return world


def merged(world: Bench) -> MergeReport:
    numbers = itertools.count()
    area = BackupArea(world.backups.view("merger"))
    return merge_topic(area, TOPIC, lambda: f"r{next(numbers)}")


def stored(world: Bench) -> set[str]:
    return set(names(world))


def assert_whole(world: Bench) -> None:
    """Every record once, and every hash as committed."""
    assert copied(world) == produced(world)
    found = verify_topic(world.backup_area, TOPIC)
    assert (found.damages, found.records) == ((), len(produced(world)))


class TestMerge:
    def test_files_that_adjoin_become_one_with_the_same_records(self) -> None:
        world = backed_up()
        world.kafka.gap(TP, 3)
        world.extract()
        before, totals = files(world), world.backup_commit().partitions[0].totals
        report = merged(world)
        assert (report.before, report.after, report.damaged) == (13, 1, {})
        [file] = files(world)
        [window] = world.backup_commit().partitions[0].windows
        assert (file.window, file.until, file.rows) == (0, 27, 24)
        assert (window.counts, world.backup_commit().partitions[0].totals) == (totals, totals)
        assert file.oldest_ms == min(each.oldest_ms for each in before if each.rows)
        assert file.raw_bytes == sum(each.raw_bytes for each in before)
        data = world.backups.objects[file.path].data
        assert (file.bytes, file.content) == (len(data), f"sha256:{hashlib.sha256(data).hexdigest()}")
        assert BackupFileName.parse(file.path).merge == 1
        assert_whole(world)

    def test_nothing_happens_twice_and_a_plan_changes_nothing(self) -> None:
        world = backed_up()
        before = dict(world.backups.objects)
        assert (plan_topic(world.backup_area, TOPIC).before, world.backups.objects) == (12, before)
        merged(world)
        after = dict(world.backups.objects)
        assert (merged(world).before, world.backups.objects) == (0, after)

    def test_few_files_stay_until_they_are_worth_the_copy_of_the_large_one(self) -> None:
        world = backed_up(windows=merging.LEAST_FILES - 1)
        assert merged(world).before == 0
        world.produce(*[1] * 200)
        world.extract()
        merged(world)
        [large] = files(world)
        world.produce(*[1] * 2 * merging.LEAST_FILES)
        world.extract()
        assert merged(world).before == merging.LEAST_FILES  # beside the large one
        assert files(world)[0] == large
        assert_whole(world)

    def test_what_comes_after_a_merge_and_readers_of_ranges_go_on(self) -> None:
        world = backed_up()
        merged(world)
        world.produce(1, 1, 1)
        world.extract()
        assert_whole(world)
        source = BackupSource(world.backups, {TP: BackupLog(tuple(files(world)))})
        for first in (0, 5, 23, 25):
            read = [o for b in source.read(OffsetRange(TP, first, 27)) for o in b.chunk.offsets.tolist()]
            assert read == [*range(first, 27)]
        windows = world.backup_commit().partitions[0].windows
        assert offset_at(world.backup_area, windows, windows[0].newest_ms) is not None

    @pytest.mark.parametrize("limits", [TINY, NO_TAIL])
    def test_windows_in_manifests_are_merged_and_those_of_other_epochs_and_across_gaps_are_not(
        self, limits: Limits
    ) -> None:
        with tiny_manifests(limits):
            world = backed_up()
            ids = world.backup_commit().topic_id
            state.change(
                world.backup_area, Commit, COMMIT, lambda c: backup.reset(c, {0: 0}, {0: 0}, "fake", ids)
            )
            world.extract()
            state.change(
                world.backup_area, Commit, COMMIT, lambda c: replace(c, partitions={0: _gap(c.partitions[0])})
            )
            assert merged(world).after == 2
            found = [(BackupFileName.parse(f.path).epoch, f.window, f.until) for f in files(world)]
            assert found == [(1, 0, 2), (1, 4, 24), (2, 0, 24)]
            assert verify_topic(world.backup_area, TOPIC).damages == ()

    def test_files_with_another_codec_or_of_a_former_release_stay_apart(self) -> None:
        world = backed_up(windows=36)
        former = files(world)[12]
        swap_file(world, former, replace(former, content=former.content.removeprefix("sha256:")))
        other = files(world)[24]
        data = world.backups.objects[other.path].data.replace(b"avro.codec", b"avro.kodec")
        swap_object(world, other, data)
        merged(world)
        assert [f.window for f in files(world)] == [0, 24, 26, 48, 50]

    @pytest.mark.parametrize("damage", ["gone", "flipped", "rows"])
    def test_a_damaged_file_is_named_and_stays_while_others_are_merged(self, damage: str) -> None:
        world = backed_up(windows=24)
        bad = files(world)[12]
        if damage == "gone":
            world.backups.objects.pop(bad.path)
        elif damage == "rows":
            swap_file(world, bad, replace(bad, rows=1))
            bad = replace(bad, rows=1)
        else:
            whole = world.backups.objects[bad.path]
            flipped = whole.data[:-20] + bytes([whole.data[-20] ^ 1]) + whole.data[-19:]
            world.backups.objects[bad.path] = replace(whole, data=flipped)
        report = merged(world)
        assert [*report.damaged] == [bad.path]
        assert [f.window for f in files(world)] == [0, 24, 26]
        assert files(world)[1] == bad

    def test_a_topic_without_a_backup_is_not_found(self) -> None:
        with pytest.raises(NotFound, match="no backup"):
            merge_topic(backed_up().backup_area, "other", lambda: "r")


def _gap(found: PartitionCommit) -> PartitionCommit:
    """Without the second window of epoch 1."""
    return replace(found, windows=(found.windows[0], *found.windows[2:]))


def swap_object(world: Bench, file: StagedFile, data: bytes) -> None:
    """Other bytes of a file, with a commit that lists them."""
    object_ = world.backups.objects[file.path]
    world.backups.objects[file.path] = replace(object_, data=data)
    [found] = [each for each in world.backups.checksums(file.path) if each.path == file.path]
    content = f"sha256:{hashlib.sha256(data).hexdigest()}"
    swap_file(world, file, replace(file, bytes=found.size, crc32c=found.crc32c, content=content))


class TestUpkeep:
    def test_replaced_files_stay_for_a_day_and_a_reader_that_began_before_ends(self) -> None:
        world = backed_up()
        old = files(world)
        world.backups.time_ms += 3 * DAY
        merged(world)
        clean_backups(world.backup_area, days=0)
        assert {file.path for file in old} < stored(world)
        reader = BackupSource(world.backups, {TP: BackupLog(tuple(old))})
        assert sum(len(b.chunk) for b in reader.read(OffsetRange(TP, 0, 24))) == 24
        world.backups.time_ms += DAY + 1
        assert clean_backups(world.backup_area, days=0).orphans == 12
        assert stored(world) == {file.path for file in files(world)}
        assert_whole(world)

    def test_the_age_of_a_merged_file_is_that_of_the_newest_of_its_files(self) -> None:
        world = backed_up()
        world.backups.time_ms += 3 * DAY
        world.produce(*[1] * 24)
        world.extract()
        merged(world)
        [file] = files(world)
        clean_backups(world.backup_area, days=2)
        assert files(world) == [file]  # half of its records are young
        world.backups.time_ms += 2 * DAY
        clean_backups(world.backup_area, days=1)
        assert files(world) == []


#: What another process does, and the offsets that then are gone.
Other = Callable[[Bench], set[int]]


def cleaned(world: Bench) -> set[int]:
    clean_backups(world.backup_area, 0, replaced_ms=0)
    return set()


def copied_more(world: Bench) -> set[int]:
    world.produce(1, 1)
    world.extract()
    return set()


def merged_too(world: Bench) -> set[int]:
    merge_topic(world.backup_area, TOPIC, lambda: "other")
    return set()


def expired(world: Bench) -> set[int]:
    """The first window leaves, unless it is merged already."""
    first = files(world)[0]
    ages = {file.path: int(file != first) for file in files(world)}
    state.change(world.backup_area, Commit, COMMIT, lambda c: backup.expire(c, ages, 1))
    return set(range(files(world)[0].window))


def erased(world: Bench) -> set[int]:
    """One record is forgotten, as an erasure does it, with its clean-up."""
    [file] = [each for each in files(world) if each.window <= 7 < each.until]
    number = state.change_head(world.backup_area, COMMIT, merging.begun).value.merges
    task = CopyTask("regular", file, (7, 8), "zstandard", merge_attempt(number, "eraser"))
    found = leave_out(world.backup_area, task)
    cleaned(world)
    if found.new is not None:
        change = partial(rewritten, old=file, new=found.new, erased=1, number=number)
        state.change(world.backup_area, Commit, COMMIT, change)
    void_merges(world.backup_area, TOPIC)
    cleaned(world)
    return {7}


OTHERS = (cleaned, copied_more, merged_too, expired, erased)


def calls_of_a_merge() -> int:
    calls: list[Call] = []
    world = backed_up()

    def note(call: Call) -> Outcome:
        calls.append(call)
        return Outcome.OK

    world.faults = note
    merged(world)
    return len(calls)


class TestMeanwhile:
    @pytest.mark.parametrize("other", thinned(OTHERS), ids=lambda each: each.__name__)
    def test_whatever_another_process_does_at_any_moment_every_record_stays_and_no_other_comes_back(
        self, other: Other
    ) -> None:
        for number in range(1, calls_of_a_merge() + 1):
            world, calls, gone = backed_up(), list[Call](), set[int]()

            def fault(
                call: Call,
                world: Bench = world,
                calls: list[Call] = calls,
                number: int = number,
                gone: set[int] = gone,
            ) -> Outcome:
                calls.append(call)
                if len(calls) == number:
                    world.faults = lambda call: Outcome.OK
                    gone |= other(world)
                    cleaned(world)
                return Outcome.OK

            world.faults = fault
            merged(world)
            assert len(calls) == number
            merged(world)
            cleaned(world)
            assert stored(world) == {file.path for file in files(world)}
            offsets = {o for b in read_all(world) for o in b.chunk.offsets.tolist()}
            assert offsets == {offset for offset in world.kafka.committed(TP) if offset not in gone}
            assert verify_topic(world.backup_area, TOPIC).damages == ()
            assert len(files(world)) < 12

    @pytest.mark.parametrize("death", [Outcome.CRASH_BEFORE, Outcome.CRASH_AFTER, Outcome.CRASH_LATE])
    def test_a_merge_that_dies_anywhere_loses_nothing_and_the_next_one_ends_it(self, death: Outcome) -> None:
        for number in range(1, calls_of_a_merge() + 1):
            world, calls = backed_up(), list[Call]()

            def fault(call: Call, calls: list[Call] = calls, number: int = number) -> Outcome:
                calls.append(call)
                if len(calls) == number and (call.writes or death is not Outcome.CRASH_LATE):
                    return death
                return Outcome.OK

            world.faults = fault
            with suppress(Crash):
                merged(world)
            world.faults = lambda call: Outcome.OK
            cleaned(world)
            assert_whole(world)
            while world.backups.late:
                world.backups.deliver_late()
            merged(world)
            cleaned(world)
            assert_whole(world)
            assert stored(world) == {file.path for file in files(world)}
            assert len(files(world)) == 1

    @pytest.mark.parametrize("outcome", thinned([Outcome.LATE, Outcome.LOST_REPLY, Outcome.OWN_RETRY], 3))
    def test_an_unknown_outcome_of_any_write_doubles_nothing(self, outcome: Outcome) -> None:
        for number in range(1, calls_of_a_merge() + 1):
            world, calls = backed_up(), list[Call]()

            def fault(call: Call, calls: list[Call] = calls, number: int = number) -> Outcome:
                calls.append(call)
                return outcome if len(calls) == number and call.writes else Outcome.OK

            world.faults = fault
            with suppress(KbqError):
                merged(world)
            world.faults = lambda call: Outcome.OK
            while world.backups.late:
                world.backups.deliver_late()
            merged(world)
            cleaned(world)
            assert_whole(world)
            assert stored(world) == {file.path for file in files(world)}

    def test_an_erasure_forgets_what_a_dead_merge_left(self) -> None:
        left = 0
        for number in range(1, calls_of_a_merge() + 1):
            world, calls = backed_up(), list[Call]()

            def fault(call: Call, calls: list[Call] = calls, number: int = number) -> Outcome:
                calls.append(call)
                return Outcome.CRASH_BEFORE if len(calls) == number else Outcome.OK

            world.faults = fault
            with suppress(Crash):
                merged(world)
            world.faults = lambda call: Outcome.OK
            left += bool(stored(world) - {file.path for file in files(world)})
            erased(world)
            assert stored(world) == {file.path for file in files(world)}
        assert left > 1

    def test_an_earlier_release_refuses_a_backup_whose_files_are_merged(self) -> None:
        world = backed_up()
        state.change_head(world.backup_area, COMMIT, merging.begun)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(codec, "HIGHEST", codec.MERGED)
            with pytest.raises(UnsupportedFormat):
                codec.loads(Commit, world.backup_area.get(COMMIT).data, COMMIT, keep=False)
        merged(world)
        assert world.backup_commit().stored_format == codec.FORMAT

    def test_others_that_merge_all_the_time_end_the_command(self, monkeypatch: pytest.MonkeyPatch) -> None:
        world = backed_up()
        write = merges._Merger.write

        def beaten(self: object, run: object) -> object:
            state.change_head(world.backup_area, COMMIT, merging.begun)
            return write(self, run)  # type: ignore[arg-type]

        monkeypatch.setattr(merges._Merger, "write", beaten)
        with pytest.raises(Unavailable, match="5 times"):
            merged(world)


def read_all(world: Bench) -> Iterator[RecordBatch]:
    found = files(world)
    source = BackupSource(world.backups, {TP: BackupLog(tuple(found))})
    return source.read(OffsetRange(TP, found[0].window, found[-1].until))
