"""Documents and stops that commands print."""

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


def test_every_command_that_resumes_something_has_an_effect() -> None:
    tp, table = TopicPartition("t", 0), TableReference("d", "t")
    for commands in (
        *(stop_commands(r, tp) for r in StopReason),
        *(park_commands(table, r) for r in ParkReason),
        *(park_commands(table, r, 7) for r in ParkReason),
    ):
        lines = list(next_lines(commands))
        assert len(lines) == 1 or all("  # " in line for line in lines), lines
