"""Lines of a source list: the topics that they select, and topics whose line has a mistake."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbq_assets.core.topics.source_list import (
    EntryMistake,
    SourceEntry,
    SourceLines,
    parse_source_list,
    select_entries,
    select_topics,
)
from kbq_assets.core.topics.topic_settings import OPTIONS, TopicSettings

PLAIN = TopicSettings.of(dataset="d")


@pytest.mark.parametrize("text", ["", "\n\n", "# a comment\n   # another", "   \t \n"])
def test_a_list_without_lines_selects_nothing(text: str) -> None:
    assert parse_source_list(text, "x") == ()
    assert select_topics((), ["t"]) == {}


@pytest.mark.parametrize(
    ("pattern", "is_pattern", "matching", "others"),
    [
        ("shop.orders", False, ["shop.orders"], ["shop.orders2", "shop-orders", "SHOP.ORDERS"]),
        ("shop.*", True, ["shop.", "shop.a.b"], ["shop", "ashop.a", "Shop.a"]),
        ("t?", True, ["t1", "t-"], ["t", "t12"]),
        ("t[12]", True, ["t1", "t2"], ["t3", "t12"]),
        ("t[!1]", True, ["t2"], ["t1"]),
        ("*", True, ["anything"], []),
    ],
)
def test_a_pattern_matches_whole_names_and_respects_case(
    pattern: str, is_pattern: bool, matching: list[str], others: list[str]
) -> None:
    entry = SourceEntry(pattern, PLAIN)
    assert entry.is_pattern is is_pattern
    assert [topic for topic in (*matching, *others) if entry.matches(topic)] == matching


def test_a_topic_is_selected_by_a_line_that_is_its_very_name() -> None:
    assert SourceEntry("t[1]", PLAIN).matches("t[1]")


def test_options_stand_in_any_order_and_the_last_of_one_name_counts() -> None:
    [entry] = parse_source_list("t table=a dataset=d table=b", "x")
    assert entry.settings == TopicSettings.of(dataset="d", table="b")


def test_a_value_may_have_an_equals_sign() -> None:
    [entry] = parse_source_list("t owner=a=b", "x")
    assert entry.settings.ownership.owner == "a=b"


def test_a_comment_ends_the_line() -> None:
    [entry] = parse_source_list("t dataset=d#x table=y", "x")
    assert entry.settings == TopicSettings.of(dataset="d")


@pytest.mark.parametrize(
    ("line", "message", "hides_name"),
    [
        ("bad/topic", "x:1: topic name 'bad/topic' cannot be part of file names (letters,", True),
        ("dataset=* a=b", "x:1: the first word is a topic or pattern, not 'dataset=*'", True),
        ("t format=xml", "x:1: format=xml (one of avro,", False),
        ("t datset=d", "x:1: unknown option 'datset' (did you mean 'dataset'?)", False),
        ("t zzzzzzzz=d", f"x:1: unknown option 'zzzzzzzz' (options: {', '.join(OPTIONS)})", False),
        ("t =d", "x:1: unknown option ''", False),
        ("t dataset=", "x:1: dataset= is not the name of a dataset (letters, digits and '_',", False),
        ("t dataset=a-b table={key}", "x:1: dataset=a-b is not the name of a dataset", False),
        ("t error_dataset=a.b", "x:1: error_dataset=a.b is not the name of a dataset", False),
        ("t dataset={key} error_dataset={topic}", "x:1: error_dataset={topic} is not the name", False),
        (
            "t validate=true format=json_columns",
            "x:1: validate=true: a source list declares no schema",
            False,
        ),
    ],
)
def test_a_mistake_names_its_line_and_keeps_its_first_word(line: str, message: str, hides_name: bool) -> None:
    [entry] = parse_source_list(line, "x")
    assert entry.pattern == line.partition(" ")[0]
    assert entry.mistake is not None
    assert entry.mistake.message.startswith(message)
    assert (entry.mistake.next_step, entry.mistake.hides_name) == ("fix x:1", hides_name)


WRONG = EntryMistake("wrong", "fix it")
HIDDEN = EntryMistake("hidden", "fix it", hides_name=True)


@pytest.mark.parametrize(
    ("entries", "selected", "unknown"),
    [
        pytest.param([], [], {}, id="no lines"),
        pytest.param([SourceEntry("a", PLAIN)], ["a"], {}, id="one line"),
        pytest.param([SourceEntry("a", PLAIN, WRONG)], [], {"a": WRONG}, id="a mistake"),
        pytest.param([SourceEntry("a", PLAIN), SourceEntry("*", PLAIN, WRONG)], ["a"], {"b": WRONG}, id="line above"),
        pytest.param(
            [SourceEntry("*", PLAIN, WRONG), SourceEntry("a", PLAIN)], [], {"a": WRONG, "b": WRONG}, id="line below"
        ),
        pytest.param([SourceEntry("a", PLAIN), SourceEntry("?", PLAIN, HIDDEN)], ["a"], {"b": HIDDEN}, id="hidden"),
        pytest.param([SourceEntry("a", PLAIN), SourceEntry("x/y", PLAIN, HIDDEN)], ["a"], {"b": HIDDEN}, id="no name"),
        pytest.param(
            [SourceEntry("a", PLAIN, WRONG), SourceEntry("x/y", PLAIN, HIDDEN)],
            [], {"a": WRONG, "b": HIDDEN}, id="both",
        ),
        pytest.param([SourceEntry("a", PLAIN), SourceEntry("a", PLAIN, WRONG)], ["a"], {}, id="the second of a name"),
    ],
)  # fmt: skip
def test_a_mistake_is_about_the_topics_that_its_line_decides_about(
    entries: list[SourceEntry], selected: list[str], unknown: dict[str, EntryMistake]
) -> None:
    lines = SourceLines(entries)
    assert list(lines.settings_of(["b", "a"])) == selected
    assert lines.unknown(["b", "a"]) == unknown
    assert lines.mistaken == [entry for entry in entries if entry.mistake]


TOPICS = ["a", "b", "ab", "ba"]
ENTRIES = st.lists(
    st.sampled_from([*TOPICS, "*", "a*", "?b", "*a"]).map(lambda p: SourceEntry(p, PLAIN)), max_size=6
)


def test_a_pattern_s_topics_may_lack_its_business_time_and_a_named_topic_may_not() -> None:
    pattern, named = parse_source_list("shop.* event_date=at\nother event_date=at", "x")
    shared = pattern.settings_of("shop.a").records.event_date
    own = named.settings_of("other").records.event_date
    assert shared is not None and own is not None
    assert (shared.is_optional, own.is_optional) == (True, False)
    assert shared == own


def test_a_template_has_the_name_of_the_topic() -> None:
    [entry] = parse_source_list("shop.* dataset=d table={topic.2}", "x")
    assert str(entry.settings_of("shop.orders").destination.table_for("shop.orders")) == "d.orders"
    assert entry.settings_of("shop.orders").destination.table.text == "orders"


@settings(max_examples=40)
@given(ENTRIES)
def test_the_first_line_that_matches_decides_about_each_topic(entries: list[SourceEntry]) -> None:
    numbered = [SourceEntry(e.pattern, TopicSettings.of(owner=str(n))) for n, e in enumerate(entries)]
    expected = {t: first for t in TOPICS if (first := next((e for e in numbered if e.matches(t)), None))}
    assert select_entries(numbered, TOPICS) == expected
