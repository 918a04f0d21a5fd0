"""Spark's JVM logs only errors, unless the user's options configure its log. It prints nothing to standard output."""

from __future__ import annotations

import logging
import os
import shlex
import subprocess
from pathlib import Path

import pytest
from py4j.java_gateway import GatewayClient

from kbq_assets.adapters.java import find_java
from kbq_assets.adapters.spark.classes import archive_options
from kbq_assets.adapters.spark.session import QUICK_JVM, hide_interrupts, private_options

JAVA_OPTIONS = "spark.driver.extraJavaOptions"
OWN = "-Dlog4j2.configurationFile=/mine.properties"


@pytest.mark.parametrize(("given", "theirs"), [("-Xmx1g", False), (f"-Xmx1g {OWN}", True), ("", False)])
def test_the_log_has_errors_alone_unless_options_configure_it(given: str, theirs: bool) -> None:
    with private_options({JAVA_OPTIONS: given}):
        arguments = shlex.split(os.environ["PYSPARK_SUBMIT_ARGS"])
        folder = Path(arguments[arguments.index("--properties-file") + 1]).parent
        java = (folder / "java").read_text().splitlines()
        level = "rootLogger.level=error" in (folder / "log4j2.properties").read_text()
    own = [line for line in java if "log4j2" in line]
    assert level
    assert ("/mine.properties" in own[0], len(own)) == (theirs, 1)


def test_java_prints_nothing_about_an_archive_that_does_not_match(tmp_path: Path) -> None:
    java = find_java(tmp_path / "none")
    archive = archive_options(java)
    if not archive:
        pytest.skip("this Java has no archive of classes")
    command = [str(java.executable), *QUICK_JVM.split(), *archive, "-cp", str(tmp_path), "-version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not done.stdout and "warning" not in done.stderr


class Interrupted:
    """A connection to the JVM during which the user presses Ctrl-C."""

    socket = None

    def send_command(self, command: str) -> str:
        raise KeyboardInterrupt


class Client(GatewayClient):  # type: ignore[misc]
    def _get_connection(self) -> Interrupted:
        return Interrupted()


def test_ctrl_c_prints_no_traceback_of_py4j(caplog: pytest.LogCaptureFixture) -> None:
    root = logging.getLogger()
    before = root.filters[:]
    try:
        hide_interrupts()
        with pytest.raises(KeyboardInterrupt):
            Client().send_command("c")
        logging.error("another error")
    finally:
        root.filters[:] = before
    assert [record.message for record in caplog.records] == ["another error"]
