"""The extraction step. It reports staged files, topics and their checks as Dagster events."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

import dagster as dg

from kbq_assets.core.config.roles import Role
from kbq_assets.core.observation.check_names import BACKUPS_RUN, PARTITIONS_RUN
from kbq_assets.core.plurals import counted
from kbq_assets.defs.events import in_batches
from kbq_assets.defs.extraction import metadata
from kbq_assets.defs.extraction.staged_events import StagedEvents
from kbq_assets.defs.observation.page_checks import stop_evaluations, stopped_partitions
from kbq_assets.defs.pages import Pages
from kbq_assets.defs.runs import StepContext, StepEvents, logged, or_else, parsed, state_checks
from kbq_assets.defs.translator import AssetTranslator, StagedKey
from kbq_assets.pipelines.backup.report import BackupReport
from kbq_assets.pipelines.extraction.extractor import Extractor
from kbq_assets.pipelines.extraction.ports import ExtractionReport, Progress
from kbq_assets.pipelines.observation.observer import Observer
from kbq_assets.ports.engine import ExtractionEngine, OnDemandEngine

#: Seconds between progress lines in a run's log. Each line is a row in Dagster's database.
PROGRESS_SECONDS = 5.0
#: Seconds until a run of many extractions notices that another run waits for the slot.
YIELD_SECONDS = 5.0


@dataclass
class ProgressLog:
    """Logs a running extraction's progress, at most once per ``every_seconds``."""

    write: Callable[[str], object]
    monotonic: Callable[[], float] = time.monotonic
    every_seconds: float = PROGRESS_SECONDS
    _next: float = field(default=0.0, init=False)

    def __call__(self, progress: Progress) -> None:
        now = self.monotonic()
        if now < self._next or not progress.positions:
            return
        self._next = now + self.every_seconds
        share = progress.published / progress.positions
        self.write(
            f"{progress.published:,} of {progress.positions:,} positions ({share:.0%}), "
            f"{counted(progress.records, 'record')}{progress.message and f'; {progress.message}'}"
        )


@dataclass(frozen=True)
class ExtractionStep:
    """Brings topics up to date, and yields the events."""

    extractor: Extractor
    observer: Observer
    pages: Pages

    @property
    def translator(self) -> AssetTranslator:
        return self.pages.translator

    def run(
        self, context: StepContext, engine: ExtractionEngine, chosen: Collection[str] | None = None
    ) -> StepEvents:
        """Bring topics up to date. ``chosen`` are partition keys of topics' staged files; None means everything.

        Raises dagster.Failure if nothing could be read because of transient errors, or if no chosen key is a partition.
        """
        keys = None if chosen is None else parsed(context, chosen, StagedKey.parse)
        yield from self._reported(context, self._extracted(context, engine, keys), keys)

    def keep_running(
        self, context: StepContext, engine: ExtractionEngine, seconds: float, is_wanted: Callable[[], bool]
    ) -> StepEvents:
        """Bring topics up to date repeatedly on one engine, for ``seconds`` or until another run waits for the
        extraction's slot (``is_wanted``). After the first, an extraction that changes nothing reports nothing.

        Raises dagster.Failure if nothing could be read because of transient errors.
        """
        clock, every = self.extractor.deployment.clock, self.extractor.deployment.settings.run.extract_seconds
        until, reported = clock.monotonic() + seconds, None
        while True:
            next_start = clock.monotonic() + every
            report = self._extracted(context, engine, None)
            if reported is None or report.partitions or report.failures or report.stops != reported.stops:
                yield from self._reported(context, report, None)
                reported = report
            next_start = clock.monotonic() if report.is_behind else next_start
            if next_start >= until:
                return
            while (left := next_start - clock.monotonic()) > 0:
                if is_wanted():
                    return
                clock.sleep(min(left, YIELD_SECONDS))
            if is_wanted():
                return
            if isinstance(engine, OnDemandEngine):
                engine.renew()

    def _extracted(
        self, context: StepContext, engine: ExtractionEngine, keys: Mapping[str, StagedKey] | None
    ) -> ExtractionReport:
        topics = None if keys is None else frozenset(key.topic_partition.topic for key in keys.values())
        report = self.extractor.extract(engine, only=topics, on_progress=ProgressLog(context.log.info))
        for tp, message in report.failures.items():
            goes_on = "" if tp in report.refused else "; the next run continues there"
            context.log.warning(f"{tp}: {message}{goes_on}")
        return report

    def _reported(
        self, context: StepContext, report: ExtractionReport, keys: Mapping[str, StagedKey] | None
    ) -> StepEvents:
        yield from self._extraction_events(context, report, keys)
        if report.failures and not report.partitions:
            raise dg.Failure(
                f"nothing was read: {counted(len(report.failures), 'partition')} failed; {report.cause}",
                allow_retries=False,
            )

    def _extraction_events(
        self, context: StepContext, report: ExtractionReport, chosen: Mapping[str, StagedKey] | None
    ) -> StepEvents:
        deployment, pages = self.extractor.deployment, self.pages
        now_ms, settings = deployment.clock.now_ms(), deployment.settings
        events = StagedEvents(
            context.instance,
            pages.translator,
            report,
            chosen or {},
            stopped_partitions(context.instance, pages),
            now_ms,
            settings.dagster.partition_events,
        )
        yield from in_batches(context, events.partitions())
        yield from events.stops()
        yield from events.topics(or_else(context, deployment.sources.read, ()))
        whole = metadata.extraction_metadata(report, now_ms)
        yield dg.AssetObservation(pages.translator.staged_files, metadata=whole)
        if chosen is None:
            read = {partition.topic_partition.topic for partition in report.partitions}
            yield from logged(context, stop_evaluations(context.instance, pages, read, report.stops))
            yield from logged(context, self._of_backups(context.instance, report.backup))
            yield from state_checks(context, self.observer, pages, Role.EXTRACT)
        else:  # the run did not look for stops of other topics
            yield from state_checks(context, self.observer, pages, Role.EXTRACT, PARTITIONS_RUN, BACKUPS_RUN)
        context.log.info(metadata.extraction_headline(report))

    def _of_backups(
        self, instance: dg.DagsterInstance, report: BackupReport
    ) -> Iterator[dg.AssetCheckEvaluation]:
        """The check evaluations of the run's backups; empty without a backup."""
        if report.windows or report.stops:
            topics = {tp.topic for tp in report.windows}
            yield from stop_evaluations(instance, self.pages, topics, report.stops, BACKUPS_RUN)
