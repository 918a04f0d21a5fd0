"""News: what is no fault, and worth a notice. New tables and columns, as table states keep them; topics that nobody
catalogued, as the broker named them to the checks; what contradicting schemas were given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from kbq_assets.core.loading.schema_changes import NEWS_MS, SchemaChange
from kbq_assets.core.observation.check_names import WARN
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.topics.evolution import VARIANTS, Evolution, TableVariants, evolutions
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.extras.notices import model as notices
from kbq_assets.extras.notices.model import INFO, Condition
from kbq_assets.pipelines.observation.status import TableStatus
from kbq_assets.pipelines.protocol.evolutions import has_variants
from kbq_assets.pipelines.protocol.state import Versioned
from kbq_assets.pipelines.protocol.state_cache import StateCache

#: Which of the broker's topics are news, each with the command that catalogues it.
FindUncatalogued = Callable[[Iterable[str]], Iterable[tuple[str, str]]]
TABLE_NEWS: Final = frozenset({notices.NEW_TABLE, notices.NEW_COLUMNS})
TOPIC_NEWS: Final = frozenset({notices.NEW_TOPIC})
SCHEMA_NEWS: Final = frozenset({notices.CONTRADICTION})


def table_news(tables: Iterable[TableStatus], now_ms: int) -> Iterator[Condition]:
    """What became of tables in the last days."""
    for table in tables:
        for change in table.changes:
            if now_ms - change.at_ms < NEWS_MS:
                yield _of_table(table.table, change)


def _of_table(table: TableReference, change: SchemaChange) -> Condition:
    kind = notices.NEW_TABLE if change.created else notices.NEW_COLUMNS
    return Condition(kind, str(table), str(change), INFO, lasts=False, mark=str(change.at_ms))


def topic_news(topics: Iterable[str], uncatalogued: FindUncatalogued) -> Iterator[Condition]:
    """Topics of the broker that the catalogue does not know."""
    for topic, command in uncatalogued(topics):
        text = "the broker has it, the catalogue does not"
        yield Condition(notices.NEW_TOPIC, topic, text, INFO, (command,), lasts=False)


@dataclass(frozen=True)
class Contradictions:
    """What contradicting schemas led to so far. ``complete``: all of it could be read."""

    evolutions: tuple[Evolution, ...] = ()
    complete: bool = True

    @classmethod
    def read(cls, cache: StateCache, settings: Iterable[TopicSettings]) -> Contradictions:
        """Read what has changed; nothing where every topic parks. Raises Unavailable."""
        if not has_variants(settings):
            return cls()
        listed = cache.listing(VARIANTS)
        found = cache.read(TableVariants, listed, listed)
        tables = [path.removeprefix(VARIANTS).removesuffix(".json") for path in listed]
        read = [(t, v.value) for t, v in zip(tables, found, strict=True) if isinstance(v, Versioned)]
        return cls(tuple(e for t, p in read for e in evolutions(t, p)), len(read) == len(tables))


def schema_news(found: Contradictions) -> Iterator[Condition]:
    """Columns and tables that a contradicting schema was given."""
    for each in found.evolutions:
        yield Condition(
            notices.CONTRADICTION, each.table, str(each), WARN, ("kbq status",), lasts=False, mark=each.column
        )


def nobody(topics: Iterable[str]) -> Iterable[tuple[str, str]]:
    """Without a catalogue no topic is missing from it."""
    return ()
