"""The checks on the page of each topic and table.

A page's check is written when its result changes. The check over all topics or tables also stores the results that the
pages show (`_NOTED`), so one read of it shows what has changed. This is a hint: the next read corrects a wrong one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import dagster as dg

from kbq_assets.core.errors import KbqError
from kbq_assets.core.extraction.stops import PartitionStop
from kbq_assets.core.observation.check_names import CHECKS, PARTITIONS_RUN, TABLES_LOAD
from kbq_assets.core.observation.checks import CheckResult, LoadBlock
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.defs.metadata import Metadata
from kbq_assets.defs.observation.check_events import asset_of, digest, evaluation, evaluation_of, metadata_of
from kbq_assets.defs.pages import Pages
from kbq_assets.pipelines.observation.broker_checks import stop_results
from kbq_assets.pipelines.observation.checks import CheckReport, refused_result

#: Metadata of the check over all pages: the digest of each page's problem, "" for none.
_NOTED: Final = "pages"
#: Prefix of the digest if the code location does not have the topic or table yet. Once it has, its page is written.
_NO_PAGE: Final = "?"
#: Newest records of a check among which its last result is searched.
_RECORDS: Final = 20
#: The checks of topics' and tables' pages. COUNTS_AGREE needs a query, and is evaluated for all tables at once.
_OF_TOPIC: Final = tuple(name for name, kind in CHECKS.items() if kind.about == "topic")
_OF_TABLE: Final = tuple(name for name, kind in CHECKS.items() if kind.about == "table" and kind.is_free)


def page_check_specs(pages: Pages) -> Iterator[dg.AssetCheckSpec]:
    """The checks of every page. A table's page also shows the stops of the topics that are named for it."""
    for key in pages.staged:
        yield from (dg.AssetCheckSpec(n, asset=key, description=CHECKS[n].meaning) for n in _OF_TOPIC)
    yield from table_check_specs(pages, _OF_TABLE)
    for key, table in pages.loaded.items():
        if pages.tables[table].topics:
            yield dg.AssetCheckSpec(PARTITIONS_RUN, asset=key, description=CHECKS[PARTITIONS_RUN].meaning)


def table_check_specs(pages: Pages, names: Sequence[str]) -> Iterator[dg.AssetCheckSpec]:
    """The named checks for every table's page."""
    for key in pages.loaded:
        yield from (dg.AssetCheckSpec(n, asset=key, description=CHECKS[n].meaning) for n in names)


def evaluations(
    instance: dg.DagsterInstance, pages: Pages, report: CheckReport, names: Iterable[str]
) -> Iterator[dg.AssetCheckEvaluation]:
    """One evaluation per check over all topics or tables, and one for each page whose result has changed."""
    for name in names:
        if name not in report.unknown:
            before = noted(instance, pages, name)
            results = [*report.of(name), *_unregistered(pages, report, name)]
            shown = {result.subject: result for result in _of_pages(report, results)}
            yield from _changes(pages, name, results, shown, before)


def stop_evaluations(
    instance: dg.DagsterInstance,
    pages: Pages,
    topics: Iterable[str],
    stops: Iterable[PartitionStop],
    name: str = PARTITIONS_RUN,
) -> Iterator[dg.AssetCheckEvaluation]:
    """The evaluations of one check of stops, for callers that have only the stops and the ``topics`` that were read. If
    another topic no longer has a stop, its page changes too."""
    before = noted(instance, pages, name)
    results = stop_results({*before, *topics}, stops, name)
    yield from _changes(pages, name, results, {r.subject: r for r in results}, before)


def page_evaluations(
    pages: Pages, report: CheckReport, key: dg.AssetCheckKey
) -> Iterator[dg.AssetCheckEvaluation]:
    """The evaluation of one check of one page, when a user runs it."""
    name = key.name
    if name in report.unknown:
        return
    subjects = _subjects(pages, name, key.asset_key)
    results = [*report.of(name), *_unregistered(pages, report, name)]
    found = [result for result in _of_pages(report, results) if result.subject in subjects]
    yield _on_page(key.asset_key, name, found)


def noted(instance: dg.DagsterInstance, pages: Pages, name: str) -> Mapping[str, str]:
    """The results of a check that the pages show, by topic or table."""
    latest = last_evaluation(instance, dg.AssetCheckKey(asset_of(name, pages.translator), name))
    found = latest.metadata.get(_NOTED) if latest is not None else None
    values = found.value if isinstance(found, dg.JsonMetadataValue) else None
    return {str(k): str(v) for k, v in values.items()} if isinstance(values, dict) else {}


def last_evaluation(instance: dg.DagsterInstance, key: dg.AssetCheckKey) -> dg.AssetCheckEvaluation | None:
    """The last result of a check. Dagster's newest record has none while a run evaluates the check, and keeps none if
    that run could not."""
    records = instance.event_log_storage.get_asset_check_execution_history(key, limit=_RECORDS)
    found = (record.evaluation for record in records)
    return next((each for each in found if isinstance(each, dg.AssetCheckEvaluation)), None)


def stopped_partitions(instance: dg.DagsterInstance, pages: Pages) -> set[TopicPartition]:
    return {
        TopicPartition(topic, int(number))
        for topic, says in noted(instance, pages, PARTITIONS_RUN).items()
        for number in says.split()[1:]
    }


def _says(result: CheckResult) -> str:
    """A result in short form: "" if it passed, otherwise its digest and its stopped partitions."""
    return "" if result.passed else " ".join((digest([result]), *map(str, result.partitions)))


def note_of(says: Mapping[str, str]) -> Metadata:
    """The metadata entry that stores what each page shows."""
    return {_NOTED: dg.MetadataValue.json(dict(sorted(says.items())))}


def _changes(
    pages: Pages,
    name: str,
    results: Sequence[CheckResult],
    shown: Mapping[str, CheckResult],
    before: Mapping[str, str],
) -> Iterator[dg.AssetCheckEvaluation]:
    now = {
        subject: _says(result) if _has_page(pages, name, subject) else f"{_NO_PAGE}{_says(result)}"
        for subject, result in shown.items()
    }
    yield evaluation(asset_of(name, pages.translator), name, results, note_of(now))
    changed = [subject for subject, says in now.items() if before.get(subject) != says]
    if name == TABLES_LOAD:  # a commit is no longer refused, and has no file of a table
        changed += [s for s, says in before.items() if says and s not in now and _has_page(pages, name, s)]
    changed.sort()
    for key, subjects in _keys(pages, name, changed).items():
        yield _on_page(key, name, [shown[subject] for subject in subjects if subject in shown])


def _has_page(pages: Pages, name: str, subject: str) -> bool:
    if CHECKS[name].about == "table":
        return TableReference.parse(subject) in pages.tables
    return subject in pages.topics


def _keys(pages: Pages, name: str, subjects: Iterable[str]) -> dict[dg.AssetKey, list[str]]:
    found: dict[dg.AssetKey, list[str]] = defaultdict(list)
    for subject in subjects:
        if CHECKS[name].about == "table":
            found[pages.translator.dataset_key(TableReference.parse(subject))] = [subject]
            continue
        found[pages.translator.staged_key(subject)] = [subject]
        if name == PARTITIONS_RUN:
            for table in pages.fed_by(subject):
                found[pages.translator.dataset_key(table)] = pages.feeding(table)
    return found


def _subjects(pages: Pages, name: str, key: dg.AssetKey) -> Sequence[str]:
    """The topics or tables of a page's check."""
    table = pages.loaded.get(key)
    if table is None:
        return (pages.staged[key],)
    return (str(table),) if CHECKS[name].about == "table" else pages.feeding(table)


def _of_pages(report: CheckReport, results: Iterable[CheckResult]) -> Iterator[CheckResult]:
    """A check's results as pages show them. If a table's files wait for a check of their topic, its page shows that."""
    for result in results:
        is_loaded = result.check == TABLES_LOAD and result.passed
        block = report.blocked_tables.get(result.subject) if is_loaded else None
        yield result if block is None else _blocked(result, block)


def _unregistered(pages: Pages, report: CheckReport, name: str) -> Iterator[CheckResult]:
    """Failures of tables without any state that are named for a topic with a refused commit: only this commit has the
    files that may wait for them."""
    if name != TABLES_LOAD or not report.refused:
        return
    known = {result.subject for result in report.of(name)}
    named = defaultdict[str, dict[str, KbqError]](dict)
    for topic, error in report.refused.items():
        for table in pages.fed_by(topic):
            named[str(table)][topic] = error
    yield from (refused_result(table, why) for table, why in named.items() if table not in known)


def _blocked(result: CheckResult, block: LoadBlock) -> CheckResult:
    return replace(result, passed=False, message=f"its files wait: {block}", commands=block.commands)


def _on_page(key: dg.AssetKey, name: str, results: Sequence[CheckResult]) -> dg.AssetCheckEvaluation:
    """The evaluation of one page: the cause and the next step of each problem."""
    fine = "; ".join(result.message for result in results) or f"no {CHECKS[name].about} to check yet"
    problems = [result.cause for result in results if not result.passed]
    return evaluation_of(key, name, problems, fine, metadata_of(results))
