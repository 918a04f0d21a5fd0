"""A change of `load` takes effect at recorded positions, after the windows before them (PROTOCOL S10)."""

from __future__ import annotations

import contextlib
import json

import pytest

from kbq_assets.core.errors import Refused
from kbq_assets.core.loading.table_state import TableState, park
from kbq_assets.core.ordering.table_order import AuditEntry
from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol.names import table_state_path
from kbq_assets.core.protocol.waits import ParkReason
from kbq_assets.core.statements.rules import StatementRule
from kbq_assets.core.statements.switching import in_force, open_switch
from kbq_assets.core.statements.table_statements import TableStatements
from kbq_assets.pipelines.loading.view import read_view
from kbq_assets.pipelines.operate.commands import propose_reset, propose_resume_table
from kbq_assets.pipelines.ordering.orders import order_status
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.state_cache import StateCache
from kbq_assets.pipelines.statements.skip import propose_skip
from kbq_assets.ports.warehouse import JobError
from kbq_assets_tests.fakes.faults import Crash, Outcome
from kbq_assets_tests.fakes.script import Script
from kbq_assets_tests.fakes.statements import Failure
from kbq_assets_tests.pipelines.bench import TOPIC, A
from kbq_assets_tests.pipelines.statements.bench import UPSERT, StatementBench

APPEND, HISTORY = StatementRule(), StatementRule("scd2", ("x",))
REFUSED = JobError("invalidQuery", "no such column", transient=False)


class SwitchBench(StatementBench):
    """Shows how each row of A became visible."""

    def more(self) -> None:
        """Stage a record, in a window."""
        self.produce(1)
        self.extract()

    def how(self) -> str:
        """`a` (appended) or `s` (applied by a statement) for each row of A, in the order of offsets."""
        applied = self.warehouse.statements.rows.get(A, set())
        rows = sorted(self.warehouse.rows(A)) if A in self.warehouse.stored else []
        return "".join("s" if row in applied else "a" for row in rows)

    def cycle(self, rule: StatementRule) -> None:
        """Stage a record and load, as the topic asks for."""
        self.rule = rule
        self.more()
        self.load()

    def waits(self) -> str:
        found = order_status(read_view(StateCache(self.store)), A)
        return found.switch if found else ""

    def positions(self) -> dict[str, tuple[int, int]]:
        switch = self.table().definition.statements.switch
        return dict(switch.at) if switch else {}

    def fail(self) -> None:
        """Statements fail from now on."""
        self.warehouse.statements.errors = lambda job: (REFUSED, Failure.BEFORE)

    def mend(self) -> None:
        """Statements succeed, and the table is tried again."""
        self.warehouse.statements.errors = None
        propose_resume_table(self.store, A).apply()


def loaded(rule: StatementRule, *, waiting: int = 0) -> SwitchBench:
    """A table with a row that was loaded by ``rule``, and ``waiting`` windows that were staged after it."""
    bench = SwitchBench()
    bench.cycle(rule)
    for _ in range(waiting):
        bench.more()
    return bench


@pytest.mark.parametrize(("first", "then", "shown"), [(APPEND, UPSERT, "aaas"), (UPSERT, APPEND, "sssa")])
def test_windows_that_were_committed_before_are_loaded_as_before(
    first: StatementRule, then: StatementRule, shown: str
) -> None:
    bench = loaded(first, waiting=2)
    bench.rule = then
    bench.load()
    assert (bench.how(), bench.positions()) == (shown[:3], {f"{TOPIC}/0": (1, 3)})
    assert bench.waits() == (
        f"load={then.kind} from {TOPIC}/0 3 on, load={first.kind} before; the next batch is the first one"
    )
    bench.cycle(then)
    assert (bench.how(), bench.waits()) == (shown, "")
    assert in_force(bench.table()) == then
    [entry] = bench.table().order.audit
    assert (entry.action, entry.reason) == (
        "load",
        f"load={then.kind} from {TOPIC}/0 3 on, load={first.kind} before",
    )


def test_a_change_is_recorded_when_nothing_waits_so_that_the_next_window_is_the_first() -> None:
    bench = loaded(APPEND)
    bench.rule = UPSERT
    bench.load()
    assert bench.positions() == {f"{TOPIC}/0": (1, 1)}
    bench.cycle(UPSERT)
    assert bench.how() == "as"


def test_the_status_says_how_much_comes_first() -> None:
    bench = loaded(APPEND, waiting=2)
    bench.rule = UPSERT
    bench.faults = Script("insert_job", outcome=Outcome.CRASH_BEFORE)
    with pytest.raises(Crash):
        bench.load()
    assert bench.waits().endswith("load=append before; to load first: 2 rows of 2 files")


def test_a_table_that_never_loaded_begins_as_its_topic_asks() -> None:
    bench = SwitchBench()
    bench.more()
    bench.cycle(UPSERT)
    assert (bench.how(), bench.positions()) == ("ss", {})


def test_an_appended_table_without_a_change_keeps_its_stored_form() -> None:
    bench = loaded(APPEND, waiting=1)
    bench.load()
    stored = json.loads(bench.store.get(table_state_path(A)).data)
    assert (stored["format"], "statements" in stored, "order" in stored) == (3, False, False)


@pytest.mark.parametrize("rule", [APPEND, UPSERT])
def test_a_change_back_while_earlier_windows_are_loaded_takes_it_back(rule: StatementRule) -> None:
    bench = loaded(rule, waiting=1)
    bench.rule = APPEND if rule is UPSERT else UPSERT
    bench.faults = Script("swap", "tables/d.A", Outcome.CRASH_AFTER, nth=1)
    with pytest.raises(Crash):
        bench.load()
    assert open_switch(bench.table()) is not None
    bench.faults = lambda call: Outcome.OK
    bench.cycle(rule)
    assert (set(bench.how()), len(bench.how()), bench.waits()) == ({"s" if rule is UPSERT else "a"}, 3, "")
    assert [each.action for each in bench.table().order.audit] == ["load", "load"]
    bench.cycle(rule)
    assert len(bench.table().order.audit) == 2


def test_a_change_that_is_taken_back_after_the_windows_before_it_leaves_a_table_that_appends() -> None:
    bench = loaded(APPEND, waiting=1)
    bench.rule = UPSERT
    bench.load()
    assert open_switch(bench.table()) is not None
    bench.cycle(APPEND)
    assert (bench.how(), bench.table().has_statements) == ("aaa", False)


def test_a_second_change_while_the_first_waits_takes_its_place_with_later_positions() -> None:
    bench = loaded(APPEND, waiting=1)
    bench.rule = UPSERT
    bench.load()
    assert bench.positions() == {f"{TOPIC}/0": (1, 2)}
    bench.more()
    bench.rule = HISTORY
    bench.load()
    assert (bench.how(), bench.positions()) == ("aaa", {f"{TOPIC}/0": (1, 3)})
    bench.cycle(HISTORY)
    assert (bench.how(), in_force(bench.table())) == ("aaas", HISTORY)


def test_there_and_back_again_each_window_is_loaded_as_when_it_was_committed() -> None:
    bench = loaded(APPEND)
    for rule in (UPSERT, UPSERT, APPEND, APPEND, UPSERT, UPSERT):
        bench.cycle(rule)
    assert bench.how() == "aassaas"


@pytest.mark.parametrize("outcome", [Outcome.CRASH_BEFORE, Outcome.CRASH_AFTER, Outcome.CRASH_LATE])
@pytest.mark.parametrize(("first", "then", "shown"), [(APPEND, UPSERT, "aas"), (UPSERT, APPEND, "ssa")])
def test_a_loader_that_dies_at_any_swap_changes_no_window_s_rule(
    first: StatementRule, then: StatementRule, shown: str, outcome: Outcome
) -> None:
    for swap in range(1, 6):
        bench = loaded(first, waiting=1)
        bench.rule = then
        bench.faults = Script("swap", "tables/d.A", outcome, nth=swap)
        with contextlib.suppress(Crash):
            bench.load()
        bench.land()
        bench.load()
        bench.cycle(then)
        assert bench.how() == shown, swap


def test_a_second_loader_with_other_options_is_fenced_and_each_change_is_recorded() -> None:
    bench = loaded(APPEND, waiting=1)

    def aside() -> None:
        bench.faults = lambda call: Outcome.OK
        bench.rule = APPEND
        bench.load()
        bench.rule = UPSERT

    bench.rule = UPSERT
    bench.faults = Script("swap", "tables/d.A", before=aside)
    bench.load()
    assert (bench.how(), bench.positions()) == ("aa", {f"{TOPIC}/0": (1, 2)})


def test_a_reset_while_a_change_waits_leaves_nothing_before_it() -> None:
    bench = loaded(APPEND, waiting=1)
    bench.rule = UPSERT
    bench.faults = Script("swap", "tables/d.A", Outcome.CRASH_AFTER, nth=1)
    with pytest.raises(Crash):
        bench.load()
    bench.faults = lambda call: Outcome.OK
    propose_reset(bench.store, bench.kafka, TOPIC, give_up_pending=True).apply()
    bench.extract()
    bench.load()
    assert bench.how() == "ass"


def test_a_warehouse_without_statements_records_no_change_and_loads_nothing_until_it_is_taken_back() -> None:
    bench = loaded(APPEND, waiting=1)
    bench.rule, bench.runs_statements = UPSERT, False
    [report] = [each for each in bench.load().tables if each.table == A]
    assert (report.state, bench.how(), bench.positions()) == ("parked", "a", {})
    assert "runs no statements" in report.message
    bench.rule = APPEND
    propose_resume_table(bench.store, A).apply()
    bench.load()
    assert bench.how() == "aa"


# A batch that cannot be loaded, from before a change ------------------------------------------------------------------


def failed_before_a_change() -> SwitchBench:
    """A statement failed; then the topic asks for appended rows. One more window waits, and one comes later."""
    bench = loaded(UPSERT, waiting=1)
    bench.fail()
    bench.load()
    bench.rule = APPEND
    bench.more()
    propose_resume_table(bench.store, A).apply()
    bench.load()
    parked = bench.table().parked
    assert parked is not None
    assert (parked.reason, bench.how()) == ("statement_failed", "s")
    assert "to load first: 2 rows of 2 files" in bench.waits()
    return bench


def test_a_batch_from_before_a_change_is_retried_as_before() -> None:
    bench = failed_before_a_change()
    bench.mend()
    bench.load()
    bench.cycle(APPEND)
    assert bench.how() == "sssa"


def test_a_batch_from_before_a_change_is_skipped_and_the_change_takes_effect() -> None:
    bench = failed_before_a_change()
    entry = AuditEntry(0, "", 0, "applied by hand", "ann")
    propose_skip(bench.store.view("operator"), bench.warehouse.view("operator"), A, 2, entry).apply()
    bench.load()
    bench.cycle(APPEND)
    assert bench.offsets(A) == [0, 3]
    assert bench.how() == "sa"


def test_a_change_whose_first_statement_fails_is_taken_back_and_its_windows_are_appended() -> None:
    bench = loaded(APPEND)
    bench.rule = UPSERT
    bench.load()
    bench.fail()
    bench.cycle(UPSERT)
    assert bench.table().definition.failed is not None
    bench.rule = APPEND
    bench.mend()
    bench.load()
    bench.cycle(APPEND)
    assert (bench.how(), bench.waits()) == ("aaa", "")
    assert bench.table().definition.failed is None  # its files are loaded: nothing is left to skip
    with pytest.raises(Refused):
        propose_skip(bench.store, bench.warehouse, A, 1, AuditEntry(0, "", 0))


def test_a_table_that_is_parked_records_its_change_when_it_goes_on() -> None:
    bench = loaded(APPEND, waiting=1)
    path = table_state_path(A)
    state.change(bench.store, TableState, path, lambda now: park(now, ParkReason.OPERATOR, "by hand", 1))
    bench.rule = UPSERT
    bench.load()
    assert bench.positions() == {}
    propose_resume_table(bench.store, A).apply()
    bench.load()
    bench.cycle(UPSERT)
    assert bench.how() == "aas"


# States of an earlier release -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", [APPEND, UPSERT])
def test_a_table_of_an_earlier_release_goes_on_as_its_topic_asks(asked: StatementRule) -> None:
    bench = loaded(UPSERT, waiting=1)
    path = table_state_path(A)
    entry = bench.store.get(path)
    document = json.loads(entry.data)
    assert document["statements"].pop("appended") is False
    document["statements"]["of_a_later_release"] = 7
    del document["format"], document["checksum"]
    earlier = codec.decode(TableState, document)
    bench.store.swap(path, codec.dumps(earlier), entry.generation)
    assert in_force(bench.table()) is None
    assert bench.table().definition.statements == TableStatements(UPSERT, 1, extra={"of_a_later_release": 7})
    bench.rule = asked
    bench.load()
    assert (bench.how(), bench.positions()) == ("sa" if asked is APPEND else "ss", {})
    assert in_force(bench.table()) == asked
    assert json.loads(bench.store.get(path).data)["statements"]["of_a_later_release"] == 7
    other = UPSERT if asked is APPEND else APPEND
    bench.rule = other
    bench.load()
    assert bench.positions() == {f"{TOPIC}/0": (1, 2)}
