"""A worker compacts and fills a lake with the packages of `kbq pack` alone."""

from __future__ import annotations

import importlib.metadata
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kbq_assets.adapters.spark.environment import distributions
from kbq_assets.core.config.locations import LakeAddress
from kbq_assets.core.config.settings import parse_settings
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.ports.load_tasks import WriteTask
from kbq_assets.worker.compaction import RewriteOnWorker
from kbq_assets.worker.loading import WriteOnWorker
from kbq_assets_tests.adapters.iceberg.test_compaction import Lake
from kbq_assets_tests.adapters.iceberg.test_tasks import job_of
from kbq_assets_tests.contracts.compaction import all_files, view_of

pytestmark = pytest.mark.thorough

#: Runs a pickled task; the modules that its arguments name are not installed.
PROGRAM = """
import pickle, sys
class NotPacked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1:]:
            raise ModuleNotFoundError(f"{name} is not packed", name=name)
sys.meta_path.insert(0, NotPacked())
calls = pickle.load(sys.stdin.buffer)
sys.stdout.buffer.write(pickle.dumps([call(task) for call, task in calls]))
"""


def not_packed(*, with_lake: bool) -> list[str]:
    """Modules that are installed here and not in the archive."""
    packed = {found.name for found in distributions(with_lake=with_lake)} | {"kbq-assets"}
    installed = importlib.metadata.packages_distributions()
    return [name for name, owners in installed.items() if not packed & {*owners}]


def outcomes(missing: list[str], *calls: tuple[object, object]) -> list[Any]:
    """What a worker without these modules returns."""
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, *missing],
        input=pickle.dumps(calls),
        capture_output=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr.decode()
    found: list[Any] = pickle.loads(ran.stdout)
    return found


def test_workers_of_a_lake_compact_and_load_with_what_is_packed(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.load(1)
    lake.load(2)
    variables = {"KBQ_HOME": str(tmp_path), "KBQ_WAREHOUSE": f"iceberg:{tmp_path}/lake"}
    settings = parse_settings({**variables, "KBQ_SPARK_MASTER": "spark://host:7077"})
    here = parse_settings({**variables, "KBQ_SPARK_MASTER": "processes[2]"})
    missing = not_packed(with_lake=True)
    assert {"dagster", "duckdb", "pandas"} <= {*missing}
    load = WriteTask(job_of(tmp_path), lake.table.metadata_location)
    rewritten, written = outcomes(
        missing,
        (RewriteOnWorker(LakeAddress(folder=lake.folder), tmp_path), all_files(view_of(lake))),
        (WriteOnWorker.of(settings), load),
    )
    assert (rewritten.failure, rewritten.difference, rewritten.after.rows) == ("", "", 2)
    assert (written.error, written.rows, len(written.files)) == (None, 20, 2)
    errors = [
        each.error
        for each in outcomes(
            [*missing, "pyiceberg"], (WriteOnWorker.of(settings), load), (WriteOnWorker.of(here), load)
        )
    ]
    assert all(isinstance(error, ConfigurationError) for error in errors)
    on_cluster, on_machine = map(str, errors)
    assert "Spark's workers lack pyiceberg\n  next: run kbq pack" in on_cluster
    assert (
        "Spark" not in on_machine and "this machine lacks pyiceberg\n  next: install KBQ again" in on_machine
    )


def test_no_secret_goes_to_a_worker_with_a_load() -> None:
    secret = {"KBQ_REGISTRY_PASSWORD": "hunter2", "KBQ_KAFKA_SASL_PASSWORD": "hunter2"}
    settings = parse_settings({**secret, "KBQ_LOAD_CREDENTIALS": "file:/key", "KBQ_STAGING": "gs://bucket/x"})
    shipped = WriteOnWorker.of(settings)
    assert b"hunter2" in pickle.dumps(settings)
    assert b"hunter2" not in pickle.dumps(shipped)
    assert shipped.settings.staging_url == "gs://bucket/x"
    assert shipped.settings.google.load_credentials == "file:/key"


@pytest.mark.parametrize("name", ["pyarrow", "pyiceberg"])
def test_without_a_lake_the_archive_stays_small(name: str) -> None:
    assert name in not_packed(with_lake=False)
    assert name not in not_packed(with_lake=True)
