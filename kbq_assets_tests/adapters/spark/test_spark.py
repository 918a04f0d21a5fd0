"""Spark's configuration, and the archive for its workers. Real clusters: kbq_assets_tests/cluster."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kbq_assets
from kbq_assets.adapters.spark import environment, session
from kbq_assets.adapters.spark.engine import DYNAMIC_ALLOCATION, SparkEngine
from kbq_assets.adapters.spark.session import (
    KEPT_EVENT_LOGS,
    prepare_environment,
    resident_options,
    spark_config,
)
from kbq_assets.core.config.parts import SparkSettings
from kbq_assets.core.errors import ConfigurationError, EngineEnded
from kbq_assets.core.extraction.units import Unit, UnitOutcome
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets_tests.fixtures.variables import Variables
from kbq_assets_tests.sources import parse_source

PACKAGE = Path(kbq_assets.__file__).parent
#: What drivers and loaders run, and no worker.
DRIVERS = {"catalog_files.py"}
LOADERS = {
    *(PACKAGE / "wire" / "files" / name for name in ("find_rows.py", "leave_out.py", "reencode.py")),
    *(PACKAGE / "wire" / "arrow").glob("*.py"),
}
SHIPPED = [
    *(
        path
        for name in ("core", "ports", "wire", "worker")
        for path in (PACKAGE / name).rglob("*.py")
        if path not in LOADERS
    ),
    *(path for path in (PACKAGE / "adapters").glob("*.py") if path.name not in DRIVERS),
    *(
        path
        for name in ("gcs", "kafka", "local_store", "protobuf", "registry")
        for path in (PACKAGE / "adapters" / name).rglob("*.py")
    ),
]
ON_CLUSTER = SparkSettings("spark://127.0.0.1:7077")
PACKED = SparkSettings("spark://127.0.0.1:7077", {"spark.archives": "a.zip,/tmp/kbq.tar.gz#environment"})
MODULE = "spark.python.daemon.module"


def imported(path: Path) -> Iterator[str]:
    """Names that a module imports, with their packages."""
    for node in ast.walk(parse_source(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_every_package_that_workers_import_is_packed() -> None:
    packed = {found.name.lower() for found in environment.distributions()}
    tops = {name.split(".")[0] for path in SHIPPED for name in imported(path)}
    tops -= {*sys.stdlib_module_names, "kbq_assets"}
    owners = importlib.metadata.packages_distributions()
    missing = {top for top in tops if not packed & {owner.lower() for owner in owners[top]}}
    assert missing == set()
    assert {"confluent_kafka", "google", "numba"} <= tops


@pytest.mark.thorough
def test_an_archive_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"was not written: .*none"):
        environment.write_environment(tmp_path / "kbq.tar.gz", {"kernels": tmp_path / "none"})
    assert os.listdir(tmp_path) == []


@pytest.mark.thorough
def test_an_archive_has_no_jars_and_runs_the_hosts_python(tmp_path: Path) -> None:
    environment.write_environment(tmp_path / "kbq.tar.gz", {})
    with tarfile.open(tmp_path / "kbq.tar.gz") as archive:
        names = set(archive.getnames())
        script = archive.extractfile("bin/python")
        assert script is not None
        assert f"exec python{sys.version_info.major}.{sys.version_info.minor} " in script.read().decode()
        assert archive.getmember("bin/python").mode == 0o755
    assert {"packages/pyspark/worker.py", "packages/kbq_assets/worker/task.py"} <= names
    assert [name for name in names if name.endswith((".jar", ".jsa"))] == []


@pytest.mark.parametrize(
    ("settings", "module"),
    [(SparkSettings("local[2]"), "ours"), (ON_CLUSTER, None), (PACKED, "ours")],
    ids=["local", "cluster", "packed"],
)
def test_our_daemon_is_used_where_workers_have_it(
    settings: SparkSettings, module: str | None, tmp_path: Path
) -> None:
    assert spark_config(settings, tmp_path, "ours").get(MODULE) == module


@pytest.mark.parametrize(
    ("settings", "python"),
    [
        (SparkSettings("local[2]"), sys.executable),
        (ON_CLUSTER, sys.executable),
        (PACKED, "./environment/bin/python"),
    ],
    ids=["local", "cluster", "packed"],
)
def test_workers_run_the_archives_python_where_one_is_shipped(
    settings: SparkSettings, python: str, tmp_path: Path, variables: Variables
) -> None:
    for name in ("PYSPARK_PYTHON", "SPARK_LOCAL_IP", "JAVA_HOME"):
        variables.pop(name, None)
    prepare_environment(settings, tmp_path)
    assert os.environ["PYSPARK_PYTHON"] == python


@pytest.mark.parametrize(
    ("settings", "is_shown"),
    [
        (SparkSettings("local[2]"), "false"),
        (SparkSettings("local[2]", {"spark.eventLog.enabled": "true"}), "true"),
        (ON_CLUSTER, "true"),
    ],
    ids=["local", "asked for", "cluster"],
)
def test_a_local_run_writes_an_event_log_only_if_one_is_asked_for(
    settings: SparkSettings, is_shown: str, tmp_path: Path
) -> None:
    assert spark_config(settings, tmp_path)["spark.eventLog.enabled"] == is_shown


def test_event_logs_of_the_latest_runs_stay(tmp_path: Path) -> None:
    events = tmp_path / "spark-events"
    events.mkdir()
    for age in range(KEPT_EVENT_LOGS + 3):
        log = events / f"local-{age}"
        log.touch()
        os.utime(log, (1_000_000 - age, 1_000_000 - age))
    (events / "rolled").mkdir()
    os.utime(events / "rolled", (0, 0))
    spark_config(SparkSettings("local[2]"), tmp_path)
    assert {log.name for log in events.iterdir()} == {f"local-{age}" for age in range(KEPT_EVENT_LOGS)}


def test_slots_follow_the_executors_that_are_there_but_options_are_read_once() -> None:
    read: list[Any] = []

    def read_options() -> Any:
        read.append(conf())
        return read[-1]

    context: Any = SimpleNamespace(defaultParallelism=2, getConf=read_options)
    engine = SparkEngine(context, lambda units: [])
    assert engine.idle_slots == 2
    context.defaultParallelism = 100
    assert engine.idle_slots == 100
    assert len(read) == 1


def conf(**options: str) -> Any:
    """A context's configuration."""
    return SimpleNamespace(get=lambda name, default: options.get(name.rpartition(".")[2], default))


def test_more_tasks_than_cores_wait_where_spark_adds_executors_for_them() -> None:
    context: Any = SimpleNamespace(defaultParallelism=2, getConf=lambda: conf(enabled="true"))
    assert SparkEngine(context, lambda units: []).idle_slots == 4
    assert SparkEngine(context, lambda units: [], slots=3).idle_slots == 3


def test_an_application_that_is_gone_is_an_error_with_the_way_on() -> None:
    class Gone:
        master = "local[2]"

        def getConf(self) -> Any:
            return conf()

        @property
        def defaultParallelism(self) -> int:
            raise ConnectionRefusedError("no JVM")

    context: Any = Gone()
    with pytest.raises(
        EngineEnded, match=r"on local\[2\] has ended: no JVM\n  next: start the command again"
    ):
        _ = SparkEngine(context, lambda units: []).idle_slots


@pytest.mark.parametrize(
    ("settings", "allocation"),
    [
        (SparkSettings("local[2]"), None),
        (ON_CLUSTER, "true"),
        (SparkSettings(ON_CLUSTER.master, {DYNAMIC_ALLOCATION: "false"}), "false"),
    ],
)
def test_a_resident_application_keeps_no_log_and_gives_idle_executors_back(
    settings: SparkSettings, allocation: str | None
) -> None:
    options = resident_options(settings)
    assert (options.get(DYNAMIC_ALLOCATION), options["spark.eventLog.enabled"]) == (allocation, "false")
    assert int(options["spark.ui.retainedJobs"]) < 1000


class FakeContext:
    """A context whose tasks end when they are let go; ``running`` of them have started. Nothing can be cancelled."""

    master = "spark://nowhere:7077"
    defaultParallelism = 2

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.running = 0

    def getConf(self) -> Any:
        """No options."""
        return conf()

    def setJobGroup(self, group: str, description: str) -> None:
        """Accepted."""

    def cancelJobGroup(self, group: str) -> None:
        raise ConnectionError("Spark is gone")

    def statusTracker(self) -> Any:
        stages: list[Any] = [
            None,
            SimpleNamespace(numActiveTasks=0),
            SimpleNamespace(numActiveTasks=self.running),
        ]
        return SimpleNamespace(getActiveStageIds=lambda: [0, 1, 2], getStageInfo=lambda stage: stages[stage])

    def parallelize(self, tasks: list[Any], parts: int) -> Any:
        def collect(task: Any) -> list[Any]:
            self.let_go.wait()
            return [task(units) for units in tasks]

        return SimpleNamespace(map=lambda task: SimpleNamespace(collect=lambda: collect(task)))


UNIT = Unit(OffsetRange(TopicPartition("t", 0), 0, 5), 1, TopicSettings())


def engine_of(context: FakeContext, quiet_seconds: float = 0.0) -> SparkEngine:
    found: Any = context
    return SparkEngine(
        found,
        lambda units: [UnitOutcome(unit) for unit in units],
        quiet_seconds=quiet_seconds,
        thread=threading.Thread,
    )


def test_an_engine_complains_while_it_has_tasks_and_none_is_running() -> None:
    context = FakeContext()
    engine = engine_of(context)
    assert engine.complaint() == ""
    engine.submit((UNIT,))
    assert "spark://nowhere:7077 provides no executor" in engine.complaint()
    context.running = 1
    assert engine.complaint() == ""
    context.running = 0
    context.let_go.set()
    assert engine.next_outcomes(60) == [UnitOutcome(UNIT)]
    assert engine.complaint() == ""
    assert engine_of(context, 3600.0).complaint() == ""


def test_a_short_wait_is_no_reason_to_complain() -> None:
    context = FakeContext()
    engine = engine_of(context, quiet_seconds=3600.0)
    engine.submit((UNIT,))
    assert engine.complaint() == ""
    context.let_go.set()


def test_a_cancelled_task_comes_back_once_whatever_becomes_of_it_and_of_spark() -> None:
    context = FakeContext()
    engine = engine_of(context)
    engine.submit((UNIT, UNIT))
    engine.cancel("time is up")
    assert engine.next_outcomes(60) == [UnitOutcome(UNIT, failure="time is up")] * 2
    assert engine.idle_slots == 2
    context.let_go.set()
    assert engine.next_outcomes(0.2) == []
    engine.submit((UNIT,))
    while not (outcomes := engine.next_outcomes(60)):
        pass
    assert (outcomes, engine.idle_slots) == ([UnitOutcome(UNIT)], 2)


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        (SparkSettings("local[2]"), "false"),
        (ON_CLUSTER, "true"),
        (SparkSettings(ON_CLUSTER.master, {"spark.ui.enabled": "false"}), "false"),
    ],
    ids=["local", "cluster", "switched off"],
)
def test_sparks_ui_is_on_where_there_is_a_cluster(
    settings: SparkSettings, shown: str, tmp_path: Path
) -> None:
    assert spark_config(settings, tmp_path)["spark.ui.enabled"] == shown


_RUN = """
import contextlib
import json
import signal
import sys
from pathlib import Path
import psutil
from kbq_assets.adapters.spark.session import spark_context
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.core.config.parts import SparkSettings
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.core.extraction.units import Unit, UnitOutcome
commands, found, options = [], [], json.loads(sys.argv[2])
on_ctrl_c = signal.getsignal(signal.SIGINT)
for more in ({}, {"spark.second": "yes"}):
    with spark_context(SparkSettings("local[1]", {**options, **more}), Path(sys.argv[1])) as context:
        assert context.parallelize([1], 1).map(str).collect() == ["1"]
        assert signal.getsignal(signal.SIGINT) is on_ctrl_c
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended, as a zombie too
                commands.append(process.cmdline())
        found.append({name: context.getConf().get(name) for name in [*options, "spark.second"]})
modules = sorted({"numpy", "pandas", "pyarrow"} & set(sys.modules))
print(json.dumps({"modules": modules, "commands": commands, "found": found}))
"""
#: Secrets in every place of Spark's options, by their names or their values.
CANARIES = {
    "spark.executorEnv.DB": "canary-1",
    "spark.hadoop.fs.s3a.secret.key": "canary-2",
    "spark.hadoop.metastore": "jdbc:oracle:thin:me/canary-3@db",
    "spark.hadoop.mirror": "https://me:canary-4@mirror",
    "spark.hadoop.dbPasword": "canary-5 \\ = : # ü😀",
    "spark.driver.extraJavaOptions": "-Xmn100m -Ddb.pass='canary-6 \"x\"'",
    "spark.redaction.regex": "mine",
    "spark.hadoop.mine": "canary-7",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
}


def test_another_python_is_for_the_hosts_of_clusters(tmp_path: Path, variables: Variables) -> None:
    for settings, python in ((ON_CLUSTER, "/opt/python"), (SparkSettings("local[2]"), sys.executable)):
        variables["PYSPARK_PYTHON"] = "/opt/python"
        prepare_environment(settings, tmp_path)
        assert os.environ["PYSPARK_PYTHON"] == python


def test_an_archive_of_classes_may_lie_in_a_folder_with_a_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = "-XX:SharedArchiveFile=/home/a b/spark.jsa"
    monkeypatch.setattr(session, "archive_options", lambda java: [archive])
    options = spark_config(SparkSettings("local[2]"), tmp_path)["spark.driver.extraJavaOptions"]
    assert shlex.split(options) == [*shlex.split(session.QUICK_JVM), archive]


@pytest.mark.thorough
def test_a_driver_imports_nothing_for_numbers_and_shows_no_secret(tmp_path: Path) -> None:
    temporary = tmp_path / "a b ü"
    temporary.mkdir()
    command = [sys.executable, "-c", _RUN, str(tmp_path), json.dumps(CANARIES)]
    variables = {**os.environ, "TMPDIR": str(temporary)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    assert done.returncode == 0, done.stderr
    reported = json.loads(done.stdout)
    assert reported["modules"] == []
    hidden = ("spark.driver.extraJavaOptions", "spark.redaction.regex")  # Spark and KBQ add theirs
    for found, second in zip(reported["found"], (None, "yes"), strict=True):
        expected = {name: value for name, value in CANARIES.items() if name not in hidden}
        assert {name: found[name] for name in expected} == expected
        assert found["spark.second"] == second
    assert any("SparkSubmit" in " ".join(each) for each in reported["commands"])
    assert "canary" not in str(reported["commands"])
    logs = [path.read_text() for path in (tmp_path / "spark-events").rglob("events_*")]
    assert len(logs) == 2
    for log in logs:
        assert "spark.hadoop.metastore" in log
        assert re.findall(r"canary-\d", log) == []
