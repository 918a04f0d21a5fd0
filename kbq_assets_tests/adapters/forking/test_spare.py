"""A program runs in the spare, or in a process of its own, and sees no difference."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kbq_assets_tests.adapters.forking import command
from kbq_assets_tests.adapters.forking.program import MODULE
from kbq_assets_tests.fixtures.processes import is_gone, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no spare")


def run(case: Callable[[str], object], folder: Path) -> tuple[Any, str, str]:
    """The case's report, and what it printed before that and as errors."""
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [sys.executable, "-m", command.__name__, case.__name__, str(folder)],
        capture_output=True, text=True, check=True, env=buffered,
    )  # fmt: skip
    printed, brace, report = done.stdout.partition("{")
    return json.loads(brace + report), printed, done.stderr


def test_the_first_program_runs_in_the_spare_with_what_its_parent_has_now(tmp_path: Path) -> None:
    report, printed, errors = run(command.runs, tmp_path)
    first, second = report["first"], report["second"]
    assert report["spare"] == [first["pid"]] and second["pid"] != first["pid"]
    assert (first["imported"], second["imported"]) == (True, False)
    for each in (first, second):
        del each["pid"], each["imported"]
    assert first == second
    assert (first["variable"], first["folder"]) == ("a value", str(tmp_path))
    assert (first["input"], first["main"], first["codes"]) == ("/dev/null", MODULE, [None, 0, 0])
    assert (printed, errors) == ("printed once ", "")


def test_a_program_in_the_spare_ends_with_its_own_code(tmp_path: Path) -> None:
    report, _, errors = run(command.fails, tmp_path)
    assert report["codes"] == [[None, 7, 7], [None, 1, 1]]
    assert errors.count("RuntimeError: as told") == 1


def test_a_spare_that_nobody_needs_ends(tmp_path: Path) -> None:
    report, _, errors = run(command.is_not_needed, tmp_path)
    assert len(report["spare"]) == 1 and not report["left"] and not errors


def test_a_process_with_threads_gets_no_spare(tmp_path: Path) -> None:
    report, _, _ = run(command.has_threads, tmp_path)
    assert not report["spare"]
    assert (report["report"]["imported"], report["report"]["codes"]) == (False, [None, 0, 0])


def test_without_its_spare_a_program_runs_in_a_process_of_its_own(tmp_path: Path) -> None:
    report, _, _ = run(command.dies, tmp_path)
    assert report["report"]["codes"] == [None, 0, 0]
    assert report["report"]["pid"] != report["spare"] and not report["left"]


def test_a_program_in_the_spare_that_does_not_end_is_killed(tmp_path: Path) -> None:
    report, _, _ = run(command.hangs, tmp_path)
    assert report["code"] == -9 and not report["left"]


def test_a_spare_that_is_stopped_holds_up_nobody(tmp_path: Path) -> None:
    report, _, _ = run(command.is_stopped, tmp_path)
    assert not report["left"]


def test_the_end_is_seen_without_an_exit_code(tmp_path: Path) -> None:
    report, _, errors = run(command.ignores_children, tmp_path)
    assert (report["codes"], report["left"], errors) == ([None, 0, 0], [], "")


def test_a_program_that_cannot_print_ends_in_its_own_process(tmp_path: Path) -> None:
    report, printed, errors = run(command.cannot_print, tmp_path)
    assert (report["code"], printed, errors) == (0, "", "")


def test_signals_to_all_processes_leave_the_spare(tmp_path: Path) -> None:
    report, _, _ = run(command.is_asked_to_end, tmp_path)
    assert report["pid"] == report["spare"]


def test_a_spare_ends_with_its_parent(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", command.__name__, command.waits.__name__, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as parent:  # fmt: skip
        assert parent.stdout is not None
        [spare] = json.loads(parent.stdout.readline())["spare"]
        parent.kill()
    until(partial(is_gone, spare))
