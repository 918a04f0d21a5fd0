"""Tables and numbers as people read them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable

import click
from rich.console import Console
from rich.table import Table

from kbq_assets.core.extraction.planning import PartitionStop
from kbq_assets.core.extraction.restarts import retry_in_words

#: Without a terminal nothing is folded: lines are for grep.
_WIDE = 1000


def console(*, stderr: bool = False) -> Console:
    """A console that takes text as it is: topic names may look like markup."""
    is_terminal = (sys.stderr if stderr else sys.stdout).isatty()
    width = None if is_terminal else _WIDE
    return Console(stderr=stderr, width=width, markup=False, highlight=False, emoji=False)


def table(*titles: str, tight: bool = False) -> Table:
    """A table; titles that start with '#' are of right-aligned numbers. ``tight``: one blank between columns."""
    made = Table(box=None, pad_edge=False, collapse_padding=tight)
    for column in titles:
        is_number = column.startswith("#")
        made.add_column(
            column.removeprefix("#"),
            justify="right" if is_number else "left",
            overflow="fold",
            no_wrap=is_number,
        )
    return made


def number(value: int | None) -> str:
    """A count with thousands separated."""
    return "" if value is None else f"{value:,}"


def size(count: int) -> str:
    """Bytes in the largest unit of which there is one."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"


def echo_json(value: object) -> None:
    """Print a document."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def stop_lines(stops: Iterable[PartitionStop]) -> list[str]:
    """What waits for an operator, with the commands that go on."""
    lines = []
    for stop in stops:
        lines.append(f"stopped: {place(stop)}: {stop.reason}: {stop.message}")
        lines.extend(f"  next: {command}" for command in stop.commands)
        if stop.next_try_ms:
            lines.append(f"  {retry_in_words(stop.tries, stop.next_try_ms)}")
    return lines


def place(stop: PartitionStop) -> str:
    """The partition of a stop, or its topic."""
    topic, partition = stop.topic_partition
    return topic if partition < 0 else str(stop.topic_partition)
