"""Formatting of the documents and stops that commands print."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kbq_assets.cli import render
from kbq_assets.cli.render import stop_lines
from kbq_assets.core.extraction.stops import PartitionStop
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.protocol.waits import ParkReason, StopReason, next_lines, park_commands, stop_commands


@pytest.mark.parametrize(("items", "lines"), [(3, 5), (200_000, 1)], ids=["for people", "for programs"])
def test_a_large_document_is_one_line(items: int, lines: int, capsys: pytest.CaptureFixture[str]) -> None:
    document = [f"é{number}" for number in range(items)]
    render.echo_json(document)
    printed = capsys.readouterr().out
    assert json.loads(printed) == document
    assert len(printed.splitlines()) == lines
    assert "é" in printed


def stop(partition: int, reason: StopReason, cause: str, **changes: Any) -> PartitionStop:
    tp = TopicPartition("t", partition)
    return PartitionStop(
        tp, reason, f"{tp} [0, {partition + 5}): {cause}", stop_commands(reason, tp), **changes
    )


def test_partitions_that_stopped_for_one_cause_are_one_stop_with_one_command() -> None:
    stops = [stop(n, StopReason.FAILED, "there is no key", next_try_ms=10**13 + n) for n in range(10)]
    assert stop_lines(stops) == [
        "stopped: t [0], [1], [2], [3], [4], [5], [6], [7] and 2 more: failed: there is no key",
        "  next: kbq resume --topic t",
        "  KBQ tries again after 2286-11-20 17:46:40 UTC",
    ]


def test_a_choice_of_commands_says_what_each_does() -> None:
    assert stop_lines([stop(0, StopReason.UNKNOWN_SCHEMA, "no schema 9")]) == [
        "stopped: t[0]: unknown_schema: [0, 5): no schema 9",
        "  next: kbq resume --topic t --partition 0  # once the cause is fixed",
        "  next: kbq resume --topic t --partition 0 --as-errors  # its bad records become error rows",
    ]


def test_a_terminal_gets_whole_lines_to_copy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    line = "  next: kbq resume --topic t --partition 0 --as-errors  # its bad records become error rows"
    render.console().print(line)
    assert capsys.readouterr().out == f"{line}\n"


def test_every_command_that_resumes_something_has_an_effect() -> None:
    tp, table = TopicPartition("t", 0), TableReference("d", "t")
    for commands in (
        *(stop_commands(r, tp) for r in StopReason),
        *(park_commands(table, r) for r in ParkReason),
        *(park_commands(table, r, 7) for r in ParkReason),
    ):
        lines = list(next_lines(commands))
        assert len(lines) == 1 or all("  # " in line for line in lines), lines


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1,023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (2**20, "1.0 MiB"),
        (5 * 2**30, "5.0 GiB"),
        (2**40, "1.0 TiB"),
        (2**60, "1,048,576.0 TiB"),
    ],
)
def test_a_size_is_in_the_largest_unit_below_it(count: int, text: str) -> None:
    assert render.size(count) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, ""), (0, "0"), (-1, "-1"), (1000, "1,000"), (10**9, "1,000,000,000")]
)
def test_a_number_has_its_thousands_separated(value: int | None, text: str) -> None:
    assert render.number(value) == text


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, ""),
        (1, "1970-01-01 00:00:00"),
        (-1, "1969-12-31 23:59:59"),
        (1_700_000_000_999, "2023-11-14 22:13:20"),
    ],
)
def test_a_time_is_utc_to_the_second_and_zero_is_none(milliseconds: int, text: str) -> None:
    assert render.utc_time(milliseconds) == text


def test_a_table_without_a_terminal_folds_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    made = render.table("name", "#rows", tight=True)
    made.add_row("[red]t[0][/red]" + "x" * 300, "1,000")
    made.add_row("b", "2")
    render.console().print(made)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[0].split() == ["name", "rows"]
    assert lines[1].startswith("[red]t[0][/red]xxx"), "names of topics are no markup"
    assert lines[2].endswith("    2"), "numbers are aligned to the right"


def test_a_progress_bar_is_shown_on_a_terminal_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with render.progress_bar("reading") as shown:
        shown(total=2, completed=1)
        shown(advance=1, description="done")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("partitions", "line"),
    [
        ((3,), "stopped: t[3]: failed: [0, 8): why"),
        ((1, 2), "stopped: t [1], [2]: failed: why"),
        (tuple(range(8)), "stopped: t [0], [1], [2], [3], [4], [5], [6], [7]: failed: why"),
        (tuple(range(9)), "stopped: t [0], [1], [2], [3], [4], [5], [6], [7] and 1 more: failed: why"),
    ],
)
def test_a_stop_names_its_place_and_few_partitions(partitions: tuple[int, ...], line: str) -> None:
    stops = [stop(number, StopReason.FAILED, "why") for number in partitions]
    assert stop_lines(stops)[0] == line


def test_stops_of_other_causes_are_lines_of_their_own() -> None:
    stops = [
        stop(0, StopReason.FAILED, "one"),
        stop(1, StopReason.FAILED, "two"),
        stop(2, StopReason.FAILED, "one"),
    ]
    lines = [line for line in stop_lines(stops) if line.startswith("stopped")]
    assert lines == ["stopped: t [0], [2]: failed: one", "stopped: t[1]: failed: [0, 6): two"]
    assert stop_lines([]) == []


@pytest.mark.parametrize(
    ("columns", "first"),
    [(40, "shop.clicks[0]"), (29, "shop.cl"), (27, "shop.clicks[0]"), (9, "shop.clicks[0]")],
)
def test_a_narrow_terminal_shows_numbers_whole(
    columns: int, first: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = render.table("partition", "#position", "#records")
    shown.add_row("shop.clicks[0]", "1,234,567", "1,234,568")
    render.console().print(shown)
    assert f"\n{first}  1,234,567  1,234,568\n" in capsys.readouterr().out
