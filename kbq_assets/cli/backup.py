"""``kbq backup``: shows and verifies verbatim copies of topics, and resumes stopped ones."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import click

from kbq_assets.cli.context import ExitCode, confirm, json_option, pass_operator, yes_option
from kbq_assets.cli.render import backups_headline, console, echo_json, number, size, stop_lines, table
from kbq_assets.core.errors import NotFound
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.pipelines.backup.merge import MergeReport
from kbq_assets.pipelines.backup.status import BackupsStatus
from kbq_assets.pipelines.backup.verify import Verified
from kbq_assets.pipelines.observation.documents import backups_json, document
from kbq_assets.pipelines.operate.operator import Operator

_topic_option = click.option("--topic", required=True, help="The topic.")
_partition_option = click.option("--partition", type=click.IntRange(min=0), help="Only this partition.")


@click.group()
def backup() -> None:
    """Show and verify backups; resume them.

    If a topic has the option `backup=true`, KBQ keeps a verbatim copy of every record; see docs/backup.md.
    """


@backup.command()
@json_option
@pass_operator
def status(operator: Operator, as_json: bool) -> None:
    """Show how far each backup is, and what stops it; exit code 1 if one is stopped."""
    found = operator.backups.status()
    if as_json:
        echo_json(backups_json(found))
    else:
        _print_status(found)
    sys.exit(ExitCode.FAILED if found.stops else ExitCode.DONE)


def _print_status(found: BackupsStatus) -> None:
    out = console()
    shown = table("backup of", "#epoch", "#from", "#position", "#lag", "#records", "#lost", "#values")
    for p in found.partitions:
        counts = map(number, (p.start, p.position, p.lag, p.totals.records, p.totals.lost))
        shown.add_row(str(p.topic_partition), str(p.epoch), *counts, size(p.totals.bytes))
    if found.partitions:
        out.print(shown)
    out.print(backups_headline(found))
    for line in stop_lines(found.stops):
        out.print(line, style="yellow")


@backup.command()
@click.option("--topic", "topics", multiple=True, help="Only this topic; repeatable.")
@_partition_option
@click.option("--from", "first", type=click.IntRange(min=0), default=0, help="From this offset on.")
@click.option("--until", type=click.IntRange(min=0), help="Before this offset.")
@json_option
@pass_operator
def verify(
    operator: Operator,
    topics: tuple[str, ...],
    partition: int | None,
    first: int,
    until: int | None,
    as_json: bool,
) -> None:
    """Read backup files and compare sizes, checksums and hashes; exit code 1 if a file is damaged or gone,
    or if a chosen range has none.

    Also saves schemas that the registry did not have, or did not return, when their records were copied.

    \b
      kbq backup verify
      kbq backup verify --topic shop.orders.v1 --partition 3 --from 4200 --until 9000
    """
    is_range = partition is not None or first > 0 or until is not None
    if is_range and len(topics) != 1:
        raise click.UsageError("--partition, --from and --until need exactly one --topic")
    found = {
        topic: operator.backups.verify(topic, partition=partition, first=first, until=until)
        for topic in (topics or operator.backups.topics())
    }
    if is_range and not found[topics[0]].files:
        raise NotFound(
            f"the backup of {topics[0]} has no file of this range",
            next_step="kbq backup status shows its positions",
        )
    if as_json:
        echo_json({topic: _verified_json(each) for topic, each in found.items()})
    else:
        for line in (line for topic, each in found.items() for line in _verified_lines(topic, each)):
            click.echo(line)
    sys.exit(ExitCode.FAILED if any(each.damages for each in found.values()) else ExitCode.DONE)


@backup.command()
@click.option("--topic", "topics", multiple=True, help="Only this topic; repeatable.")
@click.option("--plan", is_flag=True, help="Show what would be merged; change nothing.")
@json_option
@pass_operator
def compact(operator: Operator, topics: tuple[str, ...], plan: bool, as_json: bool) -> None:
    """Merge adjacent small files into large ones; exit code 1 if a file is damaged or gone.

    The command compares records, offsets and hashes. Backups, readers and erasures continue meanwhile. The small files
    stay for a day, for readers that have already started.

    \b
      kbq backup compact --plan
      kbq backup compact --topic shop.orders.v1
    """
    found = {
        topic: operator.backups.merge(topic, plan=plan) for topic in (topics or operator.backups.topics())
    }
    if as_json:
        echo_json({topic: document(each, "before after bytes damaged") for topic, each in found.items()})
    else:
        for line in (line for topic, each in found.items() for line in _merged_lines(topic, each, plan)):
            click.echo(line)
    sys.exit(ExitCode.FAILED if any(each.damaged for each in found.values()) else ExitCode.DONE)


def _merged_lines(topic: str, found: MergeReport, plan: bool) -> Iterable[str]:
    become = "would become" if plan else "became"
    yield f"{topic}: {counted(found.before, 'file')} {become} {number(found.after)}; {size(found.bytes)}"
    for path, problem in found.damaged.items():
        yield f"damaged: {path}: {problem}: kbq backup verify --topic {topic}"


def _verified_json(found: Verified) -> dict[str, object]:
    return {
        **document(found, "files records bytes"),
        "damaged": [document(damage, "path topic_partition first until problem") for damage in found.damages],
        "missing_schemas": [schema_id for _, schema_id in found.missing_schemas],
    }


def _verified_lines(topic: str, found: Verified) -> Iterable[str]:
    yield (
        f"{topic}: {counted(found.files, 'file')}, {counted(found.records, 'record')}, {size(found.bytes)};"
        f" {len(found.damages)} damaged"
    )
    for damage in found.damages:
        yield f"damaged: {damage.topic_partition} [{damage.first}, {damage.until}): {damage.path}: {damage.problem}"
    for tp in sorted({damage.topic_partition for damage in found.damages}):
        again = f"kbq backup reset --topic {tp.topic} --partition {tp.partition}"
        yield (
            f"next: restore its files; or {again} copies again what Kafka still has, in a new epoch"
            " (the old files are reported until KBQ_BACKUP_DAYS drops them)"
        )
    if found.missing_schemas:
        ids = ", ".join(str(schema_id) for _, schema_id in found.missing_schemas)
        yield f"schemas that the registry does not have: {ids}"


@backup.command()
@_topic_option
@_partition_option
@yes_option
@pass_operator
def resume(operator: Operator, topic: str, partition: int | None, yes: bool) -> None:
    """Resume a stopped backup after you have fixed the cause. The range is read again."""
    confirm([operator.backups.resume(topic, partition)], yes=yes)


@backup.command(name="accept-gap")
@_topic_option
@click.option("--partition", required=True, type=click.IntRange(min=0), help="The partition.")
@yes_option
@pass_operator
def accept_gap(operator: Operator, topic: str, partition: int, yes: bool) -> None:
    """Continue after records that were deleted before they were copied, or after a batch that cannot be read."""
    confirm([operator.backups.accept_gap(TopicPartition(topic, partition))], yes=yes)


@backup.command()
@_topic_option
@_partition_option
@click.option(
    "--at", type=click.Choice(["earliest", "latest"]), default="earliest", help="Where partitions start."
)
@yes_option
@pass_operator
def reset(operator: Operator, topic: str, partition: int | None, at: str, yes: bool) -> None:
    """Start the backup over in a new epoch, after the topic was recreated or truncated. Old files stay."""
    confirm([operator.backups.reset(topic, partition, at)], yes=yes)
