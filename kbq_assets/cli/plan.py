"""``kbq plan``: shows the next extraction and the next load without running them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence

import click
from rich.console import Console

from kbq_assets.cli.context import (
    ExitCode,
    each_warehouse,
    is_further_warehouse,
    json_option,
    pass_extractor,
    pass_loader,
    pass_observer,
)
from kbq_assets.cli.cost import CycleCost, cost_json, cost_lines, costs_of
from kbq_assets.cli.render import console, echo_json, name_missing_topics, number, size, stop_lines, table
from kbq_assets.core.errors import TransientError
from kbq_assets.core.extraction.planning import ExtractionPlan
from kbq_assets.core.extraction.units import Unit
from kbq_assets.core.loading.completeness import moment
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.pipelines.extraction.extractor import Extractor
from kbq_assets.pipelines.loading.load import LoadPlan
from kbq_assets.pipelines.loading.loader import Loader
from kbq_assets.pipelines.observation.documents import document, stop_json
from kbq_assets.pipelines.observation.observer import Observer
from kbq_assets.pipelines.observation.status import TableStatus
from kbq_assets.pipelines.statements.plan import StatementPlan


@click.command()
@click.argument("what", type=click.Choice(["extract", "load"]), required=False)
@click.argument("tables", metavar="[DS.TABLE]...", nargs=-1)
@click.option("--topic", "topics", multiple=True, help="Plan the extraction of only these topics.")
@click.option("--cost", is_flag=True, help="Estimate the Cloud Storage operations and their list price.")
@json_option
@each_warehouse
@pass_observer
@pass_loader
@pass_extractor
def plan(
    extractor: Extractor,
    loader: Loader,
    observer: Observer,
    what: str | None,
    tables: tuple[str, ...],
    topics: tuple[str, ...],
    cost: bool,
    as_json: bool,
) -> None:
    """Show what an extraction or a load would do; change nothing.

    Without an argument, show both: the extraction's ranges and stops, and the next batch of every table with committed
    files, as a load would submit them now. `load` also makes a dry run of each table's statement, and shows the bytes
    that BigQuery would bill, and for named tables the SQL. Exit code 0 even if something waits for an operator (`kbq
    check` fails then), 1 if a statement exceeds bytes_per_day or the store refuses a state, 75 if it gives none now.

    \b
      kbq plan
      kbq plan extract --topic shop.orders.v1
      kbq plan load --json
      kbq plan load shop.customers
      kbq plan --cost
    """
    if tables and what != "load":
        raise click.UsageError("only `kbq plan load` takes tables")
    only = loader.chosen(tables)
    extraction = extractor.plan(extractor.chosen(topics)) if what != "load" else None
    loads = loader.plan().of(only) if what != "extract" else None
    batches = loads.batches if loads else None
    statements = loader.plan_statements(batches or (), only) if what == "load" else []
    known = observer.tables(survives_silence=True) if loads else ()
    switches = loader.plan_switches(only) if loads else {}
    costs = costs_of(extractor, extraction, batches) if cost else []
    if as_json:
        document: dict[str, object] = {} if extraction is None else {"extract": extraction_json(extraction)}
        document |= {} if loads is None else {"load": load_json(loads, known, switches)}
        document |= {"statements": [_statement_json(each) for each in statements]} if statements else {}
        document |= {"cost": [cost_json(each) for each in costs]} if cost else {}
        echo_json(document)
    else:
        _print_plan(extractor, extraction, loads, known, switches)
        _print_statements(statements, bool(only), console())
        _print_costs(costs, console())
    _exit(statements, extraction, loads)


def _print_plan(
    extractor: Extractor,
    extraction: ExtractionPlan | None,
    loads: LoadPlan | None,
    tables: Sequence[TableStatus],
    switches: Mapping[TableReference, str],
) -> None:
    out = console()
    if extraction is not None and not is_further_warehouse():
        name_missing_topics(extractor.deployment)
        _print_extraction(extraction, out)
    if loads is not None:
        _print_load(loads, [t for t in tables if t.blocked_rows], out)
    if parked := sum(t.state == "parked" for t in tables):
        load = counted(parked, "parked table loads", "parked tables load")
        out.print(f"{load} nothing; next: kbq status", style="yellow")
    for changed, words in switches.items():
        out.print(f"change: {changed}: {words}")


def extraction_json(planned: ExtractionPlan) -> dict[str, object]:
    return {
        "positions": planned.positions,
        "idle": planned.idle,
        "creations": [
            {"topic": c.topic, "shard": c.shard, "starts": {str(p): s for p, s in c.starts.items()}}
            for c in planned.creations
        ],
        "additions": [document(a, "topic_partition start") for a in planned.additions],
        "gaps": [document(g, "topic_partition until") for g in planned.gaps],
        "units": [_unit_json(unit) for unit in planned.units],
        "waiting": [
            document(w, "topic_partition positions max_wait_seconds message") for w in planned.waiting
        ],
        "throttled": [document(t, "topic_partition positions") for t in planned.throttled],
        "stops": [stop_json(stop) for stop in planned.stops],
        "failures": {str(tp): message for tp, message in planned.failures.items()},
        "backups": {area: extraction_json(each) for area, each in planned.backups.items()},
    }


def _unit_json(unit: Unit) -> dict[str, object]:
    read = unit.range
    ends = {"epoch": unit.epoch, "from": read.from_offset, "until": read.until_offset}
    return document(read, "topic_partition", **ends, positions=read.positions)


def load_json(
    loads: LoadPlan,
    tables: Sequence[TableStatus],
    switches: Mapping[TableReference, str],
) -> dict[str, object]:
    """The plan of a load as a document. ``tables`` may have rows that wait for a check; ``switches`` are the changes of
    `load` that wait."""
    return {
        "held": [
            {"table": str(t.table), "rows": t.blocked_rows, "message": t.message}
            for t in tables
            if t.blocked_rows
        ],
        "changes": [{"table": str(name), "switch": words} for name, words in switches.items()],
        "batches": [
            {
                "table": str(batch.table),
                "schema_id": batch.schema.schema_id,
                "files": len(batch.files),
                **document(batch, "rows bytes"),
                "paths": [file.path for file in batch.files],
            }
            for batch in loads.batches
        ],
        "refused": dict(loads.refused),
        "unavailable": dict(loads.unavailable),
        "failed": {str(table): str(error) for table, error in loads.failed.items()},
    }


def _print_extraction(planned: ExtractionPlan, out: Console) -> None:
    for line in _changes(planned):
        out.print(line)
    if planned.units:
        units = table("extract", "#from", "#until", "#positions", "#epoch")
        for unit in planned.units:
            range_ = unit.range
            units.add_row(
                str(range_.topic_partition),
                str(range_.from_offset),
                str(range_.until_offset),
                number(range_.positions),
                str(unit.epoch),
            )
        out.print(units)
    out.print(
        f"extract: {counted(planned.positions, 'position')} of {counted(len(planned.units), 'partition')};"
        f" {counted(planned.idle, 'has', 'have')} nothing new, {len(planned.stops)} stopped"
    )
    for line in _left_alone(planned):
        out.print(line)
    for line in (*stop_lines(planned.stops), *failures_of(planned)):
        out.print(line, style="yellow")
    for each in planned.backups.values():
        own = counted(len(each.units), "partition by itself", "partitions by themselves")
        shared = sum(bool(unit.backup_epoch) for unit in planned.units)
        out.print(
            f"backup: {counted(each.positions, 'position')} of {own};"
            f" {counted(shared, 'partition')} with the tables'; {len(each.stops)} stopped"
        )
        for line in stop_lines(each.stops):
            out.print(f"backup {line}", style="yellow")


def failures_of(planned: ExtractionPlan) -> list[str]:
    """A line for each partition whose commit the store did not give now, of tables and of backups."""
    lines = [f"not planned now: {tp}: {message}" for tp, message in sorted(planned.failures.items())]
    return [*lines, *(f"backup {line}" for each in planned.backups.values() for line in failures_of(each))]


def _left_alone(planned: ExtractionPlan) -> Iterator[str]:
    for w in planned.waiting:
        hour = f", or until {moment(w.closes_ms)} UTC, when its hour ends" if w.closes_ms else ""
        yield f"waits for more: {w.topic_partition}: {w.message}, for at most {number(w.max_wait_seconds)} s{hour}"
    for t in planned.throttled:
        yield f"left for later runs by a limit: {t.topic_partition}: {counted(t.positions, 'position')}"


def _changes(planned: ExtractionPlan) -> Iterator[str]:
    for creation in planned.creations:
        starts = ", ".join(f"[{p}] at {start}" for p, start in sorted(creation.starts.items()))
        yield f"new topic {creation.topic}: {starts}"
    for addition in planned.additions:
        yield f"new partition {addition.topic_partition} at {addition.start}"
    for gap in planned.gaps:
        yield f"gap of {gap.topic_partition} until {gap.until}: {gap.reason}"


def _print_load(loads: LoadPlan, blocked: Sequence[TableStatus], out: Console) -> None:
    batches = loads.batches
    if batches:
        planned = table("load", "#schema id", "#files", "#rows", "#size")
        for batch in batches:
            schema_id = str(batch.schema.schema_id)
            planned.add_row(
                str(batch.table), schema_id, number(len(batch.files)), number(batch.rows), size(batch.bytes)
            )
        out.print(planned)
    rows = sum(batch.rows for batch in batches)
    out.print(f"load: {counted(rows, 'row')} in the next batches of {counted(len(batches), 'table')}")
    for t in blocked:
        out.print(f"blocked: {t.table}: {t.message}", style="yellow")
    for what, why in (*loads.refused.items(), *loads.failed.items()):
        out.print(f"failed: {what}: {why}", style="yellow")
    for path, message in loads.unavailable.items():
        out.print(f"not planned now: {path}: {message}", style="yellow")


def _statement_json(planned: StatementPlan) -> dict[str, object]:
    return {
        "table": str(planned.table),
        **document(planned, "kind batch bytes unknown used limit excess sql"),
    }


def _print_statements(statements: Sequence[StatementPlan], shows_sql: bool, out: Console) -> None:
    for planned in statements:
        name = (
            f"{planned.table}: load={planned.kind}, batch {planned.batch}" if planned.kind else planned.table
        )
        billed = "unknown" if planned.bytes is None else f"{number(planned.bytes)} bytes billed"
        limit = f" of {number(planned.limit - planned.used)} left today" if planned.limit else ""
        why = f" ({planned.unknown})" if planned.unknown else ""
        out.print(f"statement: {name}: {billed}{limit}{why}", style="yellow" if planned.excess else None)
        if planned.excess:
            out.print(f"  would wait: {planned.excess}; next: raise bytes_per_day", style="yellow")
        if shows_sql:
            click.echo(planned.sql)


def _print_costs(costs: Sequence[CycleCost], out: Console) -> None:
    for line in cost_lines(costs) if costs else ():
        out.print(line)


def _exit(
    statements: Sequence[StatementPlan], extraction: ExtractionPlan | None, loads: LoadPlan | None
) -> None:
    failed = loads.failed.values() if loads else ()
    stays = any(each.excess for each in statements) or bool(loads and loads.refused)
    if stays or not all(isinstance(error, TransientError) for error in failed):
        sys.exit(ExitCode.FAILED)
    if failed or (loads and loads.unavailable) or (extraction is not None and failures_of(extraction)):
        sys.exit(ExitCode.TRY_AGAIN)
