"""What is set for Spark, and what is packed for its workers. Real clusters: kbq_assets_tests/cluster."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kbq_assets
from kbq_assets.adapters.spark import environment
from kbq_assets.adapters.spark.engine import SparkEngine
from kbq_assets.adapters.spark.session import prepare_environment, spark_config
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.settings import SparkSettings

PACKAGE = Path(kbq_assets.__file__).parent
#: What runs in workers; the catalogue is read by drivers.
DRIVERS = {"catalog_files.py"}
SHIPPED = [
    *(path for name in ("core", "ports", "wire", "worker") for path in (PACKAGE / name).rglob("*.py")),
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
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
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


def test_an_archive_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"was not written: .*none"):
        environment.write_environment(tmp_path / "kbq.tar.gz", {"kernels": tmp_path / "none"})
    assert os.listdir(tmp_path) == []


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
    settings: SparkSettings, python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYSPARK_PYTHON", "SPARK_LOCAL_IP", "JAVA_HOME"):
        monkeypatch.setenv(name, "")  # what is set below is undone after the test
        monkeypatch.delenv(name)
    prepare_environment(settings, tmp_path)
    assert os.environ["PYSPARK_PYTHON"] == python


def test_slots_follow_the_executors_that_are_there() -> None:
    context: Any = SimpleNamespace(defaultParallelism=2)
    engine = SparkEngine(context, lambda units: [])
    assert engine.idle_slots == 2
    context.defaultParallelism = 100
    assert engine.idle_slots == 100


_RUN = """
import sys
from pathlib import Path
from kbq_assets.adapters.spark.session import spark_context
from kbq_assets.core.settings import SparkSettings
with spark_context(SparkSettings("local[1]"), Path(sys.argv[1])) as context:
    assert context.parallelize([1], 1).map(str).collect() == ["1"]
print(sorted({"numpy", "pandas", "pyarrow"} & set(sys.modules)))
"""


def test_a_driver_imports_nothing_for_numbers_it_does_not_have(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _RUN, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
