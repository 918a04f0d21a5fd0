"""``kbq extract --resident``: repeated cycles on one Spark application, until SIGTERM."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from importlib import metadata

import click

from kbq_assets.cli.context import current_extractor, print_error
from kbq_assets.cli.interrupts import drain_first
from kbq_assets.cli.render import failure_lines, stop_lines
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.plurals import counted
from kbq_assets.pipelines.extraction.extractor import Extractor
from kbq_assets.pipelines.extraction.ports import ExtractionReport
from kbq_assets.pipelines.extraction.resident import CycleEvents, Cycles, run_cycles

_PACKAGE = "kbq-assets"


@dataclass
class Lines:
    """Prints the reports of cycles: nothing for a cycle that read nothing, and stops only when they change. With
    ``as_json``, it prints one JSON document per line."""

    as_json: Callable[[ExtractionReport], object] | None = None
    _stops: tuple[str, ...] = ()

    def show(self, report: ExtractionReport) -> None:
        if self.as_json is not None:
            click.echo(json.dumps(self.as_json(report), ensure_ascii=False))
            return
        totals = report.totals
        if report.partitions:
            click.echo(
                f"extracted {counted(totals.records, 'record')} of {counted(len(report.partitions), 'partition')} in"
                f" {report.seconds:.1f} s: {counted(totals.staged, 'row')}, {counted(totals.errors, 'error row')}"
            )
        for line in failure_lines(report):
            click.echo(line)
        stops = tuple(stop_lines((*report.stops, *report.backup.stops)))
        if stops != self._stops:
            for line in stops or ("no partition is stopped anymore",):
                click.echo(line)
        self._stops = stops


def keep_extracting(
    extractor: Extractor, topics: Collection[str], every: float, limit: int, lines: Lines
) -> None:
    """Run cycles until a signal, the limit or a new release ends them. A second signal ends the running cycle."""
    if extractor.open_engines is None:
        raise ConfigurationError("there is no resident engine here", next_step="run it without --resident")
    drain, release = threading.Event(), metadata.version(_PACKAGE)

    def current() -> Extractor:
        nonlocal extractor
        found = current_extractor()
        if found.deployment.settings != extractor.deployment.settings:
            extractor = found
        return extractor

    def is_renewed() -> str:
        installed = metadata.version(_PACKAGE)
        return "" if installed == release else f"release {installed} is installed"

    cycles = Cycles(extractor.deployment.clock, drain.wait, drain.is_set, is_renewed, every, limit)
    with drain_first(drain.set), extractor.open_engines() as open_engine:
        reason = run_cycles(current, open_engine, cycles, CycleEvents(lines.show, print_error), topics)
    click.echo(f"ended: {reason}", err=True)
