"""The step that extracts: staged files, topics and their checks as Dagster's events."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import dagster as dg

from kbq_assets.core.config.google_permissions import Role
from kbq_assets.core.errors import InvalidName
from kbq_assets.core.observation.check_names import PARTITIONS_RUN
from kbq_assets.defs.events import in_batches
from kbq_assets.defs.extraction import metadata
from kbq_assets.defs.extraction.metadata import StagedSlice
from kbq_assets.defs.observation.page_checks import stop_evaluations
from kbq_assets.defs.pages import Pages
from kbq_assets.defs.runs import StepContext, StepEvents, logged, or_else, parsed, register, state_checks
from kbq_assets.defs.translator import AssetTranslator, StagedKey
from kbq_assets.pipelines.extraction.extractor import Extractor
from kbq_assets.pipelines.extraction.ports import ExtractionReport, Progress
from kbq_assets.pipelines.observation.observer import Observer
from kbq_assets.ports.engine import ExtractionEngine

#: Seconds between progress lines in a run's log: each is a row in Dagster's database.
PROGRESS_SECONDS = 5.0


@dataclass
class ProgressLog:
    """Logs a running extraction's progress, at most once per ``every_seconds``."""

    write: Callable[[str], object]
    monotonic: Callable[[], float] = time.monotonic
    every_seconds: float = PROGRESS_SECONDS
    _next: float = field(default=0.0, init=False)

    def __call__(self, progress: Progress) -> None:
        """Log the run's progress."""
        now = self.monotonic()
        if now < self._next or not progress.positions:
            return
        self._next = now + self.every_seconds
        share = progress.published / progress.positions
        self.write(
            f"{progress.published:,} of {progress.positions:,} positions ({share:.0%}), "
            f"{progress.records:,} records{progress.message and f'; {progress.message}'}"
        )


@dataclass(frozen=True)
class ExtractionStep:
    """Brings topics up to date."""

    extractor: Extractor
    observer: Observer
    pages: Pages

    @property
    def translator(self) -> AssetTranslator:
        """Names of the assets."""
        return self.pages.translator

    def run(
        self, context: StepContext, engine: ExtractionEngine, chosen: Collection[str] | None = None
    ) -> StepEvents:
        """Bring topics up to date. ``chosen`` are partition keys of topics' staged files; None means everything.

        Raises dagster.Failure if nothing could be read because of transient errors, or no chosen key is a partition.
        """
        keys = None if chosen is None else parsed(context, chosen, StagedKey.parse)
        topics = None if keys is None else frozenset(key.topic_partition.topic for key in keys.values())
        report = self.extractor.extract(engine, only=topics, on_progress=ProgressLog(context.log.info))
        for tp, message in report.failures.items():
            context.log.warning(f"{tp}: {message}; the next run continues there")
        yield from self._extraction_events(context, report, keys)
        if report.failures and not report.partitions:
            raise dg.Failure(
                f"nothing was read: {len(report.failures)} partitions failed", allow_retries=False
            )

    def _extraction_events(
        self, context: StepContext, report: ExtractionReport, chosen: Mapping[str, StagedKey] | None
    ) -> StepEvents:
        key, now_ms = self.translator.staged_files, self.extractor.deployment.clock.now_ms()
        slices = metadata.staged_slices(report, coarse=self._has_coarse_keys)
        self._register_staged(context, slices.values())
        if chosen:  # a person may choose keys from before the setting was changed
            others = metadata.staged_slices(report, coarse=not self._has_coarse_keys)
            slices |= {k: others[k] for k in chosen if k in others}
        yield from in_batches(context, self._partition_events(report, slices, chosen or {}, now_ms))
        yield from self._topic_events(context, report, now_ms)
        yield dg.AssetObservation(key, metadata=metadata.extraction_metadata(report, now_ms))
        if chosen is None:
            read = {partition.topic_partition.topic for partition in report.partitions}
            yield from logged(context, stop_evaluations(context.instance, self.pages, read, report.stops))
            yield from state_checks(context, self.observer, self.pages, Role.EXTRACT)
        else:  # the run did not check other topics for stops
            yield from state_checks(context, self.observer, self.pages, Role.EXTRACT, PARTITIONS_RUN)
        context.log.info(metadata.extraction_headline(report))

    def _partition_events(
        self,
        report: ExtractionReport,
        slices: Mapping[str, StagedSlice],
        chosen: Mapping[str, StagedKey],
        now_ms: int,
    ) -> Iterator[dg.AssetMaterialization]:
        """One event for each changed partition, and for each chosen one that was up to date."""
        changed = {k: (s.key, metadata.staged_metadata(s, now_ms)) for k, s in slices.items()}
        others = metadata.idle_partitions(report, (k for k in chosen if k not in changed))
        idle = {k: (chosen[k], entries) for k, entries in others}
        for partition, (key, entries) in (changed | idle).items():
            asset = self.translator.staged_key(key.topic_partition.topic)
            yield dg.AssetMaterialization(asset, partition=partition, metadata=entries)

    @property
    def _has_coarse_keys(self) -> bool:
        return self.extractor.deployment.settings.run.partition_keys == "topic_table"

    def _register_staged(self, context: StepContext, slices: Iterable[StagedSlice]) -> None:
        """Register new keys, and forget keys of the other form: KBQ_PARTITION_KEYS was changed."""
        by_topic: dict[str, set[str]] = defaultdict(set)
        for piece in slices:
            by_topic[piece.key.topic_partition.topic].add(piece.key.format())
        for topic, keys in by_topic.items():
            definition, coarse = self.translator.staged_partitions(topic), self._has_coarse_keys
            known = context.instance.get_dynamic_partitions(definition.name or "")
            register(context, definition, keys.difference(known))
            for key in known:
                if _is_of_topic(key) not in (None, coarse):
                    context.instance.delete_dynamic_partition(definition.name or "", key)

    def _topic_events(
        self, context: StepContext, report: ExtractionReport, now_ms: int
    ) -> Iterator[dg.AssetObservation]:
        """An observation per line of the source list with topics that the run read or left behind."""
        reports = metadata.topic_reports(report)
        assets = self.translator.topic_assets(
            or_else(context, self.extractor.deployment.sources.read, ()), reports
        )
        for key, topics in metadata.by_asset(reports, assets):
            yield dg.AssetObservation(key, metadata=metadata.topic_metadata(topics, now_ms))


def _is_of_topic(key: str) -> bool | None:
    """Whether a known key stands for a whole topic; None for a key that somebody made up."""
    try:
        return StagedKey.parse(key).is_of_topic
    except InvalidName:
        return None
