"""A condition is reported once, again if it grows, and when it ends."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from kbq_assets.core.protocol import codec
from kbq_assets.extras.notices.model import ALL, INFO, RESOLVED, SHOWN_ITEMS, Condition, Ledger, Message

PARKED = Condition(
    "no_table_is_parked", "shop.orders", "load_failed: x", commands=("kbq resume --table shop.orders",)
)
NEWS = Condition("new_table", "shop.orders", "3 columns", INFO, lasts=False, mark="7")
#: As a version of KBQ wrote it that repeated conditions itself.
FORMER = (
    b'{"format":1,"failure":"busy","told":{"no_table_is_parked/shop.orders":{"kind":"no_table_is_parked",'
    b'"severity":"error","since_ms":1,"subject":"shop.orders","text":"load_failed: x","told_ms":2}}}'
)


def titles(items: tuple[Condition, ...]) -> list[str]:
    return [item.title for item in items]


def test_a_condition_is_reported_when_it_is_new_and_when_it_ends() -> None:
    items, ledger = Ledger().plan([PARKED])
    assert items == (PARKED,)
    assert ledger.plan([PARKED]) == ((), ledger)
    ended, after = ledger.plan([])
    assert titles(ended) == ["resolved: no_table_is_parked: shop.orders"]
    assert after.plan([]) == ((), Ledger())


def test_news_is_reported_once_and_never_resolved() -> None:
    items, ledger = Ledger().plan([NEWS])
    assert titles(items) == ["info: new_table: shop.orders"]
    assert ledger.plan([]) == ((), Ledger())


def test_another_event_of_one_subject_is_reported_too() -> None:
    _, ledger = Ledger().plan([NEWS])
    items, _ = ledger.plan([NEWS, dataclasses.replace(NEWS, mark="8")])
    assert len(items) == 1


@given(st.lists(st.integers(0, 3), max_size=20))
def test_growth_is_reported_and_shrinking_is_not(sizes: list[int]) -> None:
    ledger = Ledger()
    _, ledger = ledger.plan([dataclasses.replace(PARKED, size=0)])
    before = 0
    for size in sizes:
        items, ledger = ledger.plan([dataclasses.replace(PARKED, size=size)])
        assert bool(items) == (size > before)
        before = size


def test_a_new_cause_is_reported_and_one_that_ended_or_cannot_be_seen_is_not() -> None:
    reported = []
    _, ledger = Ledger().plan([dataclasses.replace(PARKED, causes=("a",))])
    for causes in ("b", "ab", "a", "", "a", "ac"):
        items, ledger = ledger.plan([dataclasses.replace(PARKED, causes=tuple(causes))])
        reported += [causes] if items else []
    assert reported == ["b", "ab", "ac"]


def test_unobserved_conditions_stay() -> None:
    _, ledger = Ledger().plan([PARKED])
    for unseen in (PARKED.kind, PARKED.key, ALL):
        assert ledger.plan([], frozenset({unseen})) == ((), ledger)
    assert ledger.plan([], frozenset({"other"}))[0]


def test_a_ledger_of_an_earlier_version_is_read_and_repeats_nothing() -> None:
    ledger = codec.loads(Ledger, FORMER, "notices/x.json")
    caused, after = ledger.plan([dataclasses.replace(PARKED, causes=("a",))])
    assert (ledger.plan([PARKED])[0], caused) == ((), ())
    assert after.plan([dataclasses.replace(PARKED, causes=("b",))])[0]
    assert titles(ledger.plan([])[0]) == ["resolved: no_table_is_parked: shop.orders"]


def test_a_ledger_is_read_as_it_was_written() -> None:
    _, ledger = Ledger().plan([PARKED, NEWS])
    assert codec.loads(Ledger, codec.dumps(ledger), "notices/x.json") == ledger


def test_a_message_shows_what_to_do_and_its_worst_severity() -> None:
    message = Message((NEWS, dataclasses.replace(PARKED, link="https://ui/runs/1")), 0)
    assert (message.title, message.severity) == ("info: new_table: shop.orders, and 1 more", "error")
    assert message.text.splitlines() == [
        "info: new_table: shop.orders: 3 columns",
        "error: no_table_is_parked: shop.orders: load_failed: x",
        "  next: kbq resume --table shop.orders",
        "  https://ui/runs/1",
    ]


def test_an_outage_is_one_message_that_counts_what_it_does_not_show() -> None:
    items, _ = Ledger().plan([dataclasses.replace(PARKED, subject=f"t{n}", commands=()) for n in range(400)])
    lines = Message(items, 0).text.splitlines()
    assert len(lines) == SHOWN_ITEMS + 1
    assert lines[-1] == "and 380 more: kbq status, kbq check"


def test_an_end_names_no_commands() -> None:
    _, ledger = Ledger().plan([PARKED])
    [ended] = ledger.plan([])[0]
    assert (ended.phase, list(ended.lines)) == (RESOLVED, ["resolved: no_table_is_parked: shop.orders"])
