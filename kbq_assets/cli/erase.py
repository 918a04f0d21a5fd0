"""``kbq erase``: erases the records of a person everywhere. It never prints a person's values."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from kbq_assets.cli.context import ExitCode, Part, confirm, json_option, yes_option
from kbq_assets.cli.pii import pseudonym_keys
from kbq_assets.cli.render import console, echo_json, number, table
from kbq_assets.core.erasure.model import Erasure, ErasurePhase
from kbq_assets.core.erasure.positions import RecordPosition, parse_positions
from kbq_assets.core.erasure.selection import PersonRecords, parse_column, pseudonyms_in
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.plurals import counted
from kbq_assets.pipelines.erasure.erasures import Erasures
from kbq_assets.pipelines.observation.documents import document

pass_erasures: Part[Erasures] = Part("erasures")
_number = click.argument("erasure_number", type=click.IntRange(1), metavar="N")
_CHOICES = (
    click.option(
        "--key", "keys", multiple=True, help="A record's key, as text. Other users of this host can see it."
    ),
    click.option(
        "--key-file",
        "keys_files",
        multiple=True,
        metavar="FILE",
        help="A file of keys, one per line; - reads standard input.",
    ),
    click.option(
        "--where", "columns", multiple=True, metavar="COLUMN=VALUE", help="Rows with this value in a column."
    ),
    click.option(
        "--where-file",
        "columns_files",
        multiple=True,
        metavar="FILE",
        help="A file of COLUMN=VALUE, one per line; - reads standard input.",
    ),
    click.option(
        "--pseudonym-of",
        "hidden",
        multiple=True,
        metavar="COLUMN=VALUE",
        help="Rows with a pseudonym of this value in a column, under any key in KBQ_PII_KEYS.",
    ),
    click.option(
        "--pseudonym-of-file",
        "hidden_files",
        multiple=True,
        metavar="FILE",
        help="A file of COLUMN=VALUE for --pseudonym-of, one per line; - reads standard input.",
    ),
    click.option(
        "--tombstones",
        default="",
        metavar="TOPIC",
        help="The keys whose last record in this topic is a tombstone.",
    ),
    click.option(
        "--positions-file",
        "positions_files",
        multiple=True,
        metavar="FILE",
        help="A file of PARTITION OFFSET, one per line, or of JSON with both; - reads standard input.",
    ),
)

_NAMES = ("keys", "columns", "hidden")
_by_hand = click.option(
    "--by-hand",
    multiple=True,
    metavar="TABLE",
    help="A table with load=sql, where you yourself delete the rows that your SQL made from several records.",
)


def _choosing(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that choose a person's records. The command gets the choice as ``chosen``."""

    @functools.wraps(command)
    def with_chosen(erasures: Erasures, topic: str, **kwargs: Any) -> Any:
        texts = {name: _with_lines(kwargs.pop(name), kwargs.pop(f"{name}_files")) for name in _NAMES}
        positions = (
            each for file in kwargs.pop("positions_files") for each in parse_positions(_read(file), topic)
        )
        chosen = _selection(erasures, topic, texts, kwargs.pop("tombstones"), frozenset(positions))
        return command(erasures, topic, chosen=chosen, **kwargs)

    for option in reversed(_CHOICES):
        with_chosen = option(with_chosen)
    return with_chosen


@click.group()
def erase() -> None:
    """Erase the records of a person: rows, error rows and everything that would bring them back."""


@erase.command()
@click.argument("topic")
@_by_hand
@pass_erasures
@_choosing
def plan(erasures: Erasures, topic: str, chosen: PersonRecords, by_hand: tuple[str, ...]) -> None:
    """Show what an erasure would delete, and what it cannot reach. Changes nothing."""
    _, proposal = erasures.propose(topic, chosen, by_hand)
    click.echo(proposal.title)
    for line in proposal.lines:
        click.echo(f"  {line}")


@erase.command()
@click.argument("topic")
@_by_hand
@yes_option
@pass_erasures
@_choosing
def start(erasures: Erasures, topic: str, chosen: PersonRecords, by_hand: tuple[str, ...], yes: bool) -> None:
    """Show the plan, ask, and erase.

    Extraction and loading continue meanwhile. If the command is interrupted, kbq erase resume continues.
    """
    erasure, proposal = erasures.propose(topic, chosen, by_hand)
    confirm([proposal], yes=yes)
    _print(erasures.find(erasure.number))


@erase.command()
@_number
@pass_erasures
def resume(erasures: Erasures, erasure_number: int) -> None:
    """Continue an unfinished erasure."""
    _print(erasures.resume(erasure_number))


@erase.command()
@_number
@json_option
@pass_erasures
def status(erasures: Erasures, erasure_number: int, as_json: bool) -> None:
    """Show the progress of an erasure."""
    found = erasures.find(erasure_number)
    if as_json:
        echo_json(_document(found))
    else:
        _print(found)


@erase.command()
@_number
@pass_erasures
def verify(erasures: Erasures, erasure_number: int) -> None:
    """Search again for everything that an erasure deleted. Exit code 1 if anything is left."""
    found = erasures.verify(erasure_number)
    for line in found:
        click.echo(line)
    click.echo(f"erasure {erasure_number}: {'not ' if found else ''}everything is deleted")
    sys.exit(ExitCode.FAILED if found else ExitCode.DONE)


@erase.command("list")
@json_option
@pass_erasures
def list_erasures(erasures: Erasures, as_json: bool) -> None:
    """List all erasures, for audits. The list has no personal values."""
    found = erasures.all()
    if as_json:
        echo_json([_document(each) for each in found])
        return
    shown = table("#erasure", "topic", "phase", "#records", "#rows", "begun", "done")
    for each in found:
        rows = sum(each.rows.values())
        times = (_time(each.times.started_ms), _time(each.times.ended_ms))
        shown.add_row(str(each.number), each.topic, each.phase, number(each.records), number(rows), *times)
    console().print(shown if found else "nothing was erased")


def _selection(
    erasures: Erasures,
    topic: str,
    texts: Mapping[str, Sequence[str]],
    tombstones: str,
    positions: frozenset[RecordPosition],
) -> PersonRecords:
    """The chosen records. Raises ConfigurationError; its message repeats no value."""
    columns, hidden = ([parse_column(text) for text in texts[name]] for name in ("columns", "hidden"))
    pseudonyms = _pseudonyms(erasures, topic, hidden) if hidden else ()
    keys = frozenset(key.encode() for key in texts["keys"])
    return PersonRecords(keys, (*columns, *pseudonyms), tombstones, positions)


def _pseudonyms(
    erasures: Erasures, topic: str, hidden: Sequence[tuple[str, str]]
) -> Iterable[tuple[str, str]]:
    found = erasures.live.sources.select([topic]).get(topic)
    if found is None:
        raise ConfigurationError(
            f"KBQ_SOURCE_TOPICS does not select {topic}, so it is unknown which columns have pseudonyms",
            next_step="add the topic, or give --where-file the output of kbq pii pseudonym",
        )
    return pseudonyms_in(hidden, found.privacy.decisions, pseudonym_keys(erasures.live.settings))


def _with_lines(given: Sequence[str], files: Sequence[str]) -> list[str]:
    return [*given, *(line for file in files for line in _lines(file))]


def _lines(file: str) -> list[str]:
    """The nonempty lines of a file."""
    return [line for line in _read(file).splitlines() if line]


def _read(file: str) -> str:
    """A file's text; ``-`` is standard input."""
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"{file} cannot be read: {type(error).__name__}", next_step="check it"
        ) from None


def _print(found: Erasure) -> None:
    click.echo(f"erasure {found.number} of {found.topic}: {found.phase}, {counted(found.records, 'record')}")
    for name, rows in sorted(found.rows.items()):
        click.echo(f"  {name}: {counted(rows, 'row')} deleted")
    if found.files:
        click.echo(f"  {counted(found.files, 'file')} rewritten")
    for name, each in {"": found.first, **found.others}.items():
        if each.problem and found.phase != ErasurePhase.DONE:
            click.echo(f"  waits for {f'warehouse {name}' if name else 'the warehouse'}: {each.problem}")
    if found.phase != ErasurePhase.DONE:
        click.echo(f"next: kbq erase resume {found.number}")


def _document(found: Erasure) -> dict[str, object]:
    return {
        **document(found, "number topic phase records rows files"),
        "begun": _time(found.times.started_ms),
        "done": _time(found.times.ended_ms),
        "until": {str(number): each.until for number, each in sorted(found.partitions.items())},
    }


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds") if ms else ""
