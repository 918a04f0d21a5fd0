"""Extraction on one deployment: each method is one bounded run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, TypeAlias

from kbq_assets.core.config.roles import Role
from kbq_assets.core.config.settings import Settings
from kbq_assets.core.errors import ConfigurationError, Defect, KbqError
from kbq_assets.core.extraction.planning import ExtractionPlan
from kbq_assets.core.extraction.throttle import ReadLimits
from kbq_assets.core.extraction.units import WindowLimits
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.pipelines.extraction import extract as extraction
from kbq_assets.pipelines.extraction.end_marks import mark_idle
from kbq_assets.pipelines.extraction.ports import PartitionReport
from kbq_assets.pipelines.observation import pending
from kbq_assets.pipelines.observation.run_log import RunLog
from kbq_assets.ports.engine import ExtractionEngine, OnDemandEngine
from kbq_assets.ports.kafka import AdvisoryGroups

_LOGGER: Final = logging.getLogger("kbq.extract")
#: Value of the option if a topic's positions are committed to no group.
NONE: Final = "none"
#: Time limit of `mark_ends`. It keeps a sensor's tick, with the poll before it, under 10 seconds.
MARK_SECONDS: Final = 4.0
#: Commits published at once, each with up to 16 done files. A bucket answers in tens of milliseconds. A cycle of
#: 11,200 partitions has 320 commits and 22,000 done files, and takes 30 s (`make bench-publish`).
PUBLISHING_THREADS: Final = 8

#: An engine for a run with these settings.
OpenEngine: TypeAlias = Callable[[Settings], ExtractionEngine]


@dataclass(frozen=True)
class Extractor:
    """Plans and runs extractions. ``open_engine`` opens the engine of one run; ``open_engines`` opens engines for a
    series of runs."""

    deployment: Deployment
    open_engine: Callable[[], AbstractContextManager[ExtractionEngine]]
    open_groups: Callable[[], AdvisoryGroups] | None = None
    open_engines: Callable[[], AbstractContextManager[OpenEngine]] | None = None

    @cached_property
    def limits(self) -> extraction.ExtractionLimits:
        run, window = self.deployment.settings.run, self.deployment.settings.run.window
        return extraction.ExtractionLimits(
            seconds=run.run_seconds,
            total=ReadLimits(run.run_records, run.run_bytes),
            window=WindowLimits(window.bytes, window.records, window.seconds, window.file_bytes),
            done_files=run.done_files == "on",
        )

    def chosen(self, topics: Iterable[str]) -> frozenset[str] | None:
        """The topics that a user named; None for no names. Raises ConfigurationError if one is not extracted."""
        wanted = frozenset(topics)
        if not wanted:
            return None
        sources = self.deployment.sources
        for topic, mistake in sources.unknown(wanted).items():
            raise ConfigurationError(f"{topic} waits: {mistake.message}", next_step=mistake.next_step)
        if unknown := wanted - sources.select(self.deployment.offsets.topics()).keys():
            raise ConfigurationError(
                f"not extracted: {', '.join(sorted(unknown))}",
                next_step=f"a topic must be on the broker and in {sources.settings.catalog.source_topics}",
            )
        return wanted

    def plan(self, only: frozenset[str] | None = None) -> ExtractionPlan:
        """What `extract` would do now."""
        deployment = self.deployment
        return extraction.plan(
            deployment.store,
            deployment.offsets,
            deployment.sources.read(),
            now_ms=deployment.clock.now_ms(),
            only=only,
            limits=self.limits,
            open_backup=deployment.backup_area,
        )

    def extract(
        self,
        engine: ExtractionEngine | None = None,
        *,
        only: frozenset[str] | None = None,
        on_progress: Callable[[extraction.Progress], None] = lambda progress: None,
        is_draining: Callable[[], bool] = lambda: False,
    ) -> extraction.ExtractionReport:
        """Bring topics up to date. Without ``engine``, one opens if there is something to read. Once ``is_draining``
        returns True, no task starts, and running tasks have ``drain_seconds`` to end."""
        if engine is None:
            with ExitStack() as stack:
                lazy = OnDemandEngine(lambda: stack.enter_context(self.open_engine()))
                return self.extract(lazy, only=only, on_progress=on_progress, is_draining=is_draining)
        deployment = self.deployment
        deployment.check_staging(Role.EXTRACT)
        deployment.register_warehouses()
        ports = extraction.ExtractionPorts(
            deployment.store,
            deployment.offsets,
            engine,
            deployment.clock,
            publishing_threads=PUBLISHING_THREADS,
            open_backup=deployment.backup_area,
            is_draining=is_draining,
        )
        with closing(RunLog(deployment.store, deployment.clock)) as log:
            watching = log.watching(on_progress)
            sources = deployment.sources.read()
            try:
                report = extraction.extract(
                    ports, sources, only=only, limits=self.limits, on_progress=watching
                )
            except Exception as error:
                if only is None:
                    log.fail_extraction(Defect.of(error))
                raise
            report = self._advised(report)
            log.end_extraction(report)
        return report

    def _advised(self, report: extraction.ExtractionReport) -> extraction.ExtractionReport:
        """Commit the published positions to the topics' advisory groups."""
        sources, default = self.deployment.sources, self.deployment.settings.kafka.advisory_group
        try:
            topics = sources.select({each.topic_partition.topic for each in report.partitions})
            positions = groups_of(report.partitions, topics, default)
            if not positions or self.open_groups is None:
                return report
            failures = commit_groups(self.open_groups(), positions)
        except KbqError as error:  # the source list was edited meanwhile, or the client does not open
            failures = {default: str(error)}
        return replace(report, advisory_failures=failures)

    def poll(self, start: str = "") -> pending.Poll[ExtractionPlan]:
        """Whether an extraction would do anything. If very much is staged, it is polled page by page."""
        deployment = self.deployment
        topics = deployment.sources.select(deployment.offsets.topics())
        return pending.poll_records(
            deployment.store, topics, self.plan, deployment.clock.monotonic, start=start
        )

    def mark_ends(self, plans: Iterable[ExtractionPlan], asked_ms: int) -> None:
        """Mark the partitions that are read up to the log ends that the broker reported at ``asked_ms``.

        So hours become complete even if nothing is produced. Reads no record. Stops after MARK_SECONDS; the next call
        continues.
        """
        ends = {tp: end for planned in plans for tp, end in planned.log_ends.items()}
        mark_idle(self.deployment.store, self.deployment.clock, ends, asked_ms, seconds=MARK_SECONDS)


def groups_of(
    published: tuple[PartitionReport, ...], topics: Mapping[str, TopicSettings], default: str
) -> dict[str, dict[TopicPartition, int]]:
    """Positions to commit, by consumer group. ``default`` is the group of topics without the option."""
    found: dict[str, dict[TopicPartition, int]] = {}
    for report in published:
        tp = report.topic_partition
        group = (topics[tp.topic].extraction.advisory_group if tp.topic in topics else "") or default
        if group and group != NONE:
            found.setdefault(group, {})[tp] = report.until
    return found


def commit_groups(
    groups: AdvisoryGroups, positions: Mapping[str, Mapping[TopicPartition, int]]
) -> dict[str, str]:
    """Commit positions to groups; return the errors by group. Raises nothing: advisory groups never fail a run."""
    failures: dict[str, str] = {}
    for group, offsets in sorted(positions.items()):
        try:
            groups.commit(group, offsets)
        except KbqError as error:
            failures[group] = str(error)
            _LOGGER.warning("%s; next: %s", error.message, error.next_step)
    return failures
