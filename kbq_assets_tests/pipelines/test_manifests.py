"""A commit with a head and manifests equals the whole commit, and a swap costs the same however much waits (M1 to
M4)."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from kbq_assets.core.errors import CorruptState, UnknownOutcome
from kbq_assets.core.protocol import codec, commits
from kbq_assets.core.protocol.commits import Commit, PartitionCommit, StagedFile
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.manifest_entries import ManifestEntry
from kbq_assets.core.protocol.manifests import LIMITS, Limits
from kbq_assets.core.protocol.names import ManifestName, commit_path
from kbq_assets.pipelines.operate.clean import clean
from kbq_assets.pipelines.protocol import manifests, state
from kbq_assets.pipelines.protocol.state_cache import StateCache
from kbq_assets_tests.fakes.faults import Outcome
from kbq_assets_tests.fakes.memory_store import FaultyMemoryStore
from kbq_assets_tests.fakes.script import Script
from kbq_assets_tests.fixtures.tiny_manifests import NO_TAIL, TINY, tiny_manifests
from kbq_assets_tests.pipelines.bench import TOPIC, A, B, Bench
from kbq_assets_tests.simulation.manifest_mutants import LIST_AFTER_HEADS, READ_ONCE, TAKEN_FOR_EMPTY
from kbq_assets_tests.simulation.mutants import Mutant
from kbq_assets_tests.strategies import staged_file, window

PATH = commit_path("t")
EMPTY = Commit("t", 0, "c", "id", 1, {n: PartitionCommit(0) for n in range(3)})
Change = Callable[[Commit], Commit]


@pytest.fixture
def store() -> FaultyMemoryStore:
    store = FaultyMemoryStore()
    state.create_commit(store, EMPTY)
    return store


def published(partition: int, commit: Commit) -> Commit:
    """With one more window of two positions in a partition."""
    first = commit.partitions[partition].next
    file = staged_file(first, first + 2, partition=partition, epoch=commit.epoch)
    return commits.publish(commit, partition, commit.epoch, [window(first, first + 2, file)])


def publish(store: FaultyMemoryStore, *partitions: int) -> None:
    """As a publisher does: from head to head."""
    head = state.read_head(store, PATH)
    wanted = head.value
    for partition in partitions:
        wanted = published(partition, wanted)
    state.swap(store, head, wanted)


def read(store: FaultyMemoryStore) -> Commit:
    return state.read(store, Commit, PATH).value


def _restaged(number: int, file: StagedFile) -> StagedFile:
    return dataclasses.replace(file, restaged=1) if file.window % 3 == number else file


def _changes(chance: random.Random, now: Commit) -> Change:
    partition = chance.randrange(3)
    below = chance.randrange(now.partitions[partition].next + 1)
    changes: list[Change] = [
        partial(published, partition),
        partial(published, partition),
        partial(published, partition),
        lambda c: commits.prune(
            c, lambda f: f.name.topic_partition.partition == partition and f.until <= below
        ),
        lambda c: commits.drop_files(c, lambda f: f.window % 5 == partition),
        lambda c: commits.map_files(c, partial(_restaged, partition)),
        lambda c: commits.accept_gap(c, partition, c.partitions[partition].next + 1, f"for {below}"),
        lambda c: commits.reset(c, {partition: 0}, cluster_id="c", topic_id="id", give_up_pending=True),
    ]
    return chance.choice(changes)


@pytest.mark.parametrize("seed", range(8))
def test_a_commit_in_manifests_is_what_it_is_in_one_object(store: FaultyMemoryStore, seed: int) -> None:
    chance, expected, most = random.Random(seed), EMPTY, 0
    cache = StateCache(store)
    with tiny_manifests():
        for _ in range(80):
            change = _changes(chance, expected)
            if isinstance(change, partial) and chance.random() < 0.7:
                publish(store, *change.args)
            else:
                state.change(store, Commit, PATH, change)
            expected = change(expected)
            assert read(store) == expected
            [cached] = cache.read(Commit, [PATH], cache.listing("commits/"))
            assert isinstance(cached, state.Versioned)
            assert cached.value == expected
            head = state.read_head(store, PATH).value
            most = max(most, len(head.manifests))
            kinds = [bool(entry.windows) for entry in head.manifests]
            assert kinds.count(True) <= TINY.windows_manifests
            assert kinds.count(False) <= TINY.records_manifests
            clean(store)
            assert len(list(store.list("manifests/"))) <= len(head.manifests) + 10
    assert most >= TINY.windows_manifests


def test_a_small_commit_has_no_manifest(store: FaultyMemoryStore) -> None:
    for _ in range(50):
        publish(store, 0)
    assert list(store.list("manifests/")) == []


def wide(tables: int, partitions: int) -> Commit:
    """A commit whose partitions count rows of many tables."""
    rows = {f"a_dataset.a_table_with_a_long_name_{n:04}": 10**9 + n for n in range(tables)}
    start = PartitionCommit(0, totals=Counts(positions=10**12, records=10**12, rows=rows))
    return dataclasses.replace(EMPTY, partitions=dict.fromkeys(range(partitions), start))


def test_a_swap_writes_as_much_after_four_times_as_many_windows() -> None:
    store = FaultyMemoryStore()
    state.create_commit(store, wide(3, 8))
    written: list[int] = []
    heads: list[int] = []
    with tiny_manifests(dataclasses.replace(LIMITS, tail=6_000)):
        for _ in range(80):
            before = {entry.path for entry in store.list("manifests/")}
            publish(store, *range(8))
            heads.append(len(store.get(PATH).data))
            written.append(sum(e.size for e in store.list("manifests/") if e.path not in before))
    assert sum(len(p.windows) for p in read(store).partitions.values()) == 80 * 8
    assert max(heads[60:]) <= max(heads[:20]) + 200 * len(list(store.list("manifests/")))
    assert sum(written[60:]) <= sum(written[:20]) + max(written)


def test_a_swap_of_64_partitions_and_50_tables_stays_below_256_kb() -> None:
    store = FaultyMemoryStore()
    entries = tuple(ManifestEntry(f"1764000000000000-{n:012}", f"{n:032}", 10**7, n % 10) for n in range(190))
    store.create(PATH, codec.dumps(dataclasses.replace(wide(50, 64), manifests=entries)))
    heads = []
    for _ in range(4):
        publish(store, *range(64))
        heads.append(len(store.get(PATH).data))
    assert 200_000 < max(heads) < 256 * 1024


def test_merging_rewrites_a_window_a_few_times_at_most(store: FaultyMemoryStore) -> None:
    limits = Limits(tail=1_000, windows_manifests=20)
    with tiny_manifests(limits):
        for _ in range(250):
            publish(store, 0, 1)
    head = state.read_head(store, PATH).value
    assert len(head.manifests) <= 20
    written = sum(entry.size for entry in store.list("manifests/"))
    assert written < 4 * sum(entry.bytes for entry in head.manifests)
    assert len(store.get(PATH).data) < 8_000


# M1, M2: writers


@pytest.mark.parametrize("outcome", [Outcome.LOST_REPLY, Outcome.UNAVAILABLE, Outcome.LATE])
@pytest.mark.parametrize("operation", ["create", "swap"])
def test_a_publication_whose_reply_is_lost_is_published_once(outcome: Outcome, operation: str) -> None:
    target = "manifests/" if operation == "create" else "commits/shop"
    bench = Bench()
    with tiny_manifests(NO_TAIL):
        for schemas in ((1, 3), (1, 1), (3,)):
            bench.produce(*schemas)
            bench.extract()
        bench.produce(1, 3)
        bench.faults = Script(
            operation, target, outcome, nth=2 if operation == "swap" else 1
        )  # first it prunes
        report = bench.extract()
        published = sum(len(p.files) for p in report.partitions)
        bench.faults = lambda call: Outcome.OK
        while bench.store.late:
            bench.store.deliver_late()
        bench.extract()
        if outcome is Outcome.LOST_REPLY:
            assert published == 2
            assert report.failures == {}
        bench.load()
        bench.load()
    assert (len(bench.offsets(A)), len(bench.offsets(B))) == (4, 3)
    assert bench.warehouse.duplicates() == {}


def test_names_are_parsed_as_they_are_formatted() -> None:
    for name in (ManifestName("a.b-c", 0, 17, "r1"), ManifestName("t", 12, 9**18, "ab0")):
        assert ManifestName.parse(name.format()) == name
    assert (
        list(manifests.names_of(["manifests/t/1.json", "manifests/t@x/1-a.json", "manifests/t/1-a", "x"]))
        == []
    )


# M3: clean-up


def _orphan(store: FaultyMemoryStore, generation: int) -> str:
    path = ManifestName("t", 0, generation, "orphan").format()
    store.create(path, b"{}")
    return path


def test_a_manifest_that_a_swap_may_still_name_is_spared(store: FaultyMemoryStore) -> None:
    generation = store.get(PATH).generation
    coming, gone = _orphan(store, generation), _orphan(store, generation - 1)
    clean(store)
    assert [entry.path for entry in store.list("manifests/")] == [coming]
    with tiny_manifests(NO_TAIL):
        publish(store, 0)
    clean(store)
    named = [manifests.path_of(EMPTY, entry) for entry in state.read_head(store, PATH).value.manifests]
    assert [entry.path for entry in store.list("manifests/")] == named
    assert gone not in named


@pytest.mark.parametrize("at", [("get", PATH), ("list", "manifests/"), ("list", "done/")])
def test_a_manifest_that_is_named_while_clean_up_reads_is_spared(
    store: FaultyMemoryStore, at: tuple[str, str]
) -> None:
    _clean_during_publications(store, *at)


def _clean_during_publications(store: FaultyMemoryStore, operation: str, target: str) -> None:
    def publish_twice() -> None:
        publish(store, 0)
        publish(store, 0)

    store.faults = Script(operation, target, before=publish_twice)
    with tiny_manifests(NO_TAIL):
        clean(store.view("janitor"))
    assert len(read(store).partitions[0].windows) == 2


def test_clean_up_that_reads_heads_first_deletes_named_manifests(store: FaultyMemoryStore) -> None:
    with LIST_AFTER_HEADS.active(), pytest.raises(CorruptState, match="is missing"):
        _clean_during_publications(store, "list", "manifests/")


def test_manifests_of_a_commit_that_cannot_be_read_are_spared(store: FaultyMemoryStore) -> None:
    with tiny_manifests(NO_TAIL):
        publish(store, 0)
    held = dict(store.objects)
    store.swap(PATH, b"{", store.get(PATH).generation)
    clean(store)
    assert {path for path in held if path.startswith("manifests/")} <= store.objects.keys()


# M4: readers


def test_a_manifest_that_left_while_it_was_read_is_not_missed(store: FaultyMemoryStore) -> None:
    _read_during_a_merge(store)


@pytest.mark.parametrize("mutant", [TAKEN_FOR_EMPTY, READ_ONCE], ids=lambda m: m.name.replace(" ", "-"))
def test_a_reader_that_reads_the_head_once_misses_windows_or_stops(
    store: FaultyMemoryStore, mutant: Mutant
) -> None:
    with mutant.active(), pytest.raises((AssertionError, CorruptState)):
        _read_during_a_merge(store)


def _read_during_a_merge(store: FaultyMemoryStore) -> None:
    with tiny_manifests(dataclasses.replace(NO_TAIL, windows_manifests=2, merged=2)):
        publish(store, 0)
        publish(store, 1)

        def merge_and_clean() -> None:
            publish(store, 2)
            publish(store, 0)
            clean(store)

        store.faults = Script("get", "manifests/", before=merge_and_clean)
        found = state.read(store.view("reader"), Commit, PATH).value
    assert found == read(store)
    assert [len(p.windows) for p in found.partitions.values()] == [2, 1, 1]


def _damages(store: FaultyMemoryStore, path: str) -> Iterator[Callable[[], None]]:
    good = store.get(path)
    others = [e.path for e in store.list("manifests/") if e.path != path]
    for data in (None, good.data[:-5] + b"00000", good.data[:50], store.get(others[0]).data):

        def damage(data: bytes | None = data) -> None:
            store.objects.pop(path)
            if data is not None:
                store.create(path, data)

        yield damage


@pytest.mark.parametrize("number", range(4))
def test_a_manifest_that_is_lost_stops_its_topic_alone_until_it_is_restored(number: int) -> None:
    bench = Bench(partitions=2)
    with tiny_manifests(NO_TAIL):
        for partition in (0, 1):
            bench.produce(1, 3, partition=partition)
            bench.extract()
    commit = state.read_head(bench.store, commit_path(TOPIC))
    path = manifests.path_of(commit.value, commit.value.manifests[0])
    good = bench.store.objects[path]
    list(_damages(bench.store, path))[number]()
    with pytest.raises(CorruptState, match=r"manifests/shop.events/.*") as lost:
        state.read(bench.store, Commit, commit_path(TOPIC))
    assert "restore the object" in lost.value.next_step
    bench.load()
    assert bench.offsets(A) == bench.offsets(B) == []
    clean(bench.store)
    bench.extract()
    if number in (0, 2):  # a listing shows it
        assert [stop.reason for stop in bench.extract().stops] == ["commit_unreadable"]
    bench.store.objects[path] = good
    bench.produce(1)
    bench.extract()
    bench.load()
    assert (len(bench.offsets(A)), len(bench.offsets(B))) == (3, 2)
    assert bench.warehouse.duplicates() == {}


def test_an_unknown_outcome_of_a_manifest_leaves_an_orphan(store: FaultyMemoryStore) -> None:
    store.faults = Script("create", "manifests/", Outcome.LOST_REPLY)
    view = store.view("publisher")
    head = state.read_head(store, PATH)
    with tiny_manifests(NO_TAIL), pytest.raises(UnknownOutcome):
        state.swap(view, head, published(0, head.value))
    assert read(store) == EMPTY
    publish(store, 1)
    clean(store)
    assert list(store.list("manifests/")) == []


# Pruning


def test_pruning_reads_few_manifests_whatever_waits() -> None:
    reads = {}
    for rounds in (12, 36):
        bench = Bench()
        with tiny_manifests(NO_TAIL):
            for _ in range(rounds):
                bench.produce(1)
                bench.extract()
            script = Script("get", "manifests/")
            bench.faults = script
            bench.extract()
            reads[rounds] = sum((c.operation, c.target[:10]) == ("get", "manifests/") for c in script.calls)
    assert reads[12] == reads[36] <= 10


def test_loaded_manifests_leave_and_parked_tables_files_go_to_their_backlog() -> None:
    bench = Bench()
    with tiny_manifests(NO_TAIL):
        for _ in range(12):
            bench.produce(1, 3)
            bench.extract()
        bench.load()
        bench.extract()
    assert state.read_head(bench.store, commit_path(TOPIC)).value.manifests == ()
    clean(bench.store)
    assert bench.paths("manifests/") == []


@pytest.mark.parametrize("limits", [LIMITS, NO_TAIL], ids=["head", "manifests"])
def test_an_idle_run_encodes_and_writes_nothing_whatever_waits(
    limits: Limits, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench()
    with tiny_manifests(limits):
        for _ in range(3):
            bench.produce(1, 2)
            bench.extract()
        bench.extract()  # marks the manifests whose done files it has seen
        before = dict(bench.store.objects)
        monkeypatch.setattr(codec, "encode", lambda value: pytest.fail(f"{value} is encoded"))
        monkeypatch.setattr("kbq_assets.core.protocol.manifests.encode", codec.encode)
        assert bench.extract().partitions == ()
    changed = {
        path for path in {*before, *bench.store.objects} if before.get(path) != bench.store.objects.get(path)
    }
    assert changed == set()
