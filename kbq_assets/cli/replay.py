"""``kbq replay``: reads ranges of topics again into shadow tables."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Concatenate, ParamSpec

import click

from kbq_assets.cli.context import (
    ExitCode,
    Part,
    check_one_warehouse,
    choose_warehouse,
    chosen_warehouse,
    confirm,
    json_option,
    opened,
    pass_deployment,
    yes_option,
)
from kbq_assets.cli.render import console, echo_json, number, table
from kbq_assets.cli.run import positions_bar
from kbq_assets.core.config.settings import Settings
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.replay.model import BACKUP, KAFKA, Replay, ReplayProgress
from kbq_assets.core.replay.positions import EARLIEST, LATEST, parse_position
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.pipelines.observation.documents import document
from kbq_assets.pipelines.replay.diff import ReplayDiff
from kbq_assets.pipelines.replay.replays import Replays, check_rate
from kbq_assets.pipelines.replay.start import find_replay
from kbq_assets.pipelines.replay.warehouses import check_named, warehouses_of

P = ParamSpec("P")
pass_replays: Part[Replays] = Part("replays")
_number = click.argument("replay_number", type=click.IntRange(1), metavar="N")
_rate = click.option(
    "--rate",
    type=click.IntRange(1),
    default=None,
    metavar="RECORDS",
    help="Maximum number of records to read per second.",
)


def _of_its_warehouse(command: Callable[Concatenate[Replays, int, P], None]) -> Callable[..., None]:
    """A command for one replay, in the warehouse of that replay. Refused if `kbq --warehouse` names another one."""

    @functools.wraps(command)
    def of_its_warehouse(replay_number: int, *args: P.args, **kwargs: P.kwargs) -> None:
        if not chosen_warehouse():
            live = opened("deployment")
            found = find_replay(live.store, replay_number)
            check_named(live.settings, found)
            choose_warehouse(live.settings.warehouse_named(found.warehouse))
        command(opened("replays"), replay_number, *args, **kwargs)

    return of_its_warehouse


@click.group()
def replay() -> None:
    """Read a range of a topic again, while live extraction and loading continue."""


@replay.command()
@click.argument("topic")
@click.option(
    "--from", "first", default=EARLIEST, show_default=True, help="A time, an offset, or 0:4200,3:117."
)
@click.option("--until", default=LATEST, show_default=True, help="The end, in the same forms; not included.")
@click.option(
    "--source",
    type=click.Choice([KAFKA, BACKUP]),
    default=KAFKA,
    show_default=True,
    help="Read Kafka, or the topic's backup, which also has records that Kafka has deleted.",
)
@click.option(
    "--tables", default="", metavar="DS.TABLE,…", help="Fill and replace only these tables of the topic."
)
@_rate
@yes_option
@pass_deployment
def start(
    live: Deployment,
    topic: str,
    first: str,
    until: str,
    source: str,
    tables: str,
    rate: int | None,
    yes: bool,
) -> None:
    """Show what a replay would read and cost, then read the range into shadow tables.

    The range is read with today's source list, schemas and pseudonyms. Ctrl-C stops it between two windows; `kbq replay
    resume` continues. Exit code 1 if the replay is stopped, 75 if a system did not answer. A replay fills one
    warehouse. If the topic goes to several, choose one with `kbq --warehouse NAME replay start`; later commands use it.
    """
    if not chosen_warehouse():
        check_one_warehouse(warehouses_of(live.settings, live.sources, topic))
    replays: Replays = opened("replays")
    ends = parse_position("--from", first, EARLIEST), parse_position("--until", until, LATEST)
    check_rate(source, rate or 0)
    only = frozenset(TableReference.parse(name.strip()) for name in tables.split(",") if name.strip())
    planned, proposal = replays.propose(topic, *ends, source, only)
    if rate:
        least = f"at least {planned.positions / rate:,.0f} s by --rate {rate}"
        proposal = dataclasses.replace(proposal, lines=(*proposal.lines, least))
    confirm([proposal], yes=yes)
    _read(replays, planned.number, rate)


@replay.command()
@_number
@click.option(
    "--as-errors", is_flag=True, help="Accept the bad records that stopped the replay as error rows."
)
@_rate
@_of_its_warehouse
def resume(replays: Replays, replay_number: int, as_errors: bool, rate: int | None) -> None:
    """Continue a replay that was stopped or failed."""
    replays.resume(replay_number, as_errors=as_errors)
    _read(replays, replay_number, rate)


@replay.command("list")
@json_option
@pass_replays
def list_replays(replays: Replays, as_json: bool) -> None:
    """List all replays; with `kbq --warehouse`, those of one warehouse."""
    settings = replays.live.settings
    found = [
        each for each in replays.list() if each.warehouse == settings.warehouse_area or not chosen_warehouse()
    ]
    if as_json:
        echo_json([_document(each, settings) for each in found])
        return
    of_several = ["warehouse"] if len(settings.warehouses) > 1 else []
    shown = table("#replay", "topic", *of_several, "phase", "#epoch", "#positions")
    for each in found:
        names = [settings.warehouse_named(each.warehouse) for _ in of_several]
        shown.add_row(
            str(each.number), each.topic, *names, each.phase, str(each.epoch), number(each.positions)
        )
    console().print(shown if found else "there are no replays")


@replay.command()
@_number
@json_option
@_of_its_warehouse
def status(replays: Replays, replay_number: int, as_json: bool) -> None:
    """Show a replay's progress, and what stops it."""
    found = replays.find(replay_number)
    progress = ReplayProgress() if found.is_ended else replays.progress(found)
    replaced = {str(name): done for name, done in replays.replaced(found).items()}
    if as_json:
        echo_json(
            {**_document(found, replays.live.settings), **_progress_document(progress), "replaced": replaced}
        )
        return
    name = replays.live.settings.warehouse_named(found.warehouse)
    within = f" in {name}" if name else ""
    click.echo(f"replay {found.number} of {found.topic}{within}: {found.phase}")
    for line in (*found.ranges, *found.only):
        click.echo(f"  {line}")
    for name, done in replaced.items():
        click.echo(f"  {name}: {'replaced' if done else 'waits'}; next: kbq replay continue {found.number}")
    if not found.is_ended:
        _print(progress)


@replay.command()
@_number
@click.option(
    "--sample", type=click.IntRange(0, 1000), default=10, show_default=True, help="Differing rows per table."
)
@json_option
@_of_its_warehouse
def diff(replays: Replays, replay_number: int, sample: int, as_json: bool) -> None:
    """Compare the replay with the live rows of its range: rows, distinct offsets and keys by partition and day, and the
    first rows that differ. Exit code 1 if the replay is not complete.
    """
    found = replays.diff(replay_number, sample)
    if as_json:
        echo_json(_diff_document(found))
    else:
        _print_diff(found)
    sys.exit(ExitCode.DONE if found.is_complete else ExitCode.FAILED)


@replay.command()
@_number
@yes_option
@_of_its_warehouse
def promote(replays: Replays, replay_number: int, yes: bool) -> None:
    """Replace the live rows of the range with the replay's rows, in one transaction over all tables; in a lake, in one
    commit per table.

    Loads of these tables wait meanwhile. If the command dies, run it again.
    """
    confirm([replays.propose_promotion(replay_number)], yes=yes)
    click.echo(f"next: kbq replay accept {replay_number}, or kbq replay rollback {replay_number}")


@replay.command()
@_number
@yes_option
@_of_its_warehouse
def rollback(replays: Replays, replay_number: int, yes: bool) -> None:
    """Restore the previous rows of the range. Rows that were loaded since then stay."""
    confirm([replays.propose_rollback(replay_number)], yes=yes)


@replay.command("continue")
@_number
@_of_its_warehouse
def continue_replacement(replays: Replays, replay_number: int) -> None:
    """Complete a promotion or a rollback that was interrupted."""
    found = replays.continue_(replay_number)
    click.echo(f"replay {found.number} is {found.phase}")


@replay.command()
@_number
@yes_option
@_of_its_warehouse
def accept(replays: Replays, replay_number: int, yes: bool) -> None:
    """Keep the promoted rows for good: delete the copies of the previous rows, the shadows and the staged files."""
    confirm([replays.propose_accept(replay_number)], yes=yes)


@replay.command()
@_number
@yes_option
@_of_its_warehouse
def drop(replays: Replays, replay_number: int, yes: bool) -> None:
    """Delete a replay's shadow tables and staged files. The live tables do not change."""
    confirm([replays.propose_drop(replay_number)], yes=yes)


def _read(replays: Replays, replay_number: int, rate: int | None) -> None:
    with positions_bar() as on_progress:
        progress = replays.read(replay_number, rate=rate or 0, on_progress=on_progress)
    _print(progress)
    if progress.is_done:
        click.echo(f"next: kbq replay diff {replay_number}")
        return
    click.echo(f"next: kbq replay resume {replay_number}")
    sys.exit(ExitCode.FAILED if progress.stops else ExitCode.TRY_AGAIN)


def _print(progress: ReplayProgress) -> None:
    click.echo(
        f"read {number(progress.read)} of {number(progress.positions)} positions: "
        f"{counted(progress.records, 'record')}, {counted(progress.rows, 'row')} loaded,"
        f" {number(progress.waiting)} to load, {counted(progress.errors, 'error')}, {number(progress.skipped)} skipped"
    )
    for stop in progress.stops:
        click.echo(f"stopped: {stop}")


def _print_diff(found: ReplayDiff) -> None:
    titles = (f"#{side} {what}" for what in ("rows", "offsets", "keys") for side in ("live", "replay"))
    shown = table("table", "#partition", "day", *titles)
    for day in found.days:
        counts = (day.live.rows, day.replay.rows, day.live.distinct, day.replay.distinct)
        keys = ("-" if count is None else number(count) for count in day.keys)
        place = (str(day.table), str(day.at.partition), str(day.at.day or "none"))
        shown.add_row(*place, *map(number, counts), *keys)
    console().print(shown)
    for line in _samples(found):
        click.echo(line)
    _print(found.progress)
    loaded = f"the shadows have {number(found.shadow_rows)} of {number(found.progress.rows)} loaded rows"
    click.echo(f"{'complete' if found.is_complete else 'not complete'}: {loaded}")
    click.echo("no value differs" if found.is_equal else "the replay differs from the live tables")


def _samples(found: ReplayDiff) -> Sequence[str]:
    return [
        f"{name}: partition {each.partition} offset {each.offset}: "
        + (f"only in the {each.only} table" if each.only else f"differs in {', '.join(each.columns)}")
        for name, differences in sorted(found.rows.items())
        for each in differences
    ]


def _document(found: Replay, settings: Settings) -> dict[str, object]:
    return {
        "replay": found.number,
        "topic": found.topic,
        "warehouse": settings.warehouse_named(found.warehouse),
        "source": found.source,
        "tables": list(found.only),
        "phase": found.phase,
        "epoch": found.epoch,
        "ranges": {str(r.topic_partition.partition): [r.from_offset, r.until_offset] for r in found.ranges},
    }


def _progress_document(progress: ReplayProgress) -> dict[str, object]:
    return document(progress, "positions read records rows waiting errors skipped stops")


def _diff_document(found: ReplayDiff) -> dict[str, object]:
    return {
        **_progress_document(found.progress),
        "complete": found.is_complete,
        "equal": found.is_equal,
        "days": [
            {
                "table": str(day.table),
                "partition": day.at.partition,
                "day": str(day.at.day) if day.at.day else None,
                "live_rows": day.live.rows,
                "replay_rows": day.replay.rows,
                "live_offsets": day.live.distinct,
                "replay_offsets": day.replay.distinct,
                "live_keys": day.keys[0],
                "replay_keys": day.keys[1],
            }
            for day in found.days
        ],
        "differences": [
            {"table": str(name), **document(each, "partition offset columns only")}
            for name, differences in sorted(found.rows.items())
            for each in differences
        ],
    }
