"""Every rule that a test removes on purpose, and the test that must notice: docs/mutants.md.

`make reference` writes the page, and a test compares it. Each row is a case of the test that its section names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from kbq_assets_tests.adapters.duckdb import test_replay_upserts as replay_upserts
from kbq_assets_tests.google import test_load_faults, test_two_loaders
from kbq_assets_tests.model import (
    test_file_batches,
    test_lake_commits,
    test_lake_error_replays,
    test_lake_promotions,
    test_late_changes,
    test_manifests,
    test_merges,
    test_ordered_error_replays,
    test_promotions,
    test_repairs,
    test_statements,
    test_switches,
    test_warehouse_replays,
)
from kbq_assets_tests.model.mutants import MUTANTS as MODEL_MUTANTS
from kbq_assets_tests.pipelines.compaction import test_table as compaction
from kbq_assets_tests.pipelines.erasure import test_crashes as erasure
from kbq_assets_tests.pipelines.filebatches import test_schedules as filebatches
from kbq_assets_tests.pipelines.replay import test_schedules as replay
from kbq_assets_tests.simulation import manifest_mutants, mutants
from kbq_assets_tests.simulation.backup_mutants import (
    BACKUP_MUTANTS,
    COMPACTED_MUTANTS,
    ERASURE_MUTANTS,
    LATE_MUTANTS,
)
from kbq_assets_tests.simulation.error_replay_mutants import ERROR_REPLAY_MUTANTS, OUT_OF_ORDER_MUTANTS
from kbq_assets_tests.simulation.late_change_mutants import LATE_CHANGE_MUTANTS
from kbq_assets_tests.simulation.mutants import Mutant
from kbq_assets_tests.simulation.promotion_mutants import (
    LAKE_MUTANTS,
    PROMOTION_MUTANTS,
    WAREHOUSE_REPLAY_MUTANTS,
)
from kbq_assets_tests.simulation.statement_mutants import (
    ANY_SKIP,
    FORGOTTEN_RULE,
    STATEMENT_MUTANTS,
    SWITCH_MUTANTS,
)

TESTS: Final = Path(__file__).parent
PAGE: Final = TESTS.parent / "docs" / "mutants.md"

_HEAD: Final = """# Rules removed on purpose

A mutant is the protocol, or KBQ's code, without one rule of [protocol.md](protocol.md). If a test passes without a
rule, it does not test that rule. So each mutant has a test that fails unless the mutant is detected. `make test` runs
all of them. This page lists all {count}, by test. `make reference` generates it from the lists that the tests use.

*Noticed by* is one of these:

- a promise in capitals that the model finds broken ([protocol-model.md](protocol-model.md)). *nothing* means that
  another rule covers for the removed one: the model explores the whole scope, and finds no broken promise.
- a seed: the schedule that detects the mutant in `make test`. `make test-all` searches all seeds, from 0 on.
- a case of the test
"""
_REMOVED: Final = "test_a_removed_rule_breaks_the_promise_it_is_there_for"


@dataclass(frozen=True)
class Row:
    """A mutant: the numbers of its rules, what is done instead, and what notices it."""

    rule: str
    change: str
    noticed_by: str


@dataclass(frozen=True)
class Section:
    """The mutants of one test, which is ``file::function`` below kbq_assets_tests."""

    title: str
    test: str
    rows: tuple[Row, ...]


def sections() -> Iterator[Section]:
    """All mutants, the model's first."""
    yield from _of_the_model()
    yield from _of_the_simulator()
    yield from _of_pipelines()
    yield from _over_google()


def _of_the_model() -> Iterator[Section]:
    promises = [(_both(each.rule, *each.also), each.breaks or "nothing") for each in MODEL_MUTANTS]
    yield Section("The model", f"model/test_protocol_model.py::{_REMOVED}", _rows(promises, "not so: "))
    models: list[tuple[str, str, dict[Any, Any]]] = [
        ("manifests", "test_manifests", test_manifests.BREAKS),
        ("repairs", "test_repairs", test_repairs.BREAKS),
        ("late changes", "test_late_changes", test_late_changes.BREAKS),
        ("merges", "test_merges", test_merges.BREAKS),
        ("statements", "test_statements", test_statements.BREAKS),
        ("promotions", "test_promotions", test_promotions.BREAKS),
        ("promotions in a lake", "test_lake_promotions", test_lake_promotions.BREAKS),
        ("commits of a lake", "test_lake_commits", test_lake_commits.BREAKS),
        ("replays for two warehouses", "test_warehouse_replays", test_warehouse_replays.BREAKS),
        ("replays of error rows in a lake", "test_lake_error_replays", test_lake_error_replays.BREAKS),
        ("error rows into ordered tables", "test_ordered_error_replays", test_ordered_error_replays.BREAKS),
        ("changes of load", "test_switches", test_switches.BREAKS),
        ("batches of files", "test_file_batches", test_file_batches.BREAKS),
    ]
    for subject, file, breaks in models:
        found = [(rule.value, _promises(each)) for rule, each in breaks.items()]
        yield Section(f"The model of {subject}", f"model/{file}.py::{_REMOVED}", _rows(found, "not so: "))


def _of_the_simulator() -> Iterator[Section]:
    for title, test, found in (
        ("Schedules", "the_simulator_notices_when_a_rule_is_removed", mutants.MUTANTS),
        ("Schedules of two warehouses", "two_warehouses_notice_when_a_rule_is_removed", mutants.WAREHOUSE_MUTANTS),
        ("Schedules of mishaps", "mishaps_show_when_a_rule_is_removed", mutants.MISHAP_MUTANTS),
        ("Schedules of manifests", "manifests_without_a_rule_break_a_promise", manifest_mutants.MANIFEST_MUTANTS),
        ("Schedules of merged files", "merged_files_without_a_rule_break_a_promise", mutants.MERGING_MUTANTS),
        ("Schedules of backups", "backups_notice_when_a_rule_is_removed", BACKUP_MUTANTS),
        ("Schedules of erasures", "erasures_notice_when_a_rule_is_removed", ERASURE_MUTANTS),
        ("Schedules of merged backup files", "merged_backup_files_without_a_rule_break_a_promise", COMPACTED_MUTANTS),
        ("Late changes", "late_changes_notice_when_a_rule_is_removed", LATE_CHANGE_MUTANTS),
        ("Late publications", "late_publications_notice_when_a_rule_is_removed", LATE_MUTANTS),
        ("Schedules of replays", "replays_notice_when_a_rule_is_removed", PROMOTION_MUTANTS),
        ("Schedules of replays in a lake", "replays_in_a_lake_notice_when_a_rule_is_removed", LAKE_MUTANTS),
        ("Schedules of replays of two warehouses", "replays_of_two_warehouses_notice_when_a_rule_is_removed",
         WAREHOUSE_REPLAY_MUTANTS),
        ("Schedules of replays of error rows in a lake", "replays_of_error_rows_notice_when_a_rule_is_removed",
         ERROR_REPLAY_MUTANTS),
        ("Schedules of error rows in ordered tables", "ordered_tables_notice_rows_that_no_decision_let_in",
         OUT_OF_ORDER_MUTANTS),
        ("Schedules of ordered tables", "ordered_tables_notice_when_a_rule_is_removed", mutants.ORDER_MUTANTS),
        ("Schedules of tables by hour", "hours_notice_when_a_rule_is_removed", mutants.HOUR_MUTANTS),
        ("Schedules of statements", "the_simulator_notices_when_a_rule_of_statements_is_removed", STATEMENT_MUTANTS),
    ):  # fmt: skip
        yield Section(title, f"simulation/test_simulation.py::test_{test}", _of_seeds(found))
    two_loaders = [mutants.A_NEW_ID, *(each for each in mutants.MUTANTS if "L2" in each.rule)]
    for title, name, first in (
        ("Two loaders at once", "two_loaders_without_l2_or_l3_break_a_promise", two_loaders),
        ("Changes of load", "the_simulator_notices_a_change_of_load_that_breaks_a_rule", SWITCH_MUTANTS),
        (
            "A topic without an entry",
            "a_topic_that_leaves_the_list_is_loaded_as_it_asked_to_be",
            [FORGOTTEN_RULE],
        ),
        ("A late skip", "a_skip_that_arrives_late_gives_up_no_rows_that_nobody_decided_about", [ANY_SKIP]),
        ("Schedules of a replay", "a_replay_notices_times_of_other_records", mutants.REPLAY_MUTANTS),
        ("Many hours", "the_simulator_notices_hours_that_push_out_others", [mutants.LATEST_ONLY]),
    ):
        test = f"simulation/test_simulation.py::test_{name}"
        yield Section(title, test, tuple(Row(_numbers(each), each.name, "seeds from 0") for each in first))


def _of_pipelines() -> Iterator[Section]:
    late = [manifest_mutants.LIST_AFTER_HEADS]
    twice = [manifest_mutants.TAKEN_FOR_EMPTY, manifest_mutants.READ_ONCE]
    for title, test, found in (
        ("A clean-up between two publications", "clean_up_that_reads_heads_first_deletes_named_manifests", late),
        ("A reader during a merge", "a_reader_that_reads_the_head_once_misses_windows_or_stops", twice),
    ):  # fmt: skip
        rows = tuple(Row(_numbers(each), each.name, "the interleaving") for each in found)
        yield Section(title, f"pipelines/test_manifests.py::test_{test}", rows)
    left_out = "test_a_step_that_is_left_out_is_noticed"
    yield Section("Erasures", f"pipelines/erasure/test_crashes.py::{left_out}", _cases(erasure.MUTANTS))
    yield Section("Replays", f"pipelines/replay/test_schedules.py::{left_out}", _cases(replay.MUTANTS))
    texts = "adapters/duckdb/test_replay_upserts.py::test_a_text_without_a_rule_is_noticed"
    yield Section("Replays of upsert tables", texts, _cases(replay_upserts.MUTANTS))
    test = "pipelines/filebatches/test_schedules.py::test_a_broken_rule_is_noticed"
    yield Section("Batches of files", test, _cases(filebatches.MUTANTS))
    for title, name, done in (
        ("Compaction", "a_broken_rule", compaction.MUTANTS),
        ("A lake", "a_lake_that_breaks_a_rule", compaction.LAKE_MUTANTS),
    ):
        test = f"pipelines/compaction/test_table.py::test_the_schedules_notice_{name}"
        yield Section(title, test, _cases((each.__doc__ or "").rstrip(".") for each in done))


def _over_google() -> Iterator[Section]:
    known = {each.name: each for each in (*mutants.MUTANTS, mutants.A_NEW_ID)}
    rows = tuple(
        Row(_numbers(known[name]), name, f"case {outcome}")
        for name, outcome in test_load_faults.RULES_REMOVED
    )
    yield Section(
        "Loads through Google's client", "google/test_load_faults.py::test_a_rule_removed_is_noticed", rows
    )
    [early] = [each for each in mutants.MUTANTS if each.rule == "L4"]
    test = "google/test_load_faults.py::test_the_watch_notices_files_that_are_deleted_before_their_load_is_recorded"
    yield Section("Files that Google's client deletes", test, (Row(_numbers(early), early.name, "the case"),))
    alone = test_two_loaders.WITHOUT_INTENT
    test = "google/test_two_loaders.py::test_two_loaders_with_ids_of_their_own_double_rows"
    yield Section(
        "Two loaders through Google's client", test, (Row(_numbers(alone), alone.name, "the case"),)
    )


def _both(*rules: str) -> str:
    """One text of rules that are removed together: "E6: … and …"."""
    first, *others = rules
    return " and ".join((first, *(each.partition(": ")[2] for each in others)))


def _rows(found: Iterable[tuple[str, str]], prefix: str = "") -> tuple[Row, ...]:
    """Rows of "E4: text" and what notices each."""
    parts = ((*text.partition(": ")[::2], by) for text, by in found)
    return tuple(Row(number, prefix + text, by) for number, text, by in parts)


def _promises(breaks: str | tuple[Any, ...]) -> str:
    """The promises that may break, of a list that may name the scope before them."""
    return (
        breaks if isinstance(breaks, str) else " or ".join(each for each in breaks if isinstance(each, str))
    )


def _numbers(mutant: Mutant) -> str:
    """The numbers of a mutant's rules: "L2" of "L2" and of "L2: intent first"."""
    return mutant.rule.partition(":")[0]


def _cases(names: Iterable[str]) -> tuple[Row, ...]:
    return _rows((name, "the case of its name") for name in names)


def _of_seeds(found: Iterable[Mutant]) -> tuple[Row, ...]:
    return tuple(Row(_numbers(each), each.name, f"seed {each.seed}") for each in found)


def page() -> str:
    """The text of docs/mutants.md."""
    found = list(sections())
    removed = {number.strip() for each in found for row in each.rows for number in row.rule.split(",")}
    protocol = PAGE.with_name("protocol.md").read_text(encoding="utf-8")
    rules = [rule for rule in re.findall(r"\*\*([A-Z]\d+)\*\*", protocol) if rule not in removed]
    count = sum(len(each.rows) for each in found)
    lines = [_HEAD.format(count=count)]
    for each in found:
        file, _, test = each.test.partition("::")
        lines += [f"## {each.title}\n", f"[{file}](../kbq_assets_tests/{file}), `{test}`\n"]
        lines += ["| rule | mutant | noticed by |", "|---|---|---|"]
        lines += [f"| {row.rule} | {row.change} | {row.noticed_by} |" for row in each.rows]
        lines.append("")
    lines.append("## Rules without a mutant\n\nOther tests cover these:\n")
    others = sorted(dict.fromkeys(rules), key=lambda rule: (rule[0], int(rule[1:])))
    lines += [f"- {', '.join(group)}" for _, group in groupby(others, key=lambda rule: rule[0])]
    return "\n".join((*lines, ""))
