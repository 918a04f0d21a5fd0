"""Records in temporary files all come back once, in order, grouped by key."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.extras.reconcile.findings import Finding, next_steps, read_again
from kbq_assets.extras.reconcile.spill import Spill


@pytest.mark.parametrize(
    ("records", "per_part", "parts"),
    [(0, 10, 1), (1, 10, 1), (10, 10, 1), (11, 10, 2), (5_120, 10, 512), (10**12, 10, 512)],
)
def test_there_are_as_many_parts_as_records_need_and_files_may_be_open(
    records: int, per_part: int, parts: int
) -> None:
    assert list(Spill[int](records, per_part).parts) == list(range(parts))


@pytest.mark.parametrize("records", [0, 1, 199, 200, 201, 3_000])
@pytest.mark.parametrize("per_part", [1_000, 10_000])
def test_every_record_comes_back_once_with_the_others_of_its_key(records: int, per_part: int) -> None:
    chance = random.Random(records)
    written = [(chance.randrange(50), number) for number in range(records)]
    with Spill[tuple[int, int]](records, per_part) as spill:
        for record in written:
            spill.add(record[0], record)
        parts = [list(spill.read(part)) for part in spill.parts]
    assert sorted(record for part in parts for record in part) == sorted(written)
    places = defaultdict(set)
    for number, part in enumerate(parts):
        for key, _ in part:
            places[key].add(number)
        assert [at for _, at in part] == sorted(at for _, at in part), "in the order of writing"
    assert all(len(numbers) == 1 for numbers in places.values())


def test_a_part_may_be_read_again() -> None:
    with Spill[str](2, 1) as spill:
        spill.add("k", "one")
        spill.add("k", "two")
        found = [list(spill.read(part)) for part in spill.parts for _ in range(2)]
    assert [each for each in found if each] == [["one", "two"]] * 2


class TestFindings:
    def test_a_finding_is_its_text_and_its_next_step(self) -> None:
        found = Finding("a text", "kbq plan", is_unknown=True)
        assert (found, found.next_step, found.is_unknown) == ("a text", "kbq plan", True)
        assert Finding.of(found) is found
        plain = Finding.of("plain")
        assert (plain, plain.next_step, plain.is_unknown) == ("plain", "", False)

    def test_next_steps_are_each_named_once_in_their_order(self) -> None:
        found = [Finding("a", "two"), "a text", Finding("b"), Finding("c", "one"), Finding("d", "two")]
        assert next_steps(found) == ["two", "one"]

    def test_missing_rows_come_back_by_a_replay_or_in_a_new_epoch(self) -> None:
        text = read_again(TopicPartition("shop.orders", 3), 77)
        assert text.startswith("kbq replay start shop.orders --from 3:77, then kbq replay promote, ")
        assert "; or kbq reset --topic shop.orders --partition 3 --from-offset 77 reads " in text
