"""``kbq where``: shows where a record, a staged file or a load job's files are."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Iterable
from typing import NoReturn, Protocol, TypeAlias

import click

from kbq_assets.cli.context import ExitCode, Part, json_option, pass_operator
from kbq_assets.cli.render import echo_json
from kbq_assets.core.backup.backup_names import BACKUP
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.timestamps import parse_moment
from kbq_assets.extras.where.find import RecordFinder
from kbq_assets.extras.where.locate import (
    Place,
    explained,
    locate,
    locate_copies,
    locate_copy,
    locate_file,
    locate_job,
    path_in_store,
)
from kbq_assets.pipelines.loading.view import LoadView, read_view
from kbq_assets.pipelines.operate.operator import Operator
from kbq_assets.ports.kafka import RecordSource

_NOWHERE = (
    "no row, file or gap contains it: it may be a control record, part of an aborted transaction, left out by\n"
    "compaction or `skip`, or dropped by its table; `kbq reconcile` accounts for all records of a topic"
)


Record: TypeAlias = tuple[TopicPartition, int]


class HasSource(Protocol):
    """Opens the broker's records."""

    def source(self) -> RecordSource:
        """Kafka."""


pass_adapters: Part[HasSource] = Part("adapters")


@click.command()
@click.argument("topic", required=False)
@click.argument("partition", type=click.IntRange(min=0), required=False)
@click.argument("offset", type=click.IntRange(min=0), required=False)
@click.option("--time", "moment", metavar="TIME", help="The first record of each partition at or after TIME.")
@click.option("--key", help="Records with this key, as text. Reads the whole topic or partition.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="With --key: maximum number of records.",
)
@click.option(
    "--file", "path", metavar="PATH", help="A staged file or a file of the backup, by its path or address."
)
@click.option("--job", "job_id", metavar="ID", help="A load job: kbq-….")
@click.option("--query/--no-query", default=True, help="Also search the tables; BigQuery bills the query.")
@json_option
@pass_adapters
@pass_operator
def where(
    operator: Operator,
    adapters: HasSource,
    *,
    topic: str | None,
    partition: int | None,
    offset: int | None,
    moment: str | None,
    key: str | None,
    limit: int,
    path: str | None,
    job_id: str | None,
    query: bool,
    as_json: bool,
) -> None:
    """Show where a record is: not extracted yet, in a staged file, in a table, in the error table, in quarantine, or
    given up; and in which file and block of the backup.

    Exit code 1 if it is nowhere.

    \b
      kbq where shop.orders.v1 3 1042
      kbq where shop.orders.v1 --time 2026-11-20T10:00Z
      kbq where shop.orders.v1 3 --key customer-17
      kbq where --file staging/0-…/shop.orders.v1.3.shop.orders.7.1000.avro
      kbq where --file backup/shop.orders.v1/9f2c…/1_3_00000000000000001000_00000000000000001999.avro
      kbq where --job kbq-…-17
    """
    asked = [each is not None for each in (offset, moment, key, path, job_id)]
    if sum(asked) != 1 or (topic is None) != (path is not None or job_id is not None):
        raise click.UsageError(
            "give a topic, a partition and an offset; or a topic and --time or --key; or --file; or --job"
        )
    view = read_view(operator.deployment.load_cache, operator.deployment.blocks)
    if path is not None or job_id is not None:
        _show_files(operator, view, path, job_id or "", as_json=as_json)
    records: Iterable[Record] = [(TopicPartition(topic or "", partition or 0), offset or 0)]
    finder = RecordFinder(operator, adapters.source)
    if moment is not None:
        records = finder.at_time(topic or "", partition, parse_moment(moment))
    elif key is not None:
        records = itertools.islice(finder.with_key(topic or "", partition, key.encode()), limit)
    _show(operator, view, records, one=offset is not None, query=query, as_json=as_json)


def _show_files(
    operator: Operator, view: LoadView, path: str | None, job_id: str, *, as_json: bool
) -> NoReturn:
    warehouse = operator.deployment.warehouse
    path = None if path is None else path_in_store(path)
    if path is None:
        found = locate_job(view, job_id, warehouse)
    elif path.startswith(BACKUP):
        found = locate_copy(operator.backups, path)
    else:
        found = locate_file(view, path, warehouse)
    _print(found, as_json)
    if not found and not as_json:
        click.echo("nothing is known about it")
    sys.exit(ExitCode.DONE if explained(found) else ExitCode.FAILED)


def _show(
    operator: Operator, view: LoadView, records: Iterable[Record], *, one: bool, query: bool, as_json: bool
) -> NoReturn:
    """Show where records are, and exit. ``one``: whether an offset was given."""
    found = [RecordPlaces(record, *_places(operator, view, record, query=query)) for record in records]
    if one:
        _print(found[0].places, as_json)
    elif as_json:
        echo_json([each.document for each in found])
    else:
        _print_each(found)
    is_there = [each.explains(query=query) for each in found]
    if one and not as_json and not all(is_there):
        click.echo(_NOWHERE)
    sys.exit(ExitCode.DONE if is_there and all(is_there) else ExitCode.FAILED)


@dataclasses.dataclass(frozen=True)
class RecordPlaces:
    """A record's places: ``own`` without copies in the backup, ``places`` with them."""

    record: Record
    own: list[Place]
    places: list[Place]

    @property
    def document(self) -> dict[str, object]:
        tp, offset = self.record
        places = [dataclasses.asdict(each) for each in self.places]
        return {"partition": tp.partition, "offset": offset, "places": places}

    def explains(self, *, query: bool) -> bool:
        """Whether the places explain where the record is. A copy does not explain a missing row, unless the topic has
        no tables."""
        return explained(self.own or self.places) or (not query and bool(self.own))


def _print_each(found: list[RecordPlaces]) -> None:
    for each in found:
        click.echo(f"{each.record[0]} offset {each.record[1]}:")
        _print(each.places, as_json=False)
    if not found:
        click.echo("there is no such record")


def _places(
    operator: Operator, view: LoadView, record: Record, *, query: bool
) -> tuple[list[Place], list[Place]]:
    """A record's places, without its copies and with them."""
    copies = locate_copies(operator.backups, *record)
    is_known = not copies or bool(view.commit_paths(record[0].topic))
    deployment = operator.deployment
    warehouse = deployment.warehouse if query else None
    found = locate(view, *record, warehouse, deployment.sources.has) if is_known else []
    return found, [*found, *copies]


def _print(found: list[Place], as_json: bool) -> None:
    if as_json:
        return echo_json([dataclasses.asdict(place) for place in found])
    for place in found:
        click.echo(f"{place.kind} {place.name}".rstrip() + (f": {place.text}" if place.text else ""))
    for command in dict.fromkeys(command for place in found for command in place.commands):
        click.echo(f"next: {command}")
