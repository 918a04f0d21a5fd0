"""Tables and numbers for terminals."""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, cast

import click
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from kbq_assets.cli.context import DOCUMENT
from kbq_assets.core.errors import Unavailable
from kbq_assets.core.extraction.restarts import retry_in_words
from kbq_assets.core.extraction.stops import PartitionStop
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.waits import next_lines
from kbq_assets.pipelines.protocol.state import topic_registry

if TYPE_CHECKING:
    from kbq_assets.pipelines.backup.report import BackupReport
    from kbq_assets.pipelines.backup.status import BackupsStatus
    from kbq_assets.pipelines.deployment import Deployment
    from kbq_assets.pipelines.extraction.ports import ExtractionReport

#: Width without a terminal: no line is wrapped, so grep finds whole lines.
_WIDE = 1000
#: The narrowest column of texts: narrower, they would be hard to read.
_LEAST = 6
#: Partitions or topics that a line names. It only counts the others.
_NAMED = 8
_PARTITION = re.compile(r" --partition \d+")
#: A JSON document with more characters than this is printed on one line.
_MOST_INDENTED = 1_000_000


def console(*, stderr: bool = False) -> Console:
    """A console without markup, because topic names may look like markup. The terminal itself wraps long lines, so
    commands can be copied whole."""
    is_terminal = (sys.stderr if stderr else sys.stdout).isatty()
    width = None if is_terminal else _WIDE
    return Console(
        stderr=stderr, width=width, markup=False, highlight=False, emoji=False, soft_wrap=not stderr
    )


@contextmanager
def progress_bar(description: str) -> Iterator[Callable[..., None]]:
    """A progress bar on a terminal. Its function takes ``description``, ``total``, ``completed`` and ``advance``."""
    err = console(stderr=True)
    if not err.is_terminal:
        yield lambda **shown: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        yield partial(bar.update, bar.add_task(description, total=None))


class _Table(Table):
    """A table that shows its numbers whole; if ``is_whole``, all its values. On a terminal too narrow for them, the
    terminal wraps its rows."""

    is_whole = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = [max(cell_len(str(cell)) for cell in (each.header, *each.cells)) for each in self.columns]
        least = sum(
            width if self.is_whole or column.no_wrap else min(width, _LEAST)
            for column, width in zip(self.columns, widths, strict=True)
        )
        gaps = 2 * (len(widths) - 1)
        has_whole = self.is_whole or any(column.no_wrap for column in self.columns)
        if least + gaps <= options.max_width or not has_whole:
            yield from super().__rich_console__(console, options)
            return
        wide = options.update(width=sum(widths) + gaps)
        rows = cast("Iterable[Segment]", super().__rich_console__(console, wide))
        for line in Segment.split_lines(rows):
            text = Text.assemble(*((part.text, part.style or "") for part in line))
            text.rstrip()  # the terminal would show the blanks as empty lines
            yield text


def table(*titles: str, tight: bool = False, is_whole: bool = False) -> Table:
    """A table. A title that starts with '#' makes a column of numbers. ``tight``: one blank between columns.
    ``is_whole``: no value is folded, because it is copied into commands."""
    made = _Table(box=None, pad_edge=False, collapse_padding=tight)
    made.is_whole = is_whole
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
    """A count with thousands separators; "" for None."""
    return "" if value is None else f"{value:,}"


def size(count: int) -> str:
    """A number of bytes in the largest unit below it."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"


def utc_time(milliseconds: int) -> str:
    """A time to the second; "" for 0."""
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M:%S}" if milliseconds else ""


def echo_json(value: object) -> None:
    """Print a document, or pass it to a command that runs for each warehouse."""
    context = click.get_current_context(silent=True)
    if context is not None and DOCUMENT in context.meta:
        context.meta[DOCUMENT].append(value)
        return
    text = json.dumps(value, ensure_ascii=False)
    # Nobody reads a longer one, and indenting is pure Python: a second for each 5 MB.
    click.echo(text if len(text) > _MOST_INDENTED else json.dumps(value, indent=2, ensure_ascii=False))


def name_missing_topics(deployment: Deployment) -> None:
    """Print a message if no topic is chosen, or if the broker never had one that the list names: nothing else would
    show a misspelled name."""
    entries, place = deployment.sources.read(), deployment.settings.catalog.source_topics
    if not entries:
        click.echo(f"{place} chooses no topic; next: kbq doctor", err=True)
        return
    named = {entry.pattern for entry in entries if not entry.is_pattern and entry.mistake is None}
    with suppress(Unavailable):  # the command itself reports that
        unread = named - topic_registry(deployment.store).topics.keys()
        if missing := sorted(unread - deployment.offsets.topics(unread).keys() if unread else ()):
            more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
            click.echo(f"not on the broker: {', '.join(missing[:_NAMED])}{more}; next: kbq doctor", err=True)


def failure_lines(report: ExtractionReport | BackupReport) -> Iterator[str]:
    """Partitions that a run could not read to the end, each with its error."""
    for tp, message in sorted(report.failures.items()):
        yield f"{'failed' if tp in report.refused else 'interrupted'}: {tp}: {message}"


def stop_lines(stops: Iterable[PartitionStop]) -> list[str]:
    """Stops that wait for an operator, with the commands that resume them."""
    lines, groups = [], defaultdict[tuple[str, ...], list[PartitionStop]](list)
    for stop in stops:
        groups[stop.topic_partition.topic, stop.reason, stop.cause].append(stop)
    for (topic, reason, cause), group in groups.items():
        if len(group) == 1:
            lines.append(f"stopped: {place(group[0])}: {reason}: {group[0].text}")
        else:
            named = ", ".join(f"[{stop.topic_partition.partition}]" for stop in group[:_NAMED])
            more = f" and {len(group) - _NAMED} more" if len(group) > _NAMED else ""
            lines.append(f"stopped: {topic} {named}{more}: {reason}: {cause}")
        lines.extend(
            next_lines(dict.fromkeys(_shared(command, group) for s in group for command in s.commands))
        )
        if next_ms := min(stop.next_try_ms for stop in group):
            lines.append(f"  {retry_in_words(max(stop.tries for stop in group), next_ms)}")
    return lines


def _shared(command: str, group: list[PartitionStop]) -> str:
    """A command for the whole topic instead of one partition, if the command allows that."""
    can_take_topic = len(group) > 1 and command.startswith("kbq resume ")
    return _PARTITION.sub("", command) if can_take_topic else command


def backups_headline(found: BackupsStatus) -> str:
    lag = sum(p.lag for p in found.partitions)
    return f"{counted(len(found.partitions), 'partition')}, lag {counted(lag, 'position')}; {len(found.stops)} stopped"


def place(stop: PartitionStop) -> str:
    topic, partition = stop.topic_partition
    return topic if partition < 0 else str(stop.topic_partition)
