"""What every object store promises (`kbq_assets.ports.object_store`). Subclass it and give the fixtures.

`ObjectStoreContract` is for any store; `SharedObjectStoreContract` adds what only several processes can show.
"""

from __future__ import annotations

import base64
import random
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from typing import TypeAlias, TypeVar

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbq_assets.core.errors import InvalidName, NotFound, PreconditionFailed
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets_tests.contracts.pace import goes_within
from kbq_assets_tests.contracts.processes import forked_pool

Opener: TypeAlias = Callable[[], ObjectStore]
Result = TypeVar("Result")

#: Path parts around '/' in the order of characters: ' ' < '-' < '.' < '/' < '0' < 'A' < 'a'.
_PARTS = st.text(alphabet=" -.0Aaé", min_size=1, max_size=3).filter(lambda part: not part.startswith("."))
_PATHS = st.lists(_PARTS, min_size=1, max_size=3).map("/".join)
_EXAMPLES = count()
REFUSED = (
    *("", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/./b", "a/..", ".hidden/a", "a\n", "a\x00b"),
    *("\ud800", "x" * 256, "/".join(["x" * 200] * 6)),
)


def paths(store: ObjectStore, prefix: str = "", start_after: str = "") -> list[str]:
    """The paths that a listing gives."""
    return [entry.path for entry in store.list(prefix, start_after)]


def stream(store: ObjectStore, path: str, *blocks: bytes) -> None:
    """Write an object in blocks."""
    writer = store.open_write(path)
    for block in blocks:
        writer.write(block)
    writer.close()


def attempt(call: Callable[[], object]) -> bool:
    """Whether a create or swap wins."""
    try:
        call()
    except PreconditionFailed:
        return False
    return True


def increment(store: ObjectStore, path: str) -> None:
    """Add one to a number, against others who do the same."""
    while True:
        read = store.get(path)
        if attempt(partial(store.swap, path, b"%d" % (int(read.data) + 1), read.generation)):
            return


def at_once(calls: Iterable[Callable[[], Result]]) -> list[Result]:
    """The results of calls made by as many threads at the same moment."""
    made = list(calls)
    barrier = threading.Barrier(len(made))

    def run(call: Callable[[], Result]) -> Result:
        barrier.wait()
        return call()

    with ThreadPoolExecutor(len(made)) as threads:
        return list(threads.map(run, made))


def race(write: Callable[[bytes], object]) -> list[bytes]:
    """Let threads write, each its own data: what the winners wrote."""
    made = [b"%d" % number for number in range(8)]
    won = at_once([partial(attempt, partial(write, data)) for data in made])
    return [data for data, has_won in zip(made, won, strict=True) if has_won]


def create_all(opener: Opener, names: list[str], data: bytes) -> list[str]:
    """Create objects in a separate process. Returns those that this process created."""
    store = opener()
    return [name for name in names if attempt(partial(store.create, name, data))]


def increment_often(opener: Opener, path: str, times: int) -> None:
    """Add one the given number of times, in a separate process."""
    store = opener()
    for _ in range(times):
        increment(store, path)


class ObjectStoreContract:
    """Give a ``store`` fixture; smaller numbers, and another `fill`, for a store across a network."""

    rounds = 100
    many = 50_000
    many_seconds = 20.0

    @pytest.fixture
    def store(self) -> ObjectStore:
        raise NotImplementedError

    def fill(self, store: ObjectStore, names: Iterable[str]) -> None:
        """Create empty objects quickly."""
        for name in names:
            store.create(name, b"")

    # Atomic visibility

    @pytest.mark.parametrize("data", [b"", b"x", b"\x00\n\r\n\xff" * 3, bytes(range(256)) * 4096])
    def test_an_object_is_read_as_it_was_created(self, store: ObjectStore, data: bytes) -> None:
        generation = store.create("commits/a.json", data)
        read = store.get("commits/a.json")
        assert (read.data, read.generation) == (data, generation)
        with store.open_read("commits/a.json") as file:
            assert file.read() == data

    def test_a_streamed_object_is_read_as_it_was_written(self, store: ObjectStore) -> None:
        stream(store, "staging/1-a/x.avro", b"12", b"", b"3" * 300_000)
        assert store.get("staging/1-a/x.avro").data == b"12" + b"3" * 300_000

    def test_a_swap_replaces_the_whole_object(self, store: ObjectStore) -> None:
        first = store.create("a", b"a long first version")
        second = store.swap("a", b"short", first)
        assert store.get("a").data == b"short"
        assert store.get("a").generation == second

    def test_readers_never_see_part_of_a_write(self, store: ObjectStore) -> None:
        store.create("a", b"0" * 10_000)
        stop = threading.Event()

        def read() -> set[int]:
            seen = set()
            while not stop.is_set():
                seen.add(len(set(store.get("a").data)))
            return seen

        def write() -> set[int]:
            for number in range(self.rounds):
                data = b"%d" % (number % 10) * 10_000
                store.swap("a", data, store.get("a").generation)
            stop.set()
            return {1}

        seen = at_once([read, read, write])
        assert set[int]().union(*seen) == {1}

    def test_an_object_that_is_not_there_is_not_found(self, store: ObjectStore) -> None:
        store.create("a/b", b"")
        for path in ("b", "a", "a/c", "a/b/c", "c/d/e"):
            with pytest.raises(NotFound):
                store.get(path)
            with pytest.raises(NotFound):
                store.open_read(path)
            with pytest.raises(NotFound):
                store.copy(path, "target")
        assert paths(store) == ["a/b"]

    # Mutual exclusion

    def test_a_path_is_created_once(self, store: ObjectStore) -> None:
        generation = store.create("a", b"first")
        with pytest.raises(PreconditionFailed):
            store.create("a", b"second")
        assert store.get("a").data == b"first"
        assert store.get("a").generation == generation

    def test_a_swap_from_an_older_generation_loses(self, store: ObjectStore) -> None:
        first = store.create("a", b"1")
        store.swap("a", b"2", first)
        with pytest.raises(PreconditionFailed):
            store.swap("a", b"3", first)
        assert store.get("a").data == b"2"

    def test_a_swap_of_what_is_gone_loses(self, store: ObjectStore) -> None:
        generation = store.create("x/a", b"1")
        store.delete("x/a")
        for path in ("x/a", "never/was"):
            with pytest.raises(PreconditionFailed):
                store.swap(path, b"2", generation)
        assert paths(store) == []

    def test_of_several_creates_exactly_one_wins(self, store: ObjectStore) -> None:
        for number in range(self.rounds):
            path = f"race/{number}"
            assert race(partial(store.create, path)) == [store.get(path).data]

    def test_of_several_swaps_from_one_generation_exactly_one_wins(self, store: ObjectStore) -> None:
        store.create("a", b"")
        for _ in range(self.rounds):
            generation = store.get("a").generation
            winners = race(partial(store.swap, "a", generation=generation))
            assert winners == [store.get("a").data]

    def test_of_several_closes_exactly_one_wins(self, store: ObjectStore) -> None:
        for number in range(self.rounds // 5):
            path = f"race/{number}"
            assert race(partial(stream, store, path)) == [store.get(path).data]

    def test_no_update_is_lost(self, store: ObjectStore) -> None:
        store.create("counter", b"0")
        times = self.rounds // 5
        at_once([partial(increment_often, lambda: store, "counter", times)] * 4)
        assert int(store.get("counter").data) == 4 * times

    def test_what_was_deleted_is_gone_whoever_swaps_it_meanwhile(self, store: ObjectStore) -> None:
        for number in range(self.rounds):
            path = f"race/{number}"
            generation = store.create(path, b"1")
            swap = partial(store.swap, path, b"2", generation)
            at_once([partial(attempt, swap), partial(attempt, partial(store.delete, path))])
            assert paths(store, path) == []

    def test_creates_and_deletions_in_one_folder_do_not_disturb_each_other(self, store: ObjectStore) -> None:
        def come_and_go(name: str) -> None:
            for number in range(self.rounds // 2):
                store.create(f"staging/1-a/{name}.{number}", b"")
                store.delete(f"staging/1-a/{name}.{number}")

        at_once([partial(come_and_go, name) for name in "abcd"])
        assert paths(store) == []

    # Generations

    def test_generations_never_repeat(self, store: ObjectStore) -> None:
        generations = []
        for _ in range(self.rounds):
            generations.append(store.create("a", b"same"))
            generations.append(store.swap("a", b"same", generations[-1]))
            store.delete("a")
        assert len(set(generations)) == len(generations)

    def test_a_swap_does_not_take_an_object_created_again_for_the_one_it_read(
        self, store: ObjectStore
    ) -> None:
        generation = store.create("a", b"same")
        store.delete("a")
        store.create("a", b"same")
        with pytest.raises(PreconditionFailed):
            store.swap("a", b"late", generation)

    # Streaming

    def test_nothing_is_visible_before_close(self, store: ObjectStore) -> None:
        writer = store.open_write("staging/1-a/x.avro")
        writer.write(b"x" * 100_000)
        assert paths(store) == []
        with pytest.raises(NotFound):
            store.get("staging/1-a/x.avro")
        writer.close()
        assert paths(store) == ["staging/1-a/x.avro"]

    def test_a_writer_reports_what_is_stored(self, store: ObjectStore) -> None:
        data = random.Random(7).randbytes(700_001)
        writer = store.open_write("x")
        blocks: list[bytes | bytearray | memoryview] = [
            data[:10],
            bytearray(data[10:300_000]),
            memoryview(data)[300_000:],
        ]
        assert [writer.write(block) for block in blocks] == [10, 299_990, 400_001]
        stored = writer.close()
        checksum = google_crc32c.value(data).to_bytes(4, "big")
        assert (stored.path, stored.size) == ("x", len(data))
        assert stored.crc32c == base64.b64encode(checksum).decode()
        assert store.get("x").data == data
        assert list(store.checksums("")) == [stored]

    def test_checksums_are_those_of_the_bytes_as_they_are_now(self, store: ObjectStore) -> None:
        store.create("staging/2-b/x", b"x")
        generation = store.create("staging/1-a/y", b"y")
        store.create("staging/1-a/x", b"")
        store.swap("staging/1-a/y", b"another", generation)
        store.create("done/x", b"")
        found = [(each.path, each.size, each.crc32c) for each in store.checksums("staging/1-a/")]
        checksum = base64.b64encode(google_crc32c.value(b"another").to_bytes(4, "big")).decode()
        assert found == [("staging/1-a/x", 0, "AAAAAA=="), ("staging/1-a/y", 7, checksum)]
        assert [each.path for each in store.checksums("staging/")][2:] == ["staging/2-b/x"]

    def test_a_writer_that_gives_up_leaves_nothing(self, store: ObjectStore) -> None:
        writer = store.open_write("x")
        writer.write(b"x")
        writer.abort()
        writer.abort()
        assert paths(store) == []

    def test_giving_up_after_close_changes_nothing(self, store: ObjectStore) -> None:
        writer = store.open_write("x")
        writer.close()
        writer.abort()
        assert store.get("x").data == b""

    def test_a_writer_closes_on_a_free_path_only(self, store: ObjectStore) -> None:
        writer = store.open_write("x")
        writer.write(b"second")
        store.create("x", b"first")
        with pytest.raises(PreconditionFailed):
            writer.close()
        writer.abort()
        assert store.get("x").data == b"first"

    # Listing

    def test_a_listing_is_in_the_order_of_whole_paths(self, store: ObjectStore) -> None:
        ordered = ["a-b", "a.b", "a/b", "a/b0/c", "a/c", "a/é", "a0", "b"]
        for path in reversed(ordered):
            store.create(path, b"")
        assert paths(store) == ordered
        assert paths(store, "a/") == ["a/b", "a/b0/c", "a/c", "a/é"]
        assert paths(store, "a/b") == ["a/b", "a/b0/c"]
        assert paths(store, "a/b/") == []
        assert paths(store, "none/of/these") == []
        assert list(store.paths("a/")) == paths(store, "a/")
        assert list(store.paths("")) == ordered

    def test_a_listing_goes_on_after_a_path(self, store: ObjectStore) -> None:
        names = [f"done/{folder}{number}" for folder in ("", "a/", "b-", "b/") for number in range(10)]
        for name in names:
            store.create(name, b"")
        pages: list[str] = []
        while page := paths(store, "done/", start_after=pages[-1] if pages else "")[:7]:
            pages += page
        assert pages == sorted(names)

    def test_a_listing_is_the_sorted_paths_with_the_prefix_that_come_after(self, store: ObjectStore) -> None:
        @settings(max_examples=60, deadline=None)
        @given(st.sets(_PATHS, max_size=12), st.text(alphabet="-./0Aa", max_size=5), _PATHS | st.just(""))
        def compare(names: set[str], prefix: str, after: str) -> None:
            folder = f"example-{next(_EXAMPLES)}/"
            objects = {folder + name for name in names}
            objects -= {path for path in objects if any(other.startswith(f"{path}/") for other in objects)}
            self.fill(store, objects)
            asked = folder + ("" if {"", ".", ".."} & set(prefix.split("/")[:-1]) else prefix)
            wanted = sorted(path for path in objects if path.startswith(asked) and path > folder + after)
            assert paths(store, asked, folder + after) == wanted
            assert list(store.paths(asked, folder + after)) == wanted
            store.delete_many(objects)

        compare()

    def test_a_listed_object_has_its_size_and_time(self, store: ObjectStore) -> None:
        before = store.now_ms()
        store.create("a", b"")
        store.create("b", b"12345")
        stream(store, "c", b"123", b"45")
        after = store.now_ms()
        listed = list(store.list(""))
        assert [entry.size for entry in listed] == [0, 5, 5]
        assert all(before - 100 <= entry.updated_ms <= after + 100 for entry in listed)
        assert store.get("b").updated_ms == listed[1].updated_ms
        assert [entry.generation for entry in listed] == [store.get(e.path).generation for e in listed]

    def test_what_was_acknowledged_is_listed_and_what_was_deleted_is_not(self, store: ObjectStore) -> None:
        for number in range(self.rounds):
            store.create(f"a/{number}", b"")
            assert f"a/{number}" in paths(store, "a/")
            store.delete(f"a/{number}")
            assert paths(store, "a/") == []

    def test_a_listing_misses_no_object_while_others_come_go_and_change(self, store: ObjectStore) -> None:
        settled = [f"a/{number:03}" for number in range(100)]
        self.fill(store, settled)
        stop = threading.Event()

        def stir(name: str) -> bool:
            for number in range(self.rounds):
                store.create(f"a/{name}{number}", b"")
                path = settled[number % len(settled)]
                attempt(partial(store.swap, path, b"x", store.get(path).generation))
                store.delete(f"a/{name}{number}")
            stop.set()
            return True

        def look() -> bool:
            complete = True
            while not stop.is_set():
                listed = paths(store, "a/")
                complete &= set(settled) <= set(listed) and len(set(listed)) == len(listed)
            return complete

        assert all(at_once([look, partial(stir, "x"), partial(stir, "y")]))

    def test_many_objects_are_listed_in_a_few_seconds(self, store: ObjectStore) -> None:
        names = [f"done/{number % 97:02}/t.{number % 97}.d.t.1.{number}.done" for number in range(self.many)]
        self.fill(store, names)
        wanted, last = sorted(names), max(names)

        def list_all() -> None:
            assert paths(store, "done/") == wanted

        def list_the_last() -> None:
            assert paths(store, "done/", start_after=last[:-5]) == [last]

        assert goes_within(self.many_seconds, list_all)
        assert goes_within(self.many_seconds / 10, list_the_last)

    def test_many_empty_objects_are_created_unless_they_exist(self, store: ObjectStore) -> None:
        generation = store.create("done/2", b"")
        names = [f"done/{number}" for number in range(40)]
        assert store.create_empty(names) == store.create_empty(names) == {}
        assert sorted(paths(store)) == sorted(names)
        assert store.get("done/2").generation == generation
        assert {store.get(name).data for name in names} == {b""}

    def test_empty_objects_report_their_failures_and_go_on(self, store: ObjectStore) -> None:
        failures = store.create_empty(["a/x", "../outside", "b/y"])
        assert {path: type(error) for path, error in failures.items()} == {"../outside": InvalidName}
        assert paths(store) == ["a/x", "b/y"]

    # Deleting and copying

    def test_deleting_what_is_not_there_succeeds(self, store: ObjectStore) -> None:
        store.create("a/b", b"")
        for path in ("a/b", "a/b", "a", "a/b/c", "never/was"):
            store.delete(path)
        assert paths(store) == []

    def test_deletions_report_their_failures_and_go_on(self, store: ObjectStore) -> None:
        names = [f"staging/1-{folder}/{number}" for folder in "ab" for number in range(20)]
        for name in names:
            store.create(name, b"")
        store.create("kept", b"")
        failures = store.delete_many([*names[:30], "../outside", "never/was", *names[30:]])
        assert {path: type(error) for path, error in failures.items()} == {"../outside": InvalidName}
        assert paths(store) == ["kept"]

    def test_a_copy_is_content_equal_and_made_once(self, store: ObjectStore) -> None:
        stream(store, "staging/1-a/x", b"x" * 300_000)
        store.copy("staging/1-a/x", "quarantine/1-a/x")
        generation = store.get("quarantine/1-a/x").generation
        store.copy("staging/1-a/x", "quarantine/1-a/x")
        assert store.get("quarantine/1-a/x").data == b"x" * 300_000
        assert store.get("quarantine/1-a/x").generation == generation
        store.delete("staging/1-a/x")
        assert paths(store) == ["quarantine/1-a/x"]

    def test_a_copy_keeps_what_is_there(self, store: ObjectStore) -> None:
        store.create("a", b"a")
        store.create("b", b"b")
        store.copy("a", "b")
        assert store.get("b").data == b"b"

    # Paths

    @pytest.mark.parametrize("path", REFUSED)
    def test_a_path_that_some_store_could_not_carry_is_refused(self, store: ObjectStore, path: str) -> None:
        calls: list[Callable[[], object]] = [
            lambda: store.get(path),
            lambda: store.create(path, b""),
            lambda: store.swap(path, b"", 1),
            lambda: store.delete(path),
            lambda: store.copy("a", path),
            lambda: store.open_write(path),
            lambda: store.open_read(path),
        ]
        store.create("a", b"")
        for call in calls:
            with pytest.raises(InvalidName):
                call()

    @pytest.mark.parametrize(
        "path", ["commits/.topic.json", "a/..b", "a b/%20 é#?", "x" * 255, "done/t@1.json"]
    )
    def test_odd_names_are_carried(self, store: ObjectStore, path: str) -> None:
        store.create(path, b"odd")
        assert store.get(path).data == b"odd"
        assert paths(store) == [path]

    def test_an_object_has_an_address(self, store: ObjectStore) -> None:
        assert "://" in store.uri("staging/1-a/x.avro")
        assert store.uri("staging/1-a/x.avro").endswith("/staging/1-a/x.avro")
        assert store.uri("done/").rstrip("/").endswith("/done")

    # Time and temporary files

    def test_the_stores_time_goes_on(self, store: ObjectStore) -> None:
        first = store.now_ms()
        store.create("a", b"")
        assert first <= store.now_ms()

    def test_a_sweep_touches_no_object_and_no_writer_at_work(self, store: ObjectStore) -> None:
        store.create("a", b"a")
        writer = store.open_write("b")
        writer.write(b"b")
        assert store.sweep_temporary() == 0
        writer.close()
        assert [store.get(path).data for path in paths(store)] == [b"a", b"b"]


class SharedObjectStoreContract(ObjectStoreContract):
    """Give also an ``opener`` fixture: a picklable callable that opens the same store in another process."""

    processes = 4

    @pytest.fixture
    def opener(self) -> Opener:
        raise NotImplementedError

    def test_of_several_processes_exactly_one_creates_each_object(self, opener: Opener) -> None:
        names = [f"race/{number}" for number in range(self.rounds)]
        with forked_pool(self.processes, type(self).__module__) as pool:
            made = [pool.submit(create_all, opener, names, b"%d" % i) for i in range(self.processes)]
            created = [future.result() for future in made]
        assert sorted(name for each in created for name in each) == sorted(names)
        store = opener()
        for number, mine in enumerate(created):
            assert all(store.get(name).data == b"%d" % number for name in mine)

    def test_no_update_of_several_processes_is_lost(self, opener: Opener) -> None:
        opener().create("counter", b"0")
        with forked_pool(self.processes, type(self).__module__) as pool:
            futures = [pool.submit(increment_often, opener, "counter", 50) for _ in range(self.processes)]
            for future in futures:
                future.result()
        assert int(opener().get("counter").data) == 50 * self.processes
