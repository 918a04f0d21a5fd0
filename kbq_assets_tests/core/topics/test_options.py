"""The source list: the first match decides, and every mistake is reported with its line."""

from __future__ import annotations

import pytest

from kbq_assets.core.topics.source_list import SourceEntry, SourceLines, parse_source_list, select_topics
from kbq_assets.core.topics.topic_settings import TopicSettings


def test_the_first_line_that_matches_decides() -> None:
    entries = parse_source_list(
        """
        # the shop
        shop.orders.v1  dataset=sales table=orders event_date=ordered_at keys=true  # exact
        shop.*          dataset=shop
        """,
        "source-topics.txt",
    )
    chosen = select_topics(entries, ["shop.orders.v1", "shop.items", "other"])
    assert chosen == {
        "shop.items": TopicSettings.of(dataset="shop"),
        "shop.orders.v1": TopicSettings.of(
            dataset="sales", table="orders", event_date="ordered_at", keys=True
        ),
    }


@pytest.mark.parametrize("lines", ["a dataset=one\n* dataset=two", "* dataset=two\na dataset=one"])
def test_the_first_line_decides_whether_it_is_a_name_or_a_pattern(lines: str) -> None:
    first = lines.split()[1].removeprefix("dataset=")
    chosen = select_topics(parse_source_list(f"{lines}\na dataset=three", "x"), ["a"])
    assert str(chosen["a"].destination.dataset) == first


def test_topics_that_lines_name_are_not_compared_with_every_line(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []

    def matches(entry: SourceEntry, topic: str) -> bool:
        compared.append(topic)
        return False

    monkeypatch.setattr(SourceEntry, "matches", matches)
    topics = [f"t{number}" for number in range(400)]
    lines = "\n".join(["a* dataset=d", *(f"{topic} dataset=d" for topic in topics)])
    assert len(select_topics(parse_source_list(lines, "x"), topics)) == len(topics)
    assert len(compared) == len(topics), "one pattern"


def test_defaults_are_the_callers() -> None:
    [entry] = parse_source_list("t error_share=0.5", "x", TopicSettings.of(dataset="d"))
    assert entry.settings == TopicSettings.of(dataset="d", error_share=0.5)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("t datset=x", "did you mean 'dataset'"),
        ("t errors=maybe", "fail, skip, error_table"),
        ("t format=json_columns route=record_name", "JSON records have no names"),
        ("t keys=yes", "true or false"),
        ("t error_share=lots", "expected float"),
        ("t max_record_bytes=1.5", "expected int"),
        ("t keys", "unknown option"),
        ("bad/topic", "cannot be part of"),
        ("dataset=* x=y", "first word"),
    ],
)
def test_mistakes_say_what_and_where(line: str, message: str) -> None:
    good, wrong = parse_source_list(f"good\n{line}", "list.txt")
    assert good.mistake is None
    assert wrong.mistake is not None
    assert wrong.mistake.message.startswith("list.txt:2: ")
    assert message in f"{wrong.mistake.message} {wrong.mistake.next_step}"


def test_a_mistake_stops_the_topics_of_its_line_alone() -> None:
    entries = parse_source_list("shop.* tabel=x\n*.orders dataset=d", "list")
    topics = ["shop.orders", "b2b.orders", "stranger"]
    assert select_topics(entries, topics).keys() == {"b2b.orders"}, "the first line decides, right or wrong"
    assert SourceLines(entries).unknown(topics).keys() == {"shop.orders"}


def test_bytes_that_are_no_text_are_a_mistake_of_their_line() -> None:
    text = "# caf\ufffd\nshop.orders dataset=d\nshop.items table=caf\ufffd\ncaf\ufffd.x\ncaf\ufffd.*"
    entries = parse_source_list(text, "list")
    assert [entry.mistake.message if entry.mistake else "" for entry in entries] == [
        "",
        "list:3: table is not UTF-8 (save the list as UTF-8)",
        *(
            f"list:{n}: 'caf\ufffd.{end}' is not UTF-8 (save the list as UTF-8)"
            for n, end in ((4, "x"), (5, "*"))
        ),
    ]
    assert [entry.mistake is not None and entry.mistake.hides_name for entry in entries] == [
        False,
        False,
        True,
        True,
    ]


def test_a_mistake_that_hides_a_topic_s_name_may_be_about_any_topic_without_a_line() -> None:
    lines = SourceLines(parse_source_list("b2b.orders dataset=d\nshop/orders dataset=d", "list"))
    assert lines.unknown(["shop.orders", "b2b.orders"]).keys() == {"shop.orders"}


def test_tables_are_named_by_topic_option_or_record() -> None:
    assert str(TopicSettings.of(dataset="d").destination.table_for("a.b-c", "ns.Rec")) == "d.a_b_c"
    assert str(TopicSettings.of(dataset="d", table="x").destination.table_for("a.b", "ns.Rec")) == "d.x"
    assert (
        str(TopicSettings.of(dataset="d", route="record_name").destination.table_for("a.b", "ns.Rec"))
        == "d.Rec"
    )
    assert (
        str(TopicSettings.of(dataset="d", route="record_name", table="x").destination.table_for("a.b"))
        == "d.x"
    )
    assert str(TopicSettings.of(dataset="d").error_table) == "d.kbq_errors"
