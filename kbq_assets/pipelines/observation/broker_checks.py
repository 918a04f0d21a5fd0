"""The checks that need the broker, from one read of it: stops, lags, ages, and abandoned transactions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kbq_assets.core.extraction.restarts import retry_in_words
from kbq_assets.core.extraction.stops import PartitionStop
from kbq_assets.core.observation import checks
from kbq_assets.core.observation.check_names import (
    BACKUPS_RUN,
    PARTITIONS_RUN,
)
from kbq_assets.core.observation.checks import CheckResult, TopicLag
from kbq_assets.core.protocol.commits import PartitionCommit, StagedFile
from kbq_assets.core.protocol.names import TableReference, commit_path_of
from kbq_assets.core.protocol.offsets import BrokerOffsets, TopicPartition
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.pipelines.backup.status import BackupsStatus, read_backups
from kbq_assets.pipelines.loading.view import LoadView
from kbq_assets.pipelines.observation.run_failures import interruptions
from kbq_assets.pipelines.protocol.snapshot import read_snapshot

if TYPE_CHECKING:
    from kbq_assets.pipelines.observation.checks import CheckPorts


@dataclass(frozen=True)
class BrokerView:
    """The broker's offsets, with the commits of the same partitions."""

    selected: Mapping[str, TopicSettings]
    positions: Mapping[TopicPartition, int]
    lags: Mapping[TopicPartition, int]
    stops: tuple[PartitionStop, ...]
    later: Mapping[int, Mapping[TopicPartition, int]]
    now_ms: int
    others: tuple[str, ...]
    backups: BackupsStatus
    #: partitions with a transaction that has been open for long
    held: frozenset[TopicPartition]

    @classmethod
    def read(cls, ports: CheckPorts, view: LoadView) -> BrokerView:
        """Query the broker. Raises Unavailable."""
        reader = ports.offsets()
        stored = (view.topics, view.commit_objects)
        seen = read_snapshot(view.cache.store, reader, ports.sources, known=stored)
        selected = seen.settings
        offsets = {
            tp: found for tp, found in seen.offsets.items() if commit_path_of(tp) not in view.unavailable
        }
        known = {c.topic_partition(p): s for c in view.commits for p, s in c.partitions.items()}
        lags = {tp: checks.lag_of(known.get(tp), found, selected[tp.topic]) for tp, found in offsets.items()}
        positions = {tp: _position(known.get(tp), found) for tp, found in offsets.items()}
        now_ms = ports.now_ms()
        later = {
            seconds: reader.offsets_for_time(behind, now_ms - seconds * 1000)
            for seconds, behind in _by_threshold(lags, selected).items()
        }
        backups = read_backups(ports.sources, reader, ports.open_backup)
        interrupted = interruptions(view.cache, (tp for tp, lag in lags.items() if lag), now_ms)
        stops = (*seen.plan().stops, *interrupted)
        held = {
            tp
            for seconds, stable in _ends(offsets, selected).items()
            for tp in reader.held_back(stable, now_ms - seconds * 1000)
        }
        return cls(selected, positions, lags, stops, later, now_ms, seen.others, backups, frozenset(held))

    def results(self, waiting: Mapping[TableReference, list[StagedFile]]) -> Iterator[CheckResult]:
        oldest, lags = _oldest(waiting), self._topic_lags()
        yield from stop_results(self.selected, self.stops)
        yield from self._backup_results()
        for topic, settings in self.selected.items():
            yield checks.lag_result(topic, lags[topic], settings)
            yield checks.fresh_result(topic, oldest.get(topic, {}), lags[topic], settings, self.now_ms)

    def _backup_results(self) -> Iterator[CheckResult]:
        topics = {*self.selected, *self.backups.topics}
        for result in stop_results(topics, self.backups.stops, BACKUPS_RUN):
            lag = self.backups.late.get(result.subject, 0)
            if result.passed and lag:
                finding = f"its backup is {lag:,} positions behind, more than max_lag_records"
                yield checks.failed(
                    BACKUPS_RUN, result.subject, (finding,), ("kbq backup status", "kbq extract")
                )
                continue
            has_one = result.subject in self.backups.topics or not result.passed
            yield result if has_one else replace(result, message="it has no backup")

    def _topic_lags(self) -> Mapping[str, TopicLag]:
        by_topic: dict[str, list[TopicPartition]] = {topic: [] for topic in self.selected}
        for tp, lag in self.lags.items():
            if lag:
                by_topic[tp.topic].append(tp)
        return {
            topic: TopicLag(
                sum(self.lags[tp] for tp in behind),
                len(behind),
                self._older(behind, checks.lag_seconds(self.selected[topic])),
                self._older(behind, self.selected[topic].checks.max_age_seconds),
                tuple(sorted(tp for tp in self.held if tp.topic == topic)),
            )
            for topic, behind in by_topic.items()
        }

    def _older(self, partitions: Iterable[TopicPartition], seconds: int) -> tuple[TopicPartition, ...]:
        """Partitions whose first unread record is older than ``seconds``."""
        later = self.later.get(seconds, {})
        return tuple(tp for tp in partitions if later.get(tp, 0) > self.positions[tp])


def _position(committed: PartitionCommit | None, broker: BrokerOffsets) -> int:
    return broker.earliest if committed is None else max(committed.next, broker.earliest)


def _by_threshold(
    lags: Mapping[TopicPartition, int], selected: Mapping[str, TopicSettings]
) -> dict[int, list[TopicPartition]]:
    """Partitions with lag, by the ages that their topics allow. There are mostly only one or two ages."""
    found: dict[int, list[TopicPartition]] = defaultdict(list)
    for tp, lag in lags.items():
        settings = selected[tp.topic]
        for seconds in {checks.lag_seconds(settings), settings.checks.max_age_seconds} - {0}:
            if lag:
                found[seconds].append(tp)
    return found


def _ends(
    offsets: Mapping[TopicPartition, BrokerOffsets], selected: Mapping[str, TopicSettings]
) -> dict[int, dict[TopicPartition, int]]:
    """The last stable offsets, by the ages that their topics allow for unread records."""
    found: dict[int, dict[TopicPartition, int]] = defaultdict(dict)
    for tp, known in offsets.items():
        if seconds := checks.lag_seconds(selected[tp.topic]):
            found[seconds][tp] = known.latest
    return found


def stop_results(
    topics: Iterable[str], stops: Iterable[PartitionStop], check: str = PARTITIONS_RUN
) -> list[CheckResult]:
    """A result per topic: whether all of it is extracted, or backed up. Topics that only ``stops`` have are added."""
    by_topic: dict[str, list[PartitionStop]] = {topic: [] for topic in topics}
    for stop in stops:
        by_topic.setdefault(stop.topic_partition.topic, []).append(stop)
    return [_runs(check, topic, found) for topic, found in sorted(by_topic.items())]


def _runs(check: str, topic: str, stops: list[PartitionStop]) -> CheckResult:
    if not stops:
        return CheckResult(check, topic, "no partition waits for an operator")
    findings = [f"{_place(stop)}: {stop.reason}: {stop.text}{_retry(stop)}" for stop in stops]
    commands = dict.fromkeys(command for stop in stops for command in stop.commands)
    found = checks.failed(check, topic, findings, commands, partitions=len(stops))
    places = tuple(stop.topic_partition.partition for stop in stops)
    causes = tuple(f"{stop.topic_partition.partition} {stop.reason}" for stop in stops)
    return replace(found, partitions=places, causes=causes)


def _place(stop: PartitionStop) -> str:
    return "all of it" if stop.topic_partition.partition < 0 else str(stop.topic_partition)


def _retry(stop: PartitionStop) -> str:
    return f" ({retry_in_words(stop.tries, stop.next_try_ms)})" if stop.next_try_ms else ""


def _oldest(
    waiting: Mapping[TableReference, list[StagedFile]],
) -> dict[str, dict[TableReference, int]]:
    """By topic and table, the Kafka timestamp of the oldest record that waits to be loaded."""
    found: dict[str, dict[TableReference, int]] = defaultdict(dict)
    for table, files in waiting.items():
        for file in files:
            if file.oldest_ms > 0:  # records may have no timestamp
                times = found[file.name.topic_partition.topic]
                times[table] = min(times.get(table, file.oldest_ms), file.oldest_ms)
    return found
