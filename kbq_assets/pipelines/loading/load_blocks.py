"""Load blocks: topics whose files a load does not load because a check fails, and the reasons (PROTOCOL L9).

Blocks are computed from the load's own view, without a call to broker or warehouse, and never stored. So a check that
could not run blocks nothing, and a block ends once its cause is gone.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, TypeAlias

from kbq_assets.core.observation import checks
from kbq_assets.core.observation.check_names import ERRORS_FEW, PARTITIONS_RUN, ROWS_MATCH
from kbq_assets.core.observation.checks import CheckResult, LoadBlock, Loaded
from kbq_assets.core.protocol.commits import Commit
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.topics.source_list import EntryMistake
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.pipelines.loading.view import FindBlocks, LoadView
from kbq_assets.pipelines.protocol.state import Versioned

TopicOptions: TypeAlias = Callable[[Collection[str]], Mapping[str, TopicSettings]]
#: Returns the topics with unknown options, and the mistake that makes each unknown.
UnknownOptions: TypeAlias = Callable[[Collection[str]], Mapping[str, EntryMistake]]


_DEFAULTS: Final = TopicSettings()


def default_options(topics: Collection[str]) -> Mapping[str, TopicSettings]:
    return dict.fromkeys(topics, _DEFAULTS)


class LoadBlocks:
    """Finds the blocks of a view. Findings are cached by generation, because few objects change between views.

    ``options`` are read for each view, so an operator can unblock a topic in the source list. A topic with ``unknown``
    options is blocked too: otherwise its files would be loaded under the wrong options.
    """

    def __init__(
        self, options: TopicOptions = default_options, unknown: UnknownOptions = lambda topics: {}
    ) -> None:
        self._options = options
        self._unknown = unknown
        self._findings: dict[str, tuple[int, list[str]]] = {}
        self._marks: dict[TableReference, tuple[int, list[Loaded]]] = {}
        self._lock = threading.Lock()

    def __call__(self, view: LoadView) -> Mapping[str, LoadBlock]:
        by_topic = commits_by_topic(view)
        options = self.options(by_topic)
        contiguous = self.contiguous(view)
        blocks = {}
        for topic, commits in by_topic.items():
            found = [contiguous[topic], *_asked_for(view, topic, commits, options[topic])]
            if block := checks.block_of(found, options[topic], topic):
                blocks[topic] = block
        return {**blocks, **_of_unknown(self._unknown(view.topics.topics))}

    def since(self, unknown: UnknownOptions) -> FindBlocks:
        """Finds the blocks of a load that read its tables' options before its views. Topics that were ``unknown`` at
        that time wait for the next load, because those options are not theirs."""
        return lambda view: {**self(view), **_of_unknown(unknown(view.topics.topics))}

    def options(self, topics: Collection[str]) -> Mapping[str, TopicSettings]:
        """The options of topics. A topic that the source list no longer selects has the defaults."""
        return {**default_options(topics), **self._options(topics)}

    def contiguous(self, view: LoadView) -> dict[str, CheckResult]:
        """The result of the check that each topic's offsets are contiguous."""
        with self._lock:
            marks = [mark for table in view.registry.tables for mark in self._marks_of(view, table)]
            found = {topic: self._findings_of(view, topic) for topic in commits_by_topic(view)}
        beyond = checks.beyond_commit(view.commits, marks)
        return {t: checks.contiguous_result(t, [*own, *beyond.get(t, ())]) for t, own in found.items()}

    def _findings_of(self, view: LoadView, topic: str) -> list[str]:
        findings = []
        for path in view.commit_paths(topic):
            commit = view.commit_objects[path]
            if not isinstance(commit, Versioned):
                continue
            generation, found = self._findings.get(path, (None, []))
            if generation != commit.generation:
                found = checks.commit_findings(commit.value)
                self._findings[path] = commit.generation, found
            findings.extend(found)
        return findings

    def _marks_of(self, view: LoadView, table: TableReference) -> list[Loaded]:
        state = view.states.get(table)
        if not isinstance(state, Versioned):
            return []
        generation, marks = self._marks.get(table, (None, []))
        if generation != state.generation:
            marks = checks.loaded_marks(table, state.value)
            self._marks[table] = state.generation, marks
        return marks


def _of_unknown(unknown: Mapping[str, EntryMistake]) -> dict[str, LoadBlock]:
    return {
        topic: LoadBlock(
            topic, PARTITIONS_RUN, f"its options are unknown: {mistake.message}", (mistake.next_step,)
        )
        for topic, mistake in unknown.items()
    }


def commits_by_topic(view: LoadView) -> dict[str, list[Commit]]:
    found: dict[str, list[Commit]] = defaultdict(list)
    for commit in view.commits:
        found[commit.topic].append(commit)
    return dict(sorted(found.items()))


def _asked_for(
    view: LoadView, topic: str, commits: Iterable[Commit], settings: TopicSettings
) -> Iterable[CheckResult]:
    """Results of the checks that block only if a topic's option says so."""
    if ERRORS_FEW in settings.checks.blocking:
        yield checks.error_result(topic, commits, settings)
    if ROWS_MATCH in settings.checks.blocking:
        for table, state in view.states.items():
            if (
                isinstance(state, Versioned)
                and state.value.new_mismatches
                and topic in checks.topics_of(state.value)
            ):
                yield checks.rows_result(table, state.value)
