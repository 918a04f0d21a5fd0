"""``kbq where``: where a record, a staged file or a load job's files are."""

from __future__ import annotations

import dataclasses
import sys

import click

from kbq_assets.cli.context import ExitCode, json_option, pass_operator
from kbq_assets.cli.render import console, echo_json, table
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.extras.where.locate import Place, explained, locate, locate_copies, locate_file, locate_job
from kbq_assets.pipelines.loading.view import read_view
from kbq_assets.pipelines.operate.operator import Operator

_NOWHERE = (
    "no row, file or gap holds it: it may be a control record, an aborted transaction, a record that compaction or\n"
    "`skip` left out, or one whose table dropped it; `kbq reconcile` accounts for all of a topic"
)


@click.command()
@click.argument("topic", required=False)
@click.argument("partition", type=click.IntRange(min=0), required=False)
@click.argument("offset", type=click.IntRange(min=0), required=False)
@click.option("--file", "path", metavar="PATH", help="A staged file: staging/….avro.")
@click.option("--job", "job_id", metavar="ID", help="A load job: kbq-….")
@click.option("--query/--no-query", default=True, help="Search the tables too; BigQuery bills the query.")
@json_option
@pass_operator
def where(
    operator: Operator,
    topic: str | None,
    partition: int | None,
    offset: int | None,
    path: str | None,
    job_id: str | None,
    query: bool,
    as_json: bool,
) -> None:
    """Where a record is: not extracted yet, in a staged file, in a table, in the error table, in quarantine, given up;
    and in which file of the backup.

    Exit code 1 if it is nowhere.

    \b
      kbq where shop.orders.v1 3 1042
      kbq where --file staging/0-…/shop.orders.v1.3.shop.orders.7.1000.avro
      kbq where --job kbq-…-17
    """
    record = offset is not None
    if record + (path is not None) + (job_id is not None) != 1:
        raise click.UsageError("name a topic, a partition and an offset; or --file; or --job")
    deployment, copies = operator.deployment, list[Place]()
    view = read_view(deployment.load_cache, deployment.blocks)
    if path is not None:
        found = locate_file(view, path)
    elif job_id is not None:
        found = locate_job(view, job_id, deployment.warehouse)
    else:
        place = TopicPartition(topic or "", partition or 0)
        copies = locate_copies(operator.backups, place, offset or 0)
        is_known = not copies or bool(view.commit_paths(place.topic))
        found = locate(view, place, offset or 0, deployment.warehouse if query else None) if is_known else []
    _print([*found, *copies], as_json)
    # A copy explains no missing row, unless the topic has no tables.
    there = explained(found or copies) or (record and not query and bool(found))
    if not there and not as_json:
        click.echo(_NOWHERE if record else "nothing is known of it")
    sys.exit(ExitCode.DONE if there else ExitCode.FAILED)


def _print(found: list[Place], as_json: bool) -> None:
    if as_json:
        return echo_json([dataclasses.asdict(place) for place in found])
    shown = table("where", "name", "")
    for place in found:
        shown.add_row(place.kind, place.name, place.text)
    console().print(shown)
    for command in dict.fromkeys(command for place in found for command in place.commands):
        click.echo(f"next: {command}")
