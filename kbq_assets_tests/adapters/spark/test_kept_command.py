"""Spark's JVM starts with the kept command only if Spark's scripts would choose the same one."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from kbq_assets.adapters.java import JavaRuntime
from kbq_assets.adapters.spark import session
from kbq_assets.adapters.spark.classes import archive_name, command_file, kept_command
from kbq_assets.adapters.spark.rehearsal import kept_options
from kbq_assets.adapters.spark.session import private_options
from kbq_assets.core.config.parts import SparkSettings
from kbq_assets_tests.fixtures.variables import Variables

LOCAL = SparkSettings("local[2]")


@pytest.fixture(autouse=True)
def plain(variables: Variables) -> Variables:
    """No variable that Spark's scripts read."""
    for name in [name for name in variables if name.startswith(("SPARK_", "HADOOP_", "YARN_", "PYSPARK_"))]:
        del variables[name]
    return variables


@pytest.mark.parametrize(
    ("settings", "variable", "is_plain"),
    [
        (LOCAL, "SPARK_LOCAL_IP", True),
        (LOCAL, "SPARK_LAUNCHER_OPTS", True),
        (LOCAL, "SPARK_CONF_DIR", False),
        (LOCAL, "SPARK_HOME", False),
        (LOCAL, "HADOOP_CONF_DIR", False),
        (LOCAL, "PYSPARK_SUBMIT_ARGS", False),
        (SparkSettings("local[2]", {"spark.jars": "mine.jar"}), "OTHER", False),
        (SparkSettings("spark://127.0.0.1:7077"), "OTHER", False),
    ],
)
def test_sparks_scripts_run_where_the_user_has_something_to_say(
    settings: SparkSettings, variable: str, is_plain: bool, plain: Variables
) -> None:
    plain[variable] = "x"
    assert session._is_plain(settings) is is_plain


def test_the_kept_command_runs_instead_of_sparks_scripts_and_shows_no_option() -> None:
    options = {"spark.master": "local[2]", "spark.driver.extraJavaOptions": "-Xmn320m"}
    with private_options(options, ["/java/bin/java", "-Xmx1g", "-cp", "/jars/a.jar:/jars/b c.jar"]):
        script = Path(os.environ["SPARK_HOME"], "bin", "spark-submit")
        start = script.read_text().splitlines()[-1]
        lines = Path(start.rpartition("@")[2]).read_text().splitlines()
        assert "PYSPARK_SUBMIT_ARGS" not in os.environ and os.access(script, os.X_OK)
    assert start.split()[-3:-1] == ["exec", "/java/bin/java"]
    own, log, *theirs = [line.strip('"') for line in lines]
    assert own == "-Xmn320m" and log.startswith("-Dlog4j2.configurationFile=")
    assert theirs == [
        *("-Xmx1g", "-cp", "/jars/a.jar:/jars/b c.jar"),
        *("-Dspark.master=local[2]", "org.apache.spark.api.python.PythonGatewayServer"),
    ]
    assert "SPARK_HOME" not in os.environ


def test_the_script_runs_in_a_folder_whose_name_has_spaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "a b"))
    (tmp_path / "a b").mkdir()
    with private_options({}, ["/bin/echo", "-Xmx1g"]):
        script = Path(os.environ["SPARK_HOME"], "bin", "spark-submit")
        done = subprocess.run([script], capture_output=True, text=True, check=False)
    assert done.stdout == f"@{script.parent.parent / 'java'}\n"


def test_sparks_scripts_run_where_temporary_files_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.X_OK)
    with private_options({"spark.master": "local[2]"}, ["/java/bin/java", "-Xmx1g"]):
        assert "SPARK_HOME" not in os.environ and "pyspark-shell" in os.environ["PYSPARK_SUBMIT_ARGS"]


def test_the_command_has_sparks_options_without_kbqs_and_without_a_module_that_warns() -> None:
    own = [*session.QUICK_JVM.split(), "-XX:ArchiveClassesAtExit=/a.jsa", "-Dlog4j2.configurationFile=/log"]
    found = kept_options(
        ["-Xmx1g", *own, "--add-modules=jdk.incubator.vector", "--add-opens=java.base/java.lang=X"]
    )
    assert found == ["-Xmx1g", "--add-opens=java.base/java.lang=X"]


def test_without_a_kept_command_there_is_none(tmp_path: Path, variables: Variables) -> None:
    variables["HOME"] = str(tmp_path)
    (tmp_path / "release").write_text(f"JAVA_VERSION={tmp_path}")
    java = JavaRuntime(tmp_path, 17, "test")
    assert kept_command(java) is None
    path = command_file(tmp_path / ".cache" / "kbq" / archive_name(java))
    path.parent.mkdir(parents=True)
    path.write_text('["-Xmx1g"]')
    assert kept_command(java) == ["-Xmx1g"]
