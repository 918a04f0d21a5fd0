"""A resident extraction: repeated cycles on one Spark application.

Starting executors takes longer than the work of a short cycle. Nothing depends on how long the application lives: a
cycle is an extraction like any other (PROTOCOL, Extraction), so a kill loses at most the work of one cycle. Each cycle
reads settings, catalog, commits and schemas again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

from kbq_assets.core.errors import ConfigurationError, EngineEnded, KbqError, TransientError
from kbq_assets.core.plurals import counted
from kbq_assets.pipelines.extraction.extractor import Extractor, OpenEngine
from kbq_assets.pipelines.extraction.ports import ExtractionReport, Progress
from kbq_assets.ports.clock import Clock
from kbq_assets.ports.engine import OnDemandEngine


@dataclass(frozen=True)
class Cycles:
    """When cycles start and when they end. ``wait`` pauses for the given seconds, or until the loop is asked to end."""

    clock: Clock
    wait: Callable[[float], object]
    is_draining: Callable[[], bool]
    #: why another process must take over; "" if this one may continue
    is_renewed: Callable[[], str]
    every_seconds: float
    #: number of cycles; 0 is no limit
    limit: int = 0


@dataclass(frozen=True)
class CycleEvents:
    """Callbacks for reports, errors and progress of cycles."""

    on_report: Callable[[ExtractionReport], None]
    on_error: Callable[[KbqError], None]
    on_progress: Callable[[Progress], None] = lambda progress: None


def run_cycles(
    current: Callable[[], Extractor],
    open_engine: OpenEngine,
    cycles: Cycles,
    events: CycleEvents,
    topics: Collection[str] = (),
) -> str:
    """Extract until the loop is asked to end, its limit is reached, or another process must take over. Returns the
    reason.

    ``current`` returns an extractor with the settings in force. An error ends its cycle. It ends the loop only if it
    is permanent and in the first cycle. If one of the ``topics`` is not extracted anymore, a cycle says so and extracts
    the others. Raises EngineEnded if the application is gone.
    """
    spark, number = current().deployment.settings.spark, 0
    while True:
        number += 1
        started, is_behind = cycles.clock.monotonic(), False
        try:
            extractor = current()
            settings = extractor.deployment.settings
            if settings.spark != spark:
                return "KBQ_SPARK_MASTER or an option of Spark has changed"
            report = extractor.extract(
                OnDemandEngine(partial(open_engine, settings)),
                only=_chosen(extractor, topics, events if number > 1 else None),
                on_progress=events.on_progress,
                is_draining=cycles.is_draining,
            )
            is_behind = report.is_behind
            events.on_report(report)
        except EngineEnded:
            raise
        except KbqError as error:
            if number == 1 and not isinstance(error, TransientError):
                raise
            events.on_error(error)
        if number == cycles.limit:
            return f"{counted(number, 'cycle is', 'cycles are')} done"
        if reason := cycles.is_renewed():
            return reason
        if not is_behind:
            cycles.wait(max(0.0, cycles.every_seconds - (cycles.clock.monotonic() - started)))
        if cycles.is_draining():
            return "it was asked to end"


def _chosen(
    extractor: Extractor, topics: Collection[str], events: CycleEvents | None
) -> frozenset[str] | None:
    """The topics of a cycle; None for all. Raises ConfigurationError for an unknown one, or tells it to ``events``."""
    try:
        return extractor.chosen(topics)
    except ConfigurationError as error:
        if events is None:
            raise
        events.on_error(error)
    return frozenset(topics)
