"""Observes problems: failed checks, quarantined files, an unreachable broker or state. And news: tables, columns,
topics without a catalog entry, variants of contradicting schemas."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from kbq_assets.core.errors import ConfigurationError, StateError
from kbq_assets.core.loading.schema_changes import NEWS_MS
from kbq_assets.core.observation.check_names import (
    BATCHES_APPLY,
    DATA_FRESH,
    LAG_SHORT,
    PARTITIONS_RUN,
    ROWS_MATCH,
    WARN,
)
from kbq_assets.core.observation.checks import CheckResult
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.topics.evolution import Evolution
from kbq_assets.extras.notices import model
from kbq_assets.extras.notices.model import INFO, Condition
from kbq_assets.pipelines.observation.checks import CheckReport
from kbq_assets.pipelines.observation.status import TableStatus


@dataclass(frozen=True)
class Observed:
    """The inputs of a poll. ``uncatalogd`` returns the broker's other topics that are not in the catalog, each with the
    command that adds it. ``teams`` returns the teams of the named topics, and of tables by the topics that feed
    them."""

    checks: Callable[[], CheckReport]
    tables: Callable[[], tuple[TableStatus, ...]]
    uncatalogd: Callable[[Iterable[str]], Iterable[tuple[str, str]]]
    evolutions: Callable[[], Iterable[Evolution]]
    teams: Callable[[Iterable[str]], Mapping[str, frozenset[str]]]
    #: returns the reasons why BigQuery's tables of a lake are behind it
    behind: Callable[[], Mapping[str, str]] = dict


@dataclass(frozen=True)
class Observation:
    """Problems and news. ``unseen``: kinds and keys that could not be observed."""

    conditions: tuple[Condition, ...] = ()
    unseen: frozenset[str] = frozenset()

    def __add__(self, other: Observation) -> Observation:
        return Observation(self.conditions + other.conditions, self.unseen | other.unseen)


def teams_of(
    owners: Mapping[str, str], feeds: Mapping[TableReference, Collection[str]]
) -> Mapping[str, frozenset[str]]:
    """The teams of topics and tables, by name.

    ``owners`` has the team of each topic, "" if there is none; ``feeds`` has the topics of each table.
    """
    tables = {
        str(table): frozenset(owners.get(topic, "") for topic in topics) for table, topics in feeds.items()
    }
    return {topic: frozenset({team}) for topic, team in owners.items()} | tables


#: A problem with more causes is reported again only if their number grows, because each cause is stored.
_MOST_CAUSES: Final = 1000
#: A variant whose state temporarily cannot be read must not be news later.
_KEPT: Final = frozenset({model.CONTRADICTION})


def observe(world: Observed, now_ms: int) -> Observation:
    """All current problems and news. Raises Unavailable if the store does not answer."""
    try:
        report, tables, evolutions = world.checks(), world.tables(), tuple(world.evolutions())
    except StateError as error:
        broken = Condition(model.BROKEN_STATE, "the staging area", error.message, commands=(error.next_step,))
        return Observation((broken,), frozenset({model.ALL}))
    except (
        ConfigurationError
    ) as error:  # for example a mistake in the catalog: nothing runs until it is corrected
        broken = Condition(
            model.BROKEN_SETTINGS, "settings and catalog", error.message, commands=(error.next_step,)
        )
        return Observation((broken,), frozenset({model.ALL}))
    # A stopped topic has a lag and old data too, but only the stop is reported.
    stopped = [result.subject for result in report.failures if result.check == PARTITIONS_RUN]
    unseen = _KEPT | {f"{kind}/{topic}" for topic in stopped for kind in (LAG_SHORT, DATA_FRESH)}
    failures = (result for result in report.failures if not _is_quarantine(result))
    found = [c for c in map(_of_check, failures) if c.key not in unseen]
    found += [*_quarantined(tables), *_of_tables(tables, now_ms), *_of_lake(world.behind())]
    if any(table.state == "failed" for table in tables):
        unseen |= {model.NEW_TABLE, model.NEW_COLUMNS}
    unseen |= report.unknown.keys()
    if why := report.unknown.get(BATCHES_APPLY):
        found.append(Condition(model.UNREACHABLE, "KBQ_FILES", why, commands=("kbq files status",)))
    if broker := [why for name, why in report.unknown.items() if name != BATCHES_APPLY]:
        found.append(Condition(model.UNREACHABLE, "broker", broker[0], commands=("kbq doctor",)))
        unseen |= {model.NEW_TOPIC}
    for topic, command in world.uncatalogd(report.others):
        text = "it is on the broker, but not in the catalog"
        found.append(Condition(model.NEW_TOPIC, topic, text, INFO, (command,), lasts=False))
    for each in evolutions:
        found.append(
            Condition(
                model.CONTRADICTION,
                each.table,
                str(each),
                WARN,
                ("kbq status",),
                lasts=False,
                mark=each.column,
            )
        )
    return Observation(tuple(found), unseen)


def _of_check(result: CheckResult) -> Condition:
    # The number of stopped partitions or batches is a size. A lag is not, because it changes at every poll.
    size = int(result.numbers.get("partitions", result.numbers.get("stopped_batches", 0)))
    causes = result.causes if len(result.causes) <= _MOST_CAUSES else ()
    blocked = "; its files are not loaded until this passes" if result.blocks else ""
    commands = tuple(filter(None, result.commands))
    return Condition(
        result.check,
        result.subject,
        result.message + blocked,
        result.severity,
        commands,
        size=size,
        causes=causes,
    )


def _is_quarantine(result: CheckResult) -> bool:
    """Whether a check fails only because of quarantined files. They are a condition of their own."""
    only = result.check == ROWS_MATCH and not (result.numbers["jobs"] or result.numbers["problems"])
    return only and result.numbers["quarantined_files"] > 0


def _quarantined(tables: Iterable[TableStatus]) -> Iterator[Condition]:
    for table in tables:
        if size := table.quarantined_files:
            text = (
                f"KBQ set aside {counted(size, 'file')} that the warehouse rejected, and loaded the others. Hours with"
                " rejected rows do not become complete until you continue without these rows, with the second command"
            )
            commands = ("kbq quarantine list", f"kbq resume --table {table.table}")
            yield Condition(model.QUARANTINED, str(table.table), text, WARN, commands, size=size, lasts=False)


def _of_lake(behind: Mapping[str, str]) -> Iterator[Condition]:
    for table, why in behind.items():
        text = f"BigQuery still reads its old rows: {why}"
        yield Condition(model.LAKE_BEHIND, table, text, WARN, ("kbq catalog apply",))


def _of_tables(tables: Iterable[TableStatus], now_ms: int) -> Iterator[Condition]:
    for table in tables:
        for change in table.changes:
            if now_ms - change.at_ms < NEWS_MS:
                kind, mark = model.NEW_TABLE if change.created else model.NEW_COLUMNS, str(change.at_ms)
                yield Condition(kind, str(table.table), str(change), INFO, lasts=False, mark=mark)
