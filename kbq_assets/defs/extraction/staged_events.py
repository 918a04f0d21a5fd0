"""The events of one extraction about topics and their partitions.

Each changed partition gets a materialization. If more than KBQ_PARTITION_EVENTS partitions changed, each topic gets one
observation with its partitions' numbers instead. Then a partition has its own event only if it has its first data,
stops, resumes, or was chosen by a user.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import dagster as dg

from kbq_assets.core.errors import InvalidName
from kbq_assets.core.extraction.stops import PartitionStop
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.topics.source_list import SourceEntry
from kbq_assets.defs.extraction import metadata
from kbq_assets.defs.extraction.metadata import StagedSlice
from kbq_assets.defs.metadata import Metadata, stop_line
from kbq_assets.defs.translator import AssetTranslator, StagedKey
from kbq_assets.pipelines.extraction.ports import ExtractionReport


@dataclass(frozen=True)
class StagedEvents:
    """The events of one extraction. ``chosen`` are the partitions that a user chose; ``stopped_before`` are those that
    were stopped when the run began; ``most`` is the limit for an event per partition."""

    instance: dg.DagsterInstance
    translator: AssetTranslator
    report: ExtractionReport
    chosen: Mapping[str, StagedKey]
    stopped_before: Collection[TopicPartition]
    now_ms: int
    most: int = 0

    @cached_property
    def _slices(self) -> Mapping[str, StagedSlice]:
        return metadata.staged_slices(self.report)

    @property
    def is_summary(self) -> bool:
        """Whether too many partitions changed to report each of them."""
        return len(self._slices) > self.most

    def partitions(self) -> Iterator[dg.AssetMaterialization]:
        """An event for each changed partition that a summary does not replace, and for each chosen partition that was
        already up to date."""
        known = self._register()
        shown = {k: s for k, s in self._slices.items() if not self.is_summary or self._is_marked(k, s, known)}
        changed = {k: (s.key, metadata.staged_metadata(s, self.now_ms)) for k, s in shown.items()}
        others = (key for key in self.chosen if key not in self._slices)
        idle = {k: (self.chosen[k], entries) for k, entries in metadata.idle_partitions(self.report, others)}
        for partition, (key, entries) in (changed | idle).items():
            yield dg.AssetMaterialization(self._asset(key), partition=partition, metadata=entries)

    def _is_marked(self, key: str, piece: StagedSlice, known: Collection[str]) -> bool:
        whole = TopicPartition(piece.key.topic_partition.topic, -1)
        was_stopped = any(place in self.stopped_before for place in (whole, piece.key.topic_partition))
        return key not in known or key in self.chosen or was_stopped

    def _register(self) -> set[str]:
        """Register new keys. Returns the keys that were registered before."""
        by_topic: dict[str, set[str]] = defaultdict(set)
        for key, piece in self._slices.items():
            by_topic[piece.key.topic_partition.topic].add(key)
        known: set[str] = set()
        for topic, keys in by_topic.items():
            name = self.translator.staged_partitions(topic).name or ""
            before = self.instance.get_dynamic_partitions(name)
            known.update(before)
            if new := sorted(keys.difference(before)):
                self.instance.add_dynamic_partitions(name, new)
        return known

    def stops(self) -> Iterator[dg.AssetObservation]:
        """An observation for each known partition that has stopped since the last report."""
        new = [stop for stop in self.report.stops if stop.topic_partition not in self.stopped_before]
        for topic, stops in _by_topic(new).items():
            known = self.instance.get_dynamic_partitions(self.translator.staged_partitions(topic).name or "")
            keys = {key: _parse(key) for key in known}
            for stop in stops:
                entries: Metadata = {"state": "stopped", "reason": str(stop.reason), "why": stop_line(stop)}
                for text, key in keys.items():
                    if key and key.topic_partition == stop.topic_partition:
                        yield dg.AssetObservation(self._asset(key), partition=text, metadata=entries)

    def topics(self, sources: Iterable[SourceEntry]) -> Iterator[dg.AssetObservation]:
        """One observation per topic with its partitions' numbers if this is a summary, otherwise one per line of the
        source list. Also the last error of each topic that could not be read."""
        reports = metadata.topic_reports(self.report)
        if self.is_summary:
            numbers = metadata.numbers_of_partitions(self._slices.values())
            for topic, report in reports.items():
                entries = metadata.topic_metadata(report, self.now_ms)
                entries["changed"] = dg.MetadataValue.json(numbers.get(topic, {}))
                yield dg.AssetObservation(self.translator.staged_key(topic), metadata=entries)
        else:
            assets = self.translator.topic_assets(sources, reports)
            for key, together in metadata.by_asset(reports, assets):
                yield dg.AssetObservation(key, metadata=metadata.topic_metadata(together, self.now_ms))
        failures: dict[str, list[str]] = defaultdict(list)
        for tp, message in sorted(self.report.failures.items()):
            failures[tp.topic].append(f"{tp}: {message}")
        for topic, lines in failures.items():
            failed: Metadata = {"failed_partitions": len(lines), "last_error": lines[-1]}
            yield dg.AssetObservation(self.translator.staged_key(topic), metadata=failed)

    def _asset(self, key: StagedKey) -> dg.AssetKey:
        return self.translator.staged_key(key.topic_partition.topic)


def _by_topic(stops: Iterable[PartitionStop]) -> dict[str, list[PartitionStop]]:
    found: dict[str, list[PartitionStop]] = defaultdict(list)
    for stop in stops:
        found[stop.topic_partition.topic].append(stop)
    return found


def _parse(key: str) -> StagedKey | None:
    """A registered key; None if it names no partition."""
    try:
        return StagedKey.parse(key)
    except InvalidName:
        return None
