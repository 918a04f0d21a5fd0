"""Pending files, in pages: reading a page is quick with any number of files, and no file is missed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbq_assets.core.extraction.planning import ExtractionPlan
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.pipelines.observation import pending, pending_loads
from kbq_assets.pipelines.operate import commands as operate
from kbq_assets.pipelines.protocol.state_cache import StateCache
from kbq_assets_tests.fakes.memory_store import FaultyMemoryStore
from kbq_assets_tests.fakes.platform import TOPIC, FakePlatform

TOPICS = [TOPIC, "shop.a", "shop.b"]
#: A page of one state object each.
ONE = 1


@given(st.dictionaries(st.text(), st.integers(0, 100)), st.text(), st.integers(0, 200))
def test_pages_hold_every_name_once_wherever_they_start(sizes: dict[str, int], start: str, room: int) -> None:
    found = list(pending.pages(sizes, start, room))
    names = [name for page in found for name in page]
    assert sorted(names) == sorted(sizes)
    assert all(len(page) == 1 or sum(sizes[name] for name in page) <= room for page in found)
    later = [name for name in sorted(sizes) if name >= start]
    assert names == [*later, *(name for name in sorted(sizes) if name < start)]


def seconds(*times: float) -> Callable[[], float]:
    remaining = iter(times)
    return lambda: next(remaining)


def ask_length(page: frozenset[str] | None) -> int:
    return -1 if page is None else len(page)


def test_a_single_page_is_everything() -> None:
    found = pending.poll_pages([("a", "b")], ask_length, bool, seconds())
    assert found == pending.Poll((-1,), "", True)


def test_a_poll_ends_at_the_first_page_with_work_and_begins_there_again() -> None:
    asked: list[frozenset[str] | None] = []

    def ask(page: frozenset[str] | None) -> bool:
        asked.append(page)
        return page == frozenset("b")

    found = pending.poll_pages([("a",), ("b",), ("c",)], ask, bool, lambda: 0.0)
    assert found == pending.Poll((False, True), "b", False)
    assert asked == [frozenset("a"), frozenset("b")]


def test_a_poll_that_runs_out_of_time_continues_where_it_ended() -> None:
    late = pending.POLL_SECONDS + 1
    found = pending.poll_pages([("a",), ("b",), ("c",)], lambda page: 0, bool, seconds(0, 0, late))
    assert found == pending.Poll((0, 0), "c", False)


@pytest.fixture
def staged(tmp_path: Path) -> FakePlatform:
    """Three topics with committed files in a table each."""
    world = FakePlatform(tmp_path, sources="shop.* dataset=shop\n")
    for topic in TOPICS[1:]:
        world.kafka.create_topic(topic, 1)
    for topic in TOPICS:
        world.produce(topic=topic)
    world.parts.extractor.extract()
    return world


def poll_loads(world: FakePlatform, start: str = "", page_bytes: int = ONE) -> pending_loads.PendingLoads:
    cache = StateCache(world.store)
    limits = world.warehouse.limits
    return pending_loads.poll_loads(cache, limits, world.clock.monotonic, start=start, page_bytes=page_bytes)


def test_pages_together_find_what_a_load_would_work_on(staged: FakePlatform) -> None:
    planned = sorted(file.path for batch in staged.parts.loader.plan().batches for file in batch.files)
    assert list(poll_loads(staged, page_bytes=pending.PAGE_BYTES).names) == planned
    starts = [f"commits/{topic}.json" for topic in TOPICS]
    by_page = [poll_loads(staged, start).names for start in starts]
    assert [len(names) for names in by_page] == [1, 1, 1]
    assert sorted(name for names in by_page for name in names) == planned


@pytest.mark.parametrize("start", ["", "commits/shop.b.json", "zzz", "\x00"])
def test_wherever_a_poll_starts_it_finds_the_only_file(staged: FakePlatform, start: str) -> None:
    staged.parts.loader.load()
    staged.produce(topic="shop.a")
    staged.parts.extractor.extract()
    assert len(poll_loads(staged, start).names) == 1
    staged.parts.loader.load()
    found = poll_loads(staged, start)
    assert (found.names, found.complete) == ((), True)


def test_a_backlog_is_found_on_its_page(staged: FakePlatform) -> None:
    staged.parts.loader.load()
    staged.produce(topic="shop.a")
    staged.parts.extractor.extract()
    table = TableReference("shop", "shop_a")
    operate.propose_park_table(staged.store, table).apply()
    assert poll_loads(staged).names == ()
    staged.parts.extractor.extract()  # moves the files of parked tables to their backlogs
    operate.propose_resume_table(staged.store, table).apply()
    assert len(poll_loads(staged).names) == 1


@pytest.mark.parametrize("start", ["", "shop.b", "zzz"])
def test_new_records_are_found_wherever_a_poll_starts(staged: FakePlatform, start: str) -> None:
    def look() -> pending.Poll[ExtractionPlan]:
        plan = staged.parts.extractor.plan
        clock = staged.clock.monotonic
        return pending.poll_records(staged.store, TOPICS, plan, clock, start=start, page_bytes=ONE)

    assert (look().complete, len(look().answers)) == (True, 3)
    staged.produce(topic="shop.a")
    found = look()
    assert pending.has_work(found.answers[-1])
    assert found.start == "shop.a"


def find_done(store: FaultyMemoryStore, seen: str = "") -> pending.NewDoneFiles:
    return pending.find_done_files(store, seen, lambda: 0.0)


@given(st.sets(st.integers(0, 10**6), max_size=30), st.sets(st.integers(0, 10**6), max_size=30))
def test_done_files_are_new_once_and_deleted_ones_are_not(first: set[int], second: set[int]) -> None:
    store = FaultyMemoryStore()
    names = {number: f"done/t.0.d.t.1.{number}.{number}.done" for number in first | second}
    for number in first:
        store.create(names[number], b"")
    seen = find_done(store).seen
    assert find_done(store, seen).names == ()
    for number in first - second:
        store.delete(names[number])
    assert find_done(store, seen).names == ()
    for number in second - first:
        store.create(names[number], b"")
    found = find_done(store, seen)
    # A bitmap of 32,768 bits: a name may share its bit with an old one.
    assert {name.partition("#")[0] for name in found.names} <= {names[n] for n in second - first}
    assert len(found.names) >= len(second - first) - 2
    assert find_done(store, found.seen).names == ()


@pytest.mark.parametrize("seen", ["", "lost", "commits/a.json", "\x00", "eJwDAAAAAAE=", "🙂"])
def test_a_lost_listing_makes_no_done_file_new(seen: str) -> None:
    store = FaultyMemoryStore()
    store.create("done/t.0.d.t.1.0.0.done", b"")
    found = find_done(store, seen)
    assert found.names == ()
    store.create("done/t.0.d.t.1.1.1.done", b"")
    assert len(find_done(store, found.seen).names) == 1


def test_what_a_listing_remembers_does_not_grow_with_it() -> None:
    store = FaultyMemoryStore()
    for number in range(20_000):
        store.create(f"done/t.0.d.t.1.{number}.{number}.done", b"")
    assert len(find_done(store).seen) <= 6_000


def test_a_listing_ends_after_its_time_and_remembers_the_one_before() -> None:
    store = FaultyMemoryStore()
    for number in range(3):
        store.create(f"done/t.0.d.t.1.{number}.{number}.done", b"")
    late = pending.LIST_SECONDS + 1
    assert pending.find_done_files(store, "before", seconds(0, 1, late)) == pending.NewDoneFiles((), "before")


def test_what_else_lies_among_done_files_is_no_done_file() -> None:
    store = FaultyMemoryStore()
    seen = find_done(store).seen
    store.create("done/README.txt", b"")
    assert find_done(store, seen).names == ()
