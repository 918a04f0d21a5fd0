"""Spark's daemon is a fork of the standby, or loads the code itself; neither outlives the driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from kbq_assets.adapters.spark import session
from kbq_assets.adapters.spark.daemon import STANDBY
from kbq_assets.adapters.spark.session import spark_context
from kbq_assets.adapters.spark.standby import standby
from kbq_assets.core.config.parts import SparkSettings
from kbq_assets.worker import daemon
from kbq_assets_tests.adapters.spark import standing_by, waiting_driver
from kbq_assets_tests.fixtures.processes import is_gone, until
from kbq_assets_tests.fixtures.variables import Variables

SPARKS_ARGUMENT = "pyspark.worker"
OPTION = f"spark.executorEnv.{STANDBY}"


@pytest.fixture
def loaded(tmp_path: Path, variables: Variables) -> Path:
    """The file in which processes note that they load."""
    path = tmp_path / "loaded"
    path.touch()
    variables["LOADED"] = str(path)
    return path


@contextmanager
def sparks_daemon(folder: Path, environ: Mapping[str, str]) -> Iterator[tuple[subprocess.Popen[str], Any]]:
    """The daemon as Spark starts it, and what the process that serves reports."""
    command = [sys.executable, "-m", standing_by.MODULE, SPARKS_ARGUMENT]
    pipe = subprocess.PIPE
    path = os.pathsep.join(sys.path)
    with subprocess.Popen(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": path, **environ}, text=True,
        stdin=pipe, stdout=pipe, stderr=pipe,
    ) as started:  # fmt: skip
        assert started.stdout is not None
        yield started, json.loads(started.stdout.readline())


def test_sparks_daemon_is_a_fork_of_the_standby_with_the_environment_and_streams_from_spark(
    tmp_path: Path, loaded: Path
) -> None:
    with standby(standing_by.MODULE) as options:
        for number in (1, 2):  # Spark starts another daemon if the first one dies
            environ = {STANDBY: options[OPTION], "ONLY_SPARKS": f"value {number}"}
            with sparks_daemon(tmp_path, environ) as (started, report):
                assert report["parent"] not in (started.pid, os.getpid())
                assert report["variable"] == f"value {number}" and report["folder"] == str(tmp_path)
                assert report["argv"] == [SPARKS_ARGUMENT]
                output, errors = started.communicate()  # closes its standard input
                assert (output, errors) == ("", "an error\n")
            assert started.returncode == 0
            until(partial(is_gone, report["pid"]))
    assert loaded.read_text() == f"{report['parent']}\n"


def test_a_daemon_whose_standbyis_gone_loads_the_code_itself(tmp_path: Path, loaded: Path) -> None:
    with standby(standing_by.MODULE) as options:
        pass
    with sparks_daemon(tmp_path, {STANDBY: options[OPTION]}) as (started, report):
        assert report["pid"] == started.pid
        started.communicate()
    assert loaded.read_text().splitlines()[-1] == str(started.pid)


def test_a_daemon_whose_standby_dies_meanwhile_loads_the_code_itself(
    tmp_path: Path, loaded: Path, variables: Variables
) -> None:
    variables["DIES"] = standing_by.STANDBY
    with (
        standby(standing_by.MODULE) as options,
        sparks_daemon(tmp_path, {STANDBY: options[OPTION]}) as (started, report),
    ):
        assert report["pid"] == started.pid
        started.communicate()
    assert len(loaded.read_text().splitlines()) == 2


def test_a_daemon_outlives_its_standby_and_ends_with_spark(tmp_path: Path, loaded: Path) -> None:
    with (
        standby(standing_by.MODULE) as options,
        sparks_daemon(tmp_path, {STANDBY: options[OPTION]}) as (started, report),
    ):
        psutil.Process(report["parent"]).kill()
        assert started.poll() is None
        started.communicate()
        assert started.returncode == 0
        until(lambda: is_gone(report["pid"]))


def test_a_standby_ends_with_its_driver(loaded: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", waiting_driver.__name__],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as driver:  # fmt: skip
        assert driver.stdout is not None
        driver.stdout.readline()
        until(lambda: loaded.read_text().endswith("\n"))
        driver.kill()
    until(lambda: is_gone(int(loaded.read_text())))


def test_a_standby_that_does_not_end_is_killed(
    loaded: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("kbq_assets.adapters.forking.starting._END_SECONDS", 0.1)
    stack = ExitStack()
    with standby(standing_by.MODULE) as options:
        started, report = stack.enter_context(sparks_daemon(tmp_path, {STANDBY: options[OPTION]}))
    # It waits for the end of its daemon, which Spark has not stopped.
    assert is_gone(report["parent"]) and started.poll() is None
    stack.close()


def test_where_no_socket_fits_there_is_no_standby(
    tmp_path: Path, loaded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("x" * 120)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with standby(standing_by.MODULE) as options:
        assert options == {}
    assert loaded.read_text() == "" and list(deep.iterdir()) == []


LOCAL = SparkSettings("local[1]")


@pytest.mark.parametrize(
    ("settings", "python", "has_one"),
    [
        (LOCAL, sys.executable, True),
        (LOCAL, "/opt/python", False),
        (SparkSettings("spark://127.0.0.1:7077"), sys.executable, False),
        (SparkSettings("local[1]", {"spark.pyspark.python": "/opt/python"}), sys.executable, False),
        (SparkSettings("local[1]", {"spark.executorEnv.LD_PRELOAD": "mine.so"}), sys.executable, False),
        (SparkSettings("local[1]", {"spark.driver.memory": "2g"}), sys.executable, True),
    ],
)
def test_there_is_a_standby_if_the_daemon_would_run_here_with_the_same_python_and_variables(
    settings: SparkSettings, python: str, has_one: bool, loaded: Path, variables: Variables
) -> None:
    variables["PYSPARK_PYTHON"] = python
    for module, expected in ((standing_by.MODULE, has_one), ("", False)):
        with session._standby(settings, {session.DAEMON: module}) as found:
            assert (list(found) == [OPTION]) == expected


@pytest.mark.spark
@pytest.mark.thorough
def test_sparks_workers_are_forks_of_the_standby_and_all_end_with_the_context(tmp_path: Path) -> None:
    with spark_context(SparkSettings("local[1]"), tmp_path, daemon.MODULE) as context:
        [worker] = context.parallelize([1], 1).map(lambda _: os.getppid()).collect()
        serving = psutil.Process(worker)
        standing = serving.parent()
        assert standing is not None and standing.ppid() == os.getpid()
        assert daemon.MODULE in " ".join(standing.cmdline())
    until(lambda: is_gone(serving.pid))
    assert is_gone(standing.pid)


def test_stopping_does_not_wait_for_pysparks_server_of_accumulators() -> None:
    stopped: list[str] = []
    may_end = threading.Event()

    class Server:
        def shutdown(self) -> None:
            may_end.wait()
            stopped.append("accumulators")

    class Context:
        _accumulatorServer: Server | None = Server()

        def stop(self) -> None:
            if self._accumulatorServer is not None:
                self._accumulatorServer.shutdown()
            stopped.append("context")

    context: Any = Context()
    session._stop(context)
    assert stopped == ["context"]
    may_end.set()
    until(lambda: stopped == ["context", "accumulators"])
