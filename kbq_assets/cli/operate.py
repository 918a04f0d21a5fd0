"""The operator's commands: bootstrap, resume, park, adopt, accept-gap, reset. Each shows its proposal and asks."""

from __future__ import annotations

import click

from kbq_assets.cli.context import check_one_warehouse, confirm, one_warehouse, pass_operator, yes_option
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.timestamps import parse_moment
from kbq_assets.pipelines.operate.commands import StartAt
from kbq_assets.pipelines.operate.operator import Operator

_POSITIONS = click.Choice(["earliest", "latest", "timestamp", "offset"])


def milliseconds(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Milliseconds since 1970, parsed from such a number or from an ISO 8601 time (UTC if it has no zone)."""
    if value is None:
        return None
    try:
        return parse_moment(value)
    except ConfigurationError as error:
        raise click.BadParameter(error.message, ctx, param) from error


@click.command()
@click.option("--topic", help="The topic to write a commit for.")
@click.option("--at", type=_POSITIONS, help="Where its partitions start.")
@click.option(
    "--timestamp",
    metavar="TIME",
    callback=milliseconds,
    help="With --at timestamp: ISO 8601, or ms since 1970.",
)
@click.option("--offset", type=click.IntRange(min=0), help="With --at offset: the offset in every partition.")
@click.option("--from-done-files", is_flag=True, help="Continue where Kafka BigQuery Express stopped.")
@yes_option
@pass_operator
def bootstrap(
    operator: Operator,
    topic: str | None,
    at: str | None,
    timestamp: int | None,
    offset: int | None,
    from_done_files: bool,
    yes: bool,
) -> None:
    """Write the first commit of a topic, to choose where extraction starts.

    Without this command, a new topic starts at its option `start=`. With --from-done-files, each partition starts
    after its highest done file in the staging area's done/ folder. You may create these files by hand.

    \b
      kbq bootstrap --topic shop.orders.v1 --at latest
      kbq bootstrap --topic shop.orders.v1 --at timestamp --timestamp 2026-01-31T00:00:00Z
      kbq bootstrap --from-done-files
    """
    _check_bootstrap(topic, at, timestamp, offset, from_done_files)
    if from_done_files:
        topics = None if topic is None else [topic]
        proposals = operator.bootstrap_from_done_files(topics)
    else:
        proposals = [operator.bootstrap(topic or "", StartAt(at or "", timestamp or offset or 0))]
    confirm(proposals, yes=yes)


@click.command()
@click.option("--topic", help="A topic with stopped partitions.")
@click.option("--partition", type=click.IntRange(min=0), help="Only this partition.")
@click.option(
    "--as-errors", is_flag=True, help="Accept the bad records as error rows instead of fixing the cause."
)
@click.option(
    "--new-schemas", is_flag=True, help="Accept the registry's current schemas for all of the topic's ids."
)
@click.option(
    "--gone",
    is_flag=True,
    help="The topic (or pattern) was deleted on purpose: do not expect it any more. Its rows stay.",
)
@click.option("--table", metavar="DS.TABLE", help="A parked table, or a table with missing rows.")
@click.option(
    "--to-quarantine", is_flag=True, help="With --table: move all its bad files to quarantine, however many."
)
@yes_option
@pass_operator
def resume(
    operator: Operator,
    *,
    topic: str | None,
    partition: int | None,
    as_errors: bool,
    new_schemas: bool,
    gone: bool,
    table: str | None,
    to_quarantine: bool,
    yes: bool,
) -> None:
    """Resume a stopped partition or a parked table after you have fixed the cause.

    For a table that is not parked, acknowledge missing rows: rows of files that the warehouse rejected, and of jobs
    that loaded fewer or more rows than their files have. Until then, no further hours of the table become complete.

    \b
      kbq resume --topic shop.orders.v1
      kbq resume --topic shop.orders.v1 --partition 3 --as-errors
      kbq resume --topic 'audit-*' --gone
      kbq resume --table shop.orders
    """
    if (topic is None) == (table is None):
        raise click.UsageError("give --topic or --table")
    if to_quarantine and table is None:
        raise click.UsageError("--to-quarantine needs --table")
    if (new_schemas or gone) and (partition is not None or as_errors or (new_schemas and gone)):
        raise click.UsageError("use --new-schemas or --gone alone: each is for a whole topic")
    if table is not None:
        if partition is not None or as_errors or new_schemas or gone:
            raise click.UsageError("--partition, --as-errors, --new-schemas and --gone need --topic")
        check_one_warehouse()
        proposal = operator.resume_table(TableReference.parse(table), to_quarantine=to_quarantine)
    elif gone:
        proposal = operator.gone(topic or "")
    elif new_schemas:
        proposal = operator.new_schemas(topic or "")
    else:
        proposal = operator.resume(topic or "", partition, as_errors=as_errors)
    confirm([proposal], yes=yes)


@click.command()
@click.option("--table", required=True, metavar="DS.TABLE", help="The table to park.")
@yes_option
@one_warehouse
@pass_operator
def park(operator: Operator, table: str, yes: bool) -> None:
    """Park a table: nothing is loaded into it until `kbq resume --table`. Other tables continue.

    The table's files wait in its backlog, so its topics are not delayed.
    """
    confirm([operator.park_table(TableReference.parse(table))], yes=yes)


@click.command()
@click.option("--table", "tables", required=True, multiple=True, metavar="DS.TABLE", help="The table.")
@yes_option
@one_warehouse
@pass_operator
def adopt(operator: Operator, tables: tuple[str, ...], yes: bool) -> None:
    """Take over a table whose rows another staging area loaded, or continue without a table that is gone.

    If you only use the wrong staging area or warehouse by mistake, correct KBQ_STAGING, KBQ_WAREHOUSE or KBQ_HOME
    instead.
    """
    confirm([operator.adopt_table(TableReference.parse(table)) for table in tables], yes=yes)


@click.command(name="accept-gap")
@click.option("--topic", required=True, help="The topic.")
@click.option("--partition", required=True, type=click.IntRange(min=0), help="The partition.")
@yes_option
@pass_operator
def accept_gap(operator: Operator, topic: str, partition: int, yes: bool) -> None:
    """Continue after retention deleted records that were never read, or after a batch that cannot be read.

    Gives up the positions before the broker's oldest record, or exactly that batch, and counts them as lost.
    """
    tp = TopicPartition(topic, partition)
    confirm([operator.accept_gap(tp)], yes=yes)


@click.command()
@click.argument("file", metavar="FILE")
@yes_option
@pass_operator
def restage(operator: Operator, file: str, yes: bool) -> None:
    """Read the range of a staged file from Kafka again, and replace the file.

    For a file that is gone or damaged (`missing_files`, `damaged_files`). FILE is the path that `kbq status` shows. If
    the new file has another number of rows than the old one, nothing changes. Afterwards, resume the table.

    \b
      kbq restage staging/1-4f0c9d21a7/shop.orders.v1.0.shop.orders.17.4200.avro
    """
    confirm([operator.restage(file)], yes=yes)


@click.command()
@click.option("--topic", required=True, help="The topic.")
@click.option("--partition", type=click.IntRange(min=0), help="Only this partition.")
@click.option("--at", type=click.Choice(["earliest", "latest"]), help="Where partitions start (earliest).")
@click.option("--from-offset", type=click.IntRange(min=0), help="Each partition starts at this offset.")
@click.option(
    "--from-time",
    metavar="TIME",
    callback=milliseconds,
    help="Each partition starts at its first record at or after this time: ISO 8601, or ms since 1970.",
)
@click.option("--give-up-pending", is_flag=True, help="Give up committed files that are not loaded yet.")
@yes_option
@pass_operator
def reset(
    operator: Operator,
    topic: str,
    partition: int | None,
    at: str | None,
    from_offset: int | None,
    from_time: int | None,
    give_up_pending: bool,
    yes: bool,
) -> None:
    """Start a topic over, because it was recreated or truncated, or to read it again.

    This begins a new epoch. Rows of older epochs stay in the tables; the column `_kbq_epoch` distinguishes them.
    """
    start = _reset_at(at, from_offset, from_time)
    confirm([operator.reset(topic, partition, start, give_up_pending=give_up_pending)], yes=yes)


def _reset_at(at: str | None, from_offset: int | None, from_time: int | None) -> StartAt:
    if sum(choice is not None for choice in (at, from_offset, from_time)) > 1:
        raise click.UsageError("give at most one of --at, --from-offset and --from-time")
    if from_offset is not None:
        return StartAt("offset", from_offset)
    return StartAt(at or "earliest") if from_time is None else StartAt("timestamp", from_time)


def _check_bootstrap(
    topic: str | None, at: str | None, timestamp: int | None, offset: int | None, from_done_files: bool
) -> None:
    if from_done_files:
        if at is not None:
            raise click.UsageError("--from-done-files determines the start: leave out --at")
    elif topic is None or at is None:
        raise click.UsageError("give --topic and --at, or --from-done-files")
    for name, value in (("timestamp", timestamp), ("offset", offset)):
        if (at == name) != (value is not None):
            raise click.UsageError(f"--at {name} and --{name} go together")
