"""The source list: the topics to extract, and their options.

Each line has a topic or pattern, then options. The first line that matches a topic decides. A pattern has '*', '?' or
'['.

    # topic or pattern     options
    shop.orders.v1         dataset=sales table=orders event_date=ordered_at
    audit-*                format=json errors=skip
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

from kbq_assets.core.errors import ConfigurationError, InvalidName
from kbq_assets.core.protocol.names import check_topic
from kbq_assets.core.spelling import meant
from kbq_assets.core.topics.destinations import check_datasets
from kbq_assets.core.topics.topic_settings import OPTIONS, TopicSettings

_WILDCARDS: Final = "*?["
#: The character that replaces bytes that are not UTF-8.
UNREADABLE: Final = "\ufffd"


@dataclass(frozen=True)
class EntryMistake:
    """A mistake that hides the options of an entry's topics, and how to fix it. ``hides_name``: it also hides which
    topics the entry selects."""

    message: str
    next_step: str
    hides_name: bool = False


@dataclass(frozen=True)
class SourceEntry:
    """One line of the source list, or an entry of the catalog.

    An entry with a ``mistake`` selects no topics; the topics that match it wait until it is fixed. If the mistake hides
    their names, the pattern is a guess or the entry's location.
    """

    pattern: str
    settings: TopicSettings
    mistake: EntryMistake | None = None

    def matches(self, topic: str) -> bool:
        """Whether the line matches a topic."""
        if topic == self.pattern:
            return True
        return self.is_pattern and fnmatch.fnmatchcase(topic, self.pattern)

    def settings_of(self, topic: str) -> TopicSettings:
        """The options of a topic that the line selects. For a pattern, the field of the business time is optional,
        because not every topic must have it."""
        settings = self.settings.for_topic(topic)
        business = settings.records.event_date
        if business is None or not self.is_pattern or topic == self.pattern:
            return settings
        shared = dataclasses.replace(business, is_optional=True)
        return dataclasses.replace(settings, records=dataclasses.replace(settings.records, event_date=shared))

    @property
    def is_pattern(self) -> bool:
        """Whether the line may match several topics."""
        return any(c in self.pattern for c in _WILDCARDS)


def parse_source_list(
    text: str, origin: str, defaults: TopicSettings | None = None
) -> tuple[SourceEntry, ...]:
    """Parse a source list. A mistake only affects its own line, and includes ``origin`` and the line number.
    `UNREADABLE` stands for bytes that are not text."""
    base, entries = defaults or TopicSettings(), []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if words:
            entries.append(_entry(words, f"{origin}:{number}", base))
    return tuple(entries)


def _entry(words: list[str], where: str, base: TopicSettings) -> SourceEntry:
    try:
        return SourceEntry(_pattern(words[0]), _settings(words[1:], base))
    except ConfigurationError as error:
        hint = f" ({error.next_step})" if error.next_step else ""
        # A first word that is not a valid name was meant to be one.
        hides_name = isinstance(error, InvalidName)
        mistake = EntryMistake(f"{where}: {error.message}{hint}", f"fix {where}", hides_name)
        return SourceEntry(words[0], base, mistake)


class SourceLines:
    """The lines of a source list, indexed by topic. The first line that names or matches a topic decides. Lines that
    name a topic are looked up, so only patterns are tried one by one.
    """

    def __init__(self, entries: Iterable[SourceEntry]) -> None:
        self.mistaken: list[SourceEntry] = []
        self._named: dict[str, tuple[int, SourceEntry]] = {}
        self._patterns: list[tuple[int, SourceEntry]] = []
        for number, entry in enumerate(entries):
            self._named.setdefault(entry.pattern, (number, entry))
            if entry.is_pattern:
                self._patterns.append((number, entry))
            if entry.mistake is not None:
                self.mistaken.append(entry)

    def entries_of(self, topics: Iterable[str]) -> dict[str, SourceEntry]:
        """The line that decides for each topic, even if it has a mistake."""
        chosen: dict[str, SourceEntry] = {}
        for topic in sorted(topics):
            matching = next((line for line in self._patterns if line[1].matches(topic)), None)
            lines = [line for line in (self._named.get(topic), matching) if line is not None]
            if lines:
                _, chosen[topic] = min(lines, key=itemgetter(0))
        return chosen

    def settings_of(self, topics: Iterable[str]) -> dict[str, TopicSettings]:
        """The settings of each topic whose line has no mistake."""
        found = self.entries_of(topics).items()
        return {topic: entry.settings_of(topic) for topic, entry in found if entry.mistake is None}

    def unknown(self, topics: Iterable[str]) -> dict[str, EntryMistake]:
        """Topics with unknown options: either their line has a mistake, or they have no line while some other line's
        mistake hides its topics."""
        mistakes = [entry.mistake for entry in self.mistaken if entry.mistake is not None]
        if not mistakes:
            return {}
        hidden = next((mistake for mistake in mistakes if mistake.hides_name), None)
        topics = sorted(topics)
        found = self.entries_of(topics)
        chosen = {topic: found[topic].mistake if topic in found else hidden for topic in topics}
        return {topic: mistake for topic, mistake in chosen.items() if mistake is not None}


def select_topics(entries: Iterable[SourceEntry], topics: Iterable[str]) -> dict[str, TopicSettings]:
    """The settings of each topic that a line names or matches; the first line decides. Leaves out topics whose line has
    a mistake."""
    return SourceLines(entries).settings_of(topics)


def select_entries(entries: Iterable[SourceEntry], topics: Iterable[str]) -> dict[str, SourceEntry]:
    """The first line that names or matches each topic."""
    return SourceLines(entries).entries_of(topics)


def _pattern(word: str) -> str:
    if UNREADABLE in word:
        raise InvalidName(f"{word!r} is not UTF-8", next_step="save the list as UTF-8")
    if not any(c in word for c in _WILDCARDS):
        return check_topic(word)
    if "=" in word:
        raise InvalidName(f"the first word is a topic or pattern, not {word!r}")
    return word


def _settings(words: Iterable[str], base: TopicSettings) -> TopicSettings:
    options: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if UNREADABLE in value:
            raise ConfigurationError(f"{key} is not UTF-8", next_step="save the list as UTF-8")
        if not equals or key not in OPTIONS:
            hint = meant(key, OPTIONS) or f"options: {', '.join(OPTIONS)}"
            raise ConfigurationError(f"unknown option {key!r}", next_step=hint)
        options[key] = value
    made = base.with_options(**options)
    check_datasets(made.destination.dataset, made.destination.error_dataset)
    if made.records.validate and made.records.format in ("json", "json_columns"):
        raise ConfigurationError(
            "validate=true: a source list declares no schema",
            next_step="format=json_schema, or a catalog entry with schemas/value.json",
        )
    return made
