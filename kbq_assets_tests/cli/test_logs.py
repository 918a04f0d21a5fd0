"""Log lines of commands for Cloud Logging."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator

import pytest

from kbq_assets_tests.cli.conftest import Shell


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    """The root logger as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


def test_an_error_is_a_json_line_with_its_severity_and_next_step(run: Shell) -> None:
    result = run("--log-format", "json", "resume", "--table", "shop.nobody")
    assert result.exit_code == 1
    [line] = [json.loads(each) for each in result.stderr.splitlines() if each]
    assert (line["severity"], line["logger"]) == ("ERROR", "kbq")
    assert "shop.nobody" in line["message"] and "next:" in line["message"]
    assert line["time"].endswith("+00:00")


def test_warnings_of_the_pipelines_are_json_lines_too(run: Shell) -> None:
    run("--log-format", "json", "settings")
    try:
        raise ValueError("no value")
    except ValueError:
        info = sys.exc_info()
    record = logging.LogRecord("kbq.staging", logging.WARNING, "", 0, "two\nlines of %s", ("text",), info)
    (handler,) = logging.getLogger().handlers
    line = json.loads(handler.format(record))
    assert line["severity"] == "WARNING"
    assert line["message"].startswith("two\nlines of text\nTraceback")


def test_text_is_the_default(run: Shell) -> None:
    result = run("resume", "--table", "shop.nobody")
    assert result.exit_code == 1
    assert not result.stderr.startswith("{")
