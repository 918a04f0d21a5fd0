"""A commit is split into a head and manifests, and the round trip loses nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbq_assets.core.errors import StateError
from kbq_assets.core.protocol import commits
from kbq_assets.core.protocol.commits import MOST_GAPS, AcceptedGap, Commit, PartitionCommit, Window
from kbq_assets.core.protocol.manifest_entries import ManifestEntry
from kbq_assets.core.protocol.manifests import (
    LIMITS,
    CommitParts,
    HeadDraft,
    Limits,
    Manifest,
    combined,
    merge_run,
    packed,
    sealed,
    whole,
)
from kbq_assets_tests.strategies import staged_file, window

EMPTY = Commit("t", 0, "c", "id", 1, {n: PartitionCommit(0) for n in range(3)})
#: Everything goes to manifests, a window to each.
NOTHING_STAYS = Limits(tail=0, records=0, manifest=1)


def windowed(first: int, partition: int = 0, *tables: str) -> Window:
    """A window of two positions."""
    files = [
        staged_file(first, first + 2, partition=partition, table=table, rows=1)
        for table in tables or ("d.t",)
    ]
    return window(first, first + 2, *files, gaps=2 - len(files))


def commit_of(
    windows: Mapping[int, Sequence[int]], gaps: Mapping[int, int] | None = None, *given_up: str
) -> Commit:
    """A commit with windows at positions, and a gap of one position for each partition in ``gaps``."""
    states = dict(EMPTY.partitions)
    for partition, firsts in windows.items():
        found = tuple(windowed(first, partition) for first in firsts)
        states[partition] = dataclasses.replace(
            states[partition], windows=found, next=found[-1].until if found else 0
        )
    for partition, first in (gaps or {}).items():
        gap = AcceptedGap(first, first + 1, "retention")
        states[partition] = dataclasses.replace(states[partition], accepted_gaps=(gap,))
    return dataclasses.replace(EMPTY, partitions=states, given_up=given_up)


def written(draft: HeadDraft, generation: int = 1) -> CommitParts:
    """The head and the new manifests that a draft leads to."""
    manifests: dict[str, Manifest] = {}
    entries = []
    for number, piece in enumerate(draft.pieces):
        if isinstance(piece, Manifest):
            manifests[f"{generation}-{number}"] = piece
            windows = sum(len(each) for each in piece.windows.values())
            entries.append(ManifestEntry(f"{generation}-{number}", "", 100, windows))
        else:
            entries.append(piece)
    return CommitParts(dataclasses.replace(draft.tail, manifests=tuple(entries)), manifests)


def in_manifests(commit: Commit, limits: Limits = NOTHING_STAYS) -> CommitParts:
    return written(sealed(HeadDraft(commit, ()), limits))


FULL = commit_of({0: [0, 2, 4], 1: [0, 2]}, {2: 5}, "staging/1-a/x", "staging/1-a/y")


def test_a_head_without_manifests_is_the_commit() -> None:
    assert whole(CommitParts(FULL, {})) is FULL
    assert packed(CommitParts(FULL, {}), FULL) == HeadDraft(FULL, ())


def test_a_small_commit_stays_in_its_head() -> None:
    assert sealed(HeadDraft(FULL, ()), LIMITS) == HeadDraft(FULL, ())


def test_everything_may_move_to_manifests_and_back() -> None:
    parts = in_manifests(FULL)
    assert all(not state.windows and not state.accepted_gaps for state in parts.head.partitions.values())
    assert parts.head.given_up == ()
    assert whole(parts) == FULL


def test_a_head_does_not_pretend_to_list_all_files() -> None:
    with pytest.raises(StateError, match="a head does not list all files"):
        list(in_manifests(FULL).head.files)


def test_windows_and_records_are_in_manifests_of_their_own() -> None:
    kinds = [
        (bool(m.windows), bool(m.accepted_gaps), bool(m.given_up))
        for m in in_manifests(FULL).manifests.values()
    ]
    assert all(sum(each) == 1 for each in kinds)


@pytest.mark.parametrize(
    ("limits", "windows", "records"),
    [
        (Limits(tail=0, records=10_000), True, False),
        (Limits(tail=10_000_000, records=0), False, True),
    ],
)
def test_windows_and_records_have_bounds_of_their_own(limits: Limits, windows: bool, records: bool) -> None:
    tail, pieces = sealed(HeadDraft(FULL, ()), limits)
    assert (not any(state.windows for state in tail.partitions.values())) is windows
    assert (not tail.given_up) is records
    assert len(pieces) > 0


def test_partitions_share_manifests_in_step() -> None:
    commit = commit_of({0: range(0, 20, 2), 1: range(0, 20, 2)})
    parts = in_manifests(commit, Limits(tail=0, manifest=100))
    first = next(iter(parts.manifests.values()))
    assert {n: [w.first for w in each] for n, each in first.windows.items()} == {0: [0], 1: [0]}
    assert len(parts.manifests) == 10


def test_at_most_ten_manifests_are_written_at_once() -> None:
    parts = in_manifests(commit_of({0: range(0, 100, 2)}))
    assert len(parts.manifests) == 10
    assert sum(len(each) for m in parts.manifests.values() for each in m.windows.values()) == 50


def test_a_manifest_without_a_change_stays_as_it_is() -> None:
    parts = in_manifests(FULL)
    draft = packed(parts, whole(parts))
    assert draft.pieces == parts.head.manifests
    assert draft.tail == dataclasses.replace(parts.head, manifests=())


def test_new_windows_are_in_the_tail() -> None:
    parts = in_manifests(FULL)
    more = commits.publish(whole(parts), 1, 1, [windowed(4, 1)])
    draft = packed(parts, more)
    assert [w.first for w in draft.tail.partitions[1].windows] == [4]
    assert draft.pieces == parts.head.manifests
    assert whole(written(draft)._replace(manifests=parts.manifests)) == more


def test_manifests_that_are_known_to_be_done_are_marked() -> None:
    parts = in_manifests(FULL)
    name = parts.head.manifests[1].name
    marked = packed(parts, whole(parts), done={name}).pieces
    assert [entry.name for entry in marked if isinstance(entry, ManifestEntry) and entry.done] == [name]


ONE_MANIFEST = CommitParts(
    dataclasses.replace(EMPTY, manifests=(ManifestEntry("m", "", 9, 2),)),
    {"m": Manifest({0: (windowed(0), windowed(2))})},
)


@pytest.mark.parametrize(
    ("rewrite", "pieces"), [(True, (Manifest({0: (windowed(2),)}),)), (False, ONE_MANIFEST.head.manifests)]
)
def test_a_manifest_loses_single_windows_only_if_it_is_rewritten(
    rewrite: bool, pieces: tuple[object, ...]
) -> None:
    pruned = commits.prune(whole(ONE_MANIFEST), lambda file: file.window == 0)
    draft = packed(ONE_MANIFEST, pruned, rewrite=rewrite)
    assert draft.pieces == pieces
    assert not any(state.windows for state in draft.tail.partitions.values())


@pytest.mark.parametrize("rewrite", [True, False])
def test_a_manifest_leaves_when_all_of_its_windows_may(rewrite: bool) -> None:
    pruned = commits.prune(whole(ONE_MANIFEST), lambda file: True)
    assert packed(ONE_MANIFEST, pruned, rewrite=rewrite).pieces == ()


def test_a_manifest_that_was_not_read_stays() -> None:
    unread = CommitParts(ONE_MANIFEST.head, {})
    assert whole(unread) == EMPTY
    assert packed(unread, whole(unread)).pieces == ONE_MANIFEST.head.manifests


def test_a_manifest_of_a_partition_that_is_gone_adds_nothing() -> None:
    head = dataclasses.replace(ONE_MANIFEST.head, partitions={1: PartitionCommit(0)})
    parts = CommitParts(head, ONE_MANIFEST.manifests)
    assert whole(parts).partitions == {1: PartitionCommit(0)}
    assert packed(parts, whole(parts)).pieces == ()


def test_a_gap_that_grew_moves_to_the_tail() -> None:
    gap = AcceptedGap(0, 5, "retention")
    head = dataclasses.replace(
        EMPTY, partitions={0: PartitionCommit(5)}, manifests=(ManifestEntry("m", "", 9),)
    )
    parts = CommitParts(head, {"m": Manifest(accepted_gaps={0: (gap,)})})
    grown = commits.accept_gap(whole(parts), 0, 9, "retention")
    draft = packed(parts, grown)
    assert draft.pieces == ()
    assert draft.tail.partitions[0].accepted_gaps == (AcceptedGap(0, 9, "retention"),)


def entry(name: str, size: int, windows: int) -> ManifestEntry:
    return ManifestEntry(name, "", size, windows)


FEW_MANIFESTS = Limits(windows_manifests=3, records_manifests=2, merged=2)


@pytest.mark.parametrize(
    ("entries", "run"),
    [
        ([], []),
        ([entry(n, 1, 1) for n in "abc"], []),
        ([entry(n, 1, 0) for n in "ab"], []),
        ([entry("a", 9, 1), entry("b", 2, 1), entry("c", 3, 1), entry("d", 9, 1)], ["b", "c"]),
        ([entry("a", 1, 1), entry("b", 1, 1), entry("c", 1, 1), entry("d", 1, 1)], ["a", "b"]),
        (
            [entry("a", 1, 1), entry("r", 1, 0), entry("b", 1, 1), entry("c", 9, 1), entry("d", 9, 1)],
            ["a", "b"],
        ),
        ([entry("a", 3, 0), entry("b", 2, 0), entry("c", 1, 0)], ["b", "c"]),
        ([entry(n, 1, 1) for n in "abcd"] + [entry(n, 1, 0) for n in "rst"], ["a", "b"]),
    ],
)
def test_the_smallest_manifests_that_adjoin_are_merged_if_there_are_too_many(
    entries: list[ManifestEntry], run: list[str]
) -> None:
    assert [each.name for each in merge_run(entries, FEW_MANIFESTS)] == run


def test_no_manifest_is_rewritten_for_a_few_small_ones() -> None:
    sizes = zip("abcdefgh", (9, 9, 9, 9, 20, 1, 1, 1), strict=True)
    entries = [entry(name, size, 1) for name, size in sizes]
    limits = Limits(windows_manifests=3, merged=4)
    assert [each.name for each in merge_run(entries, limits)] == ["a", "b", "c", "d"]
    no_other = merge_run(entries[4:], limits)
    assert [each.name for each in no_other] == ["e", "f", "g", "h"]


def rewritten(manifests: int) -> float:
    """How often a byte is written while this many manifests of one byte are added."""
    limits, written = Limits(windows_manifests=20, merged=5), manifests
    entries: list[ManifestEntry] = []
    for number in range(manifests):
        entries.append(entry(str(number), 1, 1))
        while run := merge_run(entries, limits):
            at, size = entries.index(run[0]), sum(each.bytes for each in run)
            entries[at : at + len(run)] = [entry(run[0].name, size, 1)]
            written += size
    return written / manifests


def test_a_byte_is_rewritten_a_few_times_however_many_manifests_there_are() -> None:
    few, many = rewritten(400), rewritten(1_600)
    assert many < few + 2  # if the smallest run were merged whatever its sizes: 4.8 and 15


def test_a_merged_manifest_has_the_contents_in_order() -> None:
    first = Manifest({0: (windowed(0),), 1: (windowed(0, 1),)}, {}, ("x",))
    second = Manifest({0: (windowed(2),)}, {2: (AcceptedGap(0, 1, "a"),)}, ("y",))
    merged = combined(iter([first, second]))
    assert merged.windows == {0: (windowed(0), windowed(2)), 1: (windowed(0, 1),)}
    assert (merged.accepted_gaps, merged.given_up) == ({2: (AcceptedGap(0, 1, "a"),)}, ("x", "y"))
    assert combined([]) == Manifest()


def test_of_merged_gaps_the_latest_are_kept() -> None:
    gaps = [AcceptedGap(n, n + 1, str(n)) for n in range(MOST_GAPS + 5)]
    merged = combined(
        [Manifest(accepted_gaps={0: tuple(gaps[:50])}), Manifest(accepted_gaps={0: tuple(gaps[50:])})]
    )
    assert merged.accepted_gaps == {0: tuple(gaps[5:])}


def test_a_manifest_knows_its_files_and_whether_anything_is_left() -> None:
    manifest = Manifest({0: (windowed(0, 0, "d.a", "d.b"),), 1: (windowed(0, 1),)})
    assert [str(file.table) for file in manifest.files] == ["d.a", "d.b", "d.t"]
    assert [each.is_empty for each in (manifest, Manifest(), Manifest(given_up=("x",)))] == [
        False,
        True,
        False,
    ]
    assert not Manifest(accepted_gaps={0: (AcceptedGap(0, 1, "a"),)}).is_empty


@settings(max_examples=20)
@given(
    st.dictionaries(st.integers(0, 2), st.integers(0, 4).map(lambda n: list(range(0, 2 * n, 2)))),
    st.dictionaries(st.integers(0, 2), st.integers(0, 9)),
    st.lists(st.text("xyz", min_size=1, max_size=3), unique=True, max_size=4),
    st.sampled_from([0, 300, 900]),
    st.sampled_from([1, 400]),
    st.sets(st.integers(0, 8)),
)
def test_any_commit_survives_its_manifests_and_a_change(
    windows: dict[int, list[int]],
    gaps: dict[int, int],
    given_up: list[str],
    bound: int,
    size: int,
    pruned: set[int],
) -> None:
    commit = commit_of(windows, gaps, *given_up)
    limits = Limits(tail=bound, records=bound, manifest=size)
    parts = in_manifests(commit, limits)
    assert whole(parts) == commit
    changed = commits.prune(commit, lambda file: file.window in pruned)
    after = written(sealed(packed(parts, changed), limits), 2)
    assert whole(after._replace(manifests={**parts.manifests, **after.manifests})) == changed
