"""With `gate=check:NAME`, the next batch waits for an evaluation of the orchestrator's check that saw the last one."""

from __future__ import annotations

import pytest

from kbq_assets.core.errors import ConfigurationError, Unavailable
from kbq_assets.core.extraction.units import WindowLimits
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.loading.tables import TableOptions
from kbq_assets.core.ordering import transitions
from kbq_assets.core.ordering.table_order import AuditEntry
from kbq_assets.core.protocol.names import table_state_path
from kbq_assets.pipelines.loading.load import LoadOptions, LoadPorts, LoadReport, load
from kbq_assets.pipelines.ordering.decisions import decide
from kbq_assets.pipelines.protocol import state
from kbq_assets.ports.asset_checks import AssetChecks
from kbq_assets_tests.fakes.asset_checks import FakeAssetChecks
from kbq_assets_tests.pipelines.bench import SETTINGS, A, B, Bench

GATED = SETTINGS.with_options(order="offset", gate="check:whole")


class CheckedBench(Bench):
    """Its table is gated by the check `whole`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.checks = FakeAssetChecks()

    def cycle(self, *schemas: int, checks: AssetChecks | str | None = "own") -> LoadReport:
        """More records, and a load after every pause is over."""
        self.produce(*schemas)
        if schemas:
            self.extract()
        self.store.time_ms += 300_000
        ports = LoadPorts(
            self.store.view("loader"),
            self.warehouse.view("loader"),
            self.clock,
            checks=self.checks if isinstance(checks, str) else checks,
        )
        topics = lambda names: dict.fromkeys(names, self.settings)  # noqa: E731
        return load(ports, LoadOptions(lambda table, names: TableOptions(), topics=topics))

    def now(self) -> tuple[int, int, str]:
        """Rows, the last validated batch, and why the table is parked."""
        found = state.read(self.store, TableState, table_state_path(A)).value
        return len(self.offsets(A)), found.order.validated, found.parked.error if found.parked else ""


def gated(**options: str) -> CheckedBench:
    return CheckedBench(settings=GATED.with_options(**options), window=WindowLimits(records=2))


def test_the_next_batch_waits_for_an_evaluation_after_the_last_one() -> None:
    bench = gated()
    bench.checks.evaluate(A, "whole", passed=True)  # of another day
    bench.cycle(1, 1)
    rows, validated, why = bench.now()
    assert (rows, validated) == (2, 0)
    assert "evaluate the asset check whole in Dagster" in why
    bench.cycle(1, 1)
    assert bench.now()[:2] == (2, 0)
    bench.checks.evaluate(A, "whole", passed=True)
    bench.cycle()
    assert bench.now()[:2] == (4, 1)
    bench.cycle(1, 1)
    assert bench.now()[:2] == (4, 1)  # that evaluation was of the first batch


def test_a_red_check_stops_its_table_alone_and_a_green_one_goes_on() -> None:
    bench = gated()
    bench.cycle(1, 1)
    bench.checks.evaluate(A, "whole", passed=False)
    bench.cycle(1, 3, 1)
    assert bench.now() == (2, 0, "batch 1 is applied and not validated: check:whole: 3 rows are bad")
    assert bench.offsets(B) == [3]
    bench.checks.evaluate(A, "whole", passed=True)
    bench.cycle()
    assert bench.now()[:2] == (4, 1)


def test_an_evaluation_that_is_running_decides_nothing() -> None:
    bench = gated()
    bench.cycle(1)
    bench.checks.evaluate(A, "whole", passed=None)
    bench.cycle(1)
    assert bench.now()[:2] == (1, 0)


def test_an_evaluation_that_began_before_the_batch_does_not_count() -> None:
    bench = gated()
    bench.checks.evaluate(A, "whole", passed=None)
    running = bench.checks.found[A, "whole"]
    bench.cycle(1)
    bench.checks.found[A, "whole"] = type(running)(running.number, passed=True)
    bench.cycle(1)
    assert bench.now()[:2] == (1, 0)


def test_a_load_outside_dagster_says_what_it_needs_and_spoils_nothing() -> None:
    bench = gated()
    bench.checks.evaluate(A, "whole", passed=True)
    bench.cycle(1, checks=None)
    assert "only a load in Dagster can read the asset check whole" in bench.now()[2]
    bench.cycle(1)
    assert "evaluate the asset check whole" in bench.now()[2]
    bench.checks.evaluate(A, "whole", passed=True)
    bench.cycle(1, checks=None)
    assert bench.now()[:2] == (1, 0)
    bench.cycle()
    assert bench.now()[1] == 1


def test_a_person_may_go_on_in_spite_of_a_check() -> None:
    bench = gated()
    bench.cycle(1)
    decide(bench.store, A, lambda now: transitions.go_on(now, AuditEntry(1, "", 0, "known", "me")))
    bench.cycle(1)
    assert bench.now()[:2] == (2, 1)


def test_a_check_comes_before_a_person() -> None:
    bench = gated(gate="person,check:whole")
    bench.cycle(1)
    assert "evaluate" in bench.now()[2]
    bench.checks.evaluate(A, "whole", passed=True)
    bench.cycle(1)
    assert "it waits for a person" in bench.now()[2]


def test_an_orchestrator_that_does_not_answer_fails_the_table_for_this_run_alone() -> None:
    bench = gated()
    bench.checks.fails = Unavailable("no database")
    assert {table.table: table.state for table in bench.cycle(1, 3).tables} == {A: "failed", B: "failed"}
    assert bench.now() == (1, 0, "")
    bench.checks.fails = None
    bench.cycle()
    assert "evaluate" in bench.now()[2]


@pytest.mark.parametrize("gate", ["check:", "check:a b", "check", "check:x,check:x"])
def test_a_gate_without_a_name_that_dagster_takes_is_refused(gate: str) -> None:
    with pytest.raises(ConfigurationError, match="gate="):
        SETTINGS.with_options(order="offset", gate=gate)
