"""Shared fixtures; Hypothesis without deadlines, its examples the same in every run; no silent skip in CI.

A change is judged by the same examples as the one before it: `--hypothesis-profile=explore` tries others.

KBQ_NO_SKIP=1 turns every skip into a failure: CI installs what tests need, so a skip there hides something.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

from kbq_assets_tests.sizes import HOURS_PROPERTY, SCHEDULES_PROPERTY, examples

pytest_plugins = [
    "kbq_assets_tests.fixtures.cpu_limit",
    "kbq_assets_tests.fixtures.current_folder",
    "kbq_assets_tests.fixtures.distribution",
    "kbq_assets_tests.fixtures.local_stack",
    "kbq_assets_tests.fixtures.memory_folder",
    "kbq_assets_tests.fixtures.variables",
    "kbq_assets_tests.google.fixtures",
    "kbq_assets_tests.browser.fixtures",
]

settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "kbq", settings.get_profile("explore"), derandomize=True, max_examples=examples(100)
)
settings.load_profile("kbq")

#: Until the end of the collection: each full collection of garbage would walk all modules loaded so far.
gc.disable()


def pytest_collection_finish() -> None:
    """Modules and tests stay: a full garbage collection need not walk their million objects each time."""
    gc.enable()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)  # tests make much garbage that counting references frees


def pytest_sessionfinish() -> None:
    gc.unfreeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and os.environ.get("KBQ_NO_SKIP") == "1" and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped where no skip is allowed: {report.longrepr}"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how much was simulated."""
    reports = terminalreporter.getreports("passed")
    reported = [(name, value) for report in reports for name, value in report.user_properties]
    counts = {
        key: sum(value for name, value in reported if name == key)
        for key in (SCHEDULES_PROPERTY, HOURS_PROPERTY)
    }
    if counts[SCHEDULES_PROPERTY]:
        schedules, hours = counts.values()
        terminalreporter.write_line(f"{schedules:,} simulated schedules passed: {hours:,.0f} simulated hours")
