"""The records that an erasure deletes, and its entry in the log."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kbq_assets.core.erasure.model import (
    Deletion,
    ErasedPartition,
    Erasure,
    ErasureLog,
    RewrittenFile,
    check_version,
    erased_rows,
    erasure_path,
    log_path,
    parse_erasure_path,
    raised,
    reaching,
    with_erasure,
)
from kbq_assets.core.erasure.selection import PersonRecords, parse_column, pseudonyms_in
from kbq_assets.core.erasure.staged import for_warehouse, with_rewritten
from kbq_assets.core.errors import ConfigurationError, InvalidName, MissingState
from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol.commits import Commit, PartitionCommit, StagedFile, Window
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.topics.personal import Pseudonyms, parse_decisions

COMMIT = Commit("t", 0, "c", "id", 3, {0: PartitionCommit(9, since=2), 1: PartitionCommit(5, since=1)})
ERASURE = Erasure(
    7,
    "t",
    "c",
    "id",
    {0: ErasedPartition(2, 3, 9, (4, 6)), 1: ErasedPartition(1, 3, 5)},
    {"0/1": (1, 2)},
)
LOG = with_erasure(ErasureLog("t", "", ""), ERASURE)


def test_rows_are_named_by_epoch_and_older_ones_by_their_own() -> None:
    assert ERASURE.epochs == ((0, 1, (1, 2)), (0, 2, (4, 6)), (0, 3, (4, 6)))
    assert [ERASURE.of_epoch(0, epoch) for epoch in (1, 2, 3)] == [(1, 2), (4, 6), (4, 6)]
    assert (
        ERASURE.of_epoch(0, 0)
        == ERASURE.of_epoch(0, 4)
        == ERASURE.of_epoch(1, 1)
        == ERASURE.of_epoch(9, 1)
        == ()
    )
    assert ERASURE.records == 3


def test_rows_of_an_epoch_that_began_since_are_reached_unless_it_is_of_another_log() -> None:
    later = replace(COMMIT, epoch=5)
    assert reaching(ERASURE, [later]).of_epoch(0, 5) == (4, 6)
    assert reaching(ERASURE, [replace(later, topic_id="other")]) == ERASURE
    assert reaching(ERASURE, [replace(COMMIT, epoch=1)]) == ERASURE


def test_the_log_is_of_one_topic_id_and_has_each_erasure_once() -> None:
    assert (LOG.version, LOG.of(COMMIT, 0), LOG.of(COMMIT, 1)) == (7, (4, 6), ())
    assert with_erasure(LOG, ERASURE) == LOG
    later = replace(ERASURE, number=9, partitions={0: ErasedPartition(2, 3, 20, (5, 8))})
    assert with_erasure(LOG, later).of(COMMIT, 0) == (4, 8)
    # The offsets of a recreated topic are other records.
    recreated = replace(COMMIT, topic_id="other")
    assert LOG.of(recreated, 0) == ()
    assert with_erasure(LOG, replace(later, topic_id="other")).of(recreated, 0) == (5, 8)


def test_a_commit_that_knows_of_an_erasure_accepts_no_older_log() -> None:
    assert check_version(COMMIT, None) is None
    known = raised(COMMIT, 7)
    assert raised(known, 3) is known
    assert check_version(known, LOG) is LOG
    for log in (None, replace(LOG, version=6)):
        with pytest.raises(MissingState, match="would come back"):
            check_version(known, log)


def test_older_releases_refuse_a_commit_with_erasures() -> None:
    assert b'{"format":4,' in codec.dumps(raised(COMMIT, 1))
    assert b'{"format":3,' in codec.dumps(COMMIT)
    assert codec.loads(Commit, codec.dumps(raised(COMMIT, 1)), "p").erasures == 1
    assert codec.loads(ErasureLog, codec.dumps(LOG), "p") == LOG
    assert codec.loads(Erasure, codec.dumps(ERASURE), "p") == ERASURE


def test_deleted_rows_are_counted_once_and_under_one_id() -> None:
    row = Counts(erased=1, rows={"d.A": -1})
    changes = [(0, 1, row), (0, 3, row), (1, 3, row), (8, 3, row)]
    first = erased_rows(COMMIT, "kbq-erase-a-b-7-1", changes)
    assert first.partitions[0].totals_for("") == row  # a row of epoch 1 does not count since the reset
    assert erased_rows(first, "kbq-erase-a-b-7-1", changes) == first
    second = erased_rows(first, "kbq-erase-a-b-10-1", changes)
    assert second.partitions[0].replaced == {"kbq-erase-a-b-10-1": row + row}
    # Whoever comes late with an earlier job changes nothing.
    assert erased_rows(second, "kbq-erase-a-b-7-1", changes) == second
    promoted = replace(COMMIT.partitions[0], replaced={"kbq-replay-a-1-1": Counts(skipped=1)})
    kept = erased_rows(COMMIT.with_partition(0, promoted), "kbq-erase-a-b-7-1", changes)
    assert sorted(kept.partitions[0].replaced) == ["kbq-erase-a-b-7-1", "kbq-replay-a-1-1"]


def test_each_warehouse_counts_its_own_deletions() -> None:
    row = Counts(erased=1, rows={"d.A": -1})
    both = erased_rows(COMMIT, "kbq-erase-a-b-7-1", [(0, 3, row)])
    both = erased_rows(both, "kbq-erase-c-d-7-2", [(0, 3, row)], "lake")
    assert [both.partitions[0].totals_for(name) for name in ("", "lake", "sea")] == [row, row, Counts()]
    assert erased_rows(both, "kbq-erase-c-d-7-1", [(0, 3, row)], "lake") == both
    assert codec.loads(Commit, codec.dumps(both), "p") == both


@pytest.mark.parametrize(
    ("listed", "warehouse", "expected"),
    [
        ((), "", [("new", ())]),
        (("", "lake"), "lake", [("old", ()), ("new", ("lake",))]),
        (("", "lake"), "", [("old", ("lake",)), ("new", ())]),
        (("", "lake"), "sea", [("old", ("", "lake"))]),
        (("lake", "sea"), "sea", [("old", ("lake",)), ("new", ("sea",))]),
    ],
)
def test_a_new_file_takes_the_place_of_the_old_one_for_its_warehouse_alone(
    listed: tuple[str, ...], warehouse: str, expected: list[tuple[str, tuple[str, ...]]]
) -> None:
    old = StagedFile("old", 0, 9, 3, 1, 1, "", "", warehouses=listed)
    new = RewrittenFile("old", for_warehouse(replace(old, path="new", rows=2), warehouse), 1)
    window = Window(0, 9, Counts(positions=9), (old, replace(old, path="other")))
    commit = COMMIT.with_partition(0, replace(COMMIT.partitions[0], windows=(window,)))
    changed = with_rewritten(commit, new, warehouse)
    files = [(file.path, file.warehouses) for file in changed.partitions[0].windows[0].files]
    assert files == [*expected, ("other", listed)]
    assert with_rewritten(changed, new, warehouse) == changed


def test_a_warehouse_has_its_own_progress() -> None:
    lake = Deletion(attempt=2, rows={"d.A": 3}, files=1)
    both = ERASURE.with_deletion("", Deletion(attempt=1, rows={"d.A": 1}, files=2)).with_deletion(
        "lake", lake
    )
    assert (both.rows, both.files) == ({"d.A": 1, "lake/d.A": 3}, 3)
    assert (both.deletion("lake"), both.deletion("sea")) == (lake, Deletion())
    assert codec.loads(Erasure, codec.dumps(both), "p") == both


def test_counts_with_erased_records_add_up() -> None:
    Counts(positions=3, records=3, erased=2, rows={"d.A": 1}).check("here")


def test_paths_are_parsed() -> None:
    assert parse_erasure_path(erasure_path(12)) == 12
    assert parse_erasure_path(log_path("shop.orders.v1")) is None
    with pytest.raises(InvalidName):
        parse_erasure_path("erasures/x")


@pytest.mark.parametrize("text", ["", "secret", "=secret", " =secret"])
def test_a_mistake_in_a_selection_does_not_repeat_the_value(text: str) -> None:
    with pytest.raises(ConfigurationError) as raised_error:
        parse_column(text)
    assert "secret" not in str(raised_error.value)
    assert parse_column("a.b = 1=2") == ("a.b", " 1=2")


def test_a_selection_is_never_printed() -> None:
    assert "secret" not in repr(PersonRecords(frozenset({b"secret"}), (("a", "secret"),)))
    for keys, columns in ((frozenset(), ()), (frozenset({b""}), ()), (frozenset(), (("", "a"),))):
        with pytest.raises(ConfigurationError):
            PersonRecords(keys, columns)


@pytest.mark.parametrize(
    ("column", "contexts"),
    [
        ("customer.eMail", ["person"]),
        ("customer.e_mail", ["person"]),  # column_names=snake_case
        ("CUSTOMER.EMAIL", []),
        ("_kafka_key", ["_key"]),
        ("_key", ["_key"]),
        ("gr_u00f6_u00dfe", ["größe"]),
        ("second_mail", ["second-mail"]),
        ("born", []),
    ],
)
def test_a_column_has_the_pseudonyms_of_its_field_under_each_key(column: str, contexts: list[str]) -> None:
    known = Pseudonyms("b", {"a": b"1" * 32, "b": b"2" * 32})
    text = "customer.eMail:pseudonym:person,größe:pseudonym,second-mail:pseudonym,_key:pseudonym,born:generalise:year"
    decisions = parse_decisions(text)
    if not contexts:
        with pytest.raises(ConfigurationError, match="no pseudonyms of the column"):
            list(pseudonyms_in([(column, "anna")], decisions, known))
        return
    expected = [(column, known.of(each, b"anna", key)) for each in contexts for key in ("a", "b")]
    assert list(pseudonyms_in([(column, "anna")], decisions, known)) == expected
