"""Before it is forked, the spare has the modules that both its parent and the program in it need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no spare")

#: It is a process of its own because a process with threads, such as pytest's, gets no spare.
COMMAND = """
import json, os, sys
import psutil
from kbq_assets.core.config.settings import parse_settings
from kbq_assets.worker.engines import spare_forker
with spare_forker(parse_settings(os.environ)):
    spares = len(psutil.Process().children())
print(json.dumps([spares, list(sys.modules)]))
"""
BOTH = {"confluent_kafka.admin", "encodings.idna", "kbq_assets.adapters.local_store.store"}
SPARK, GCS = {"pyspark.sql"}, {"google.cloud.storage"}
#: Only workers need these.
WORKERS = {"numba", "numpy", "requests", "dagster"}


@pytest.mark.parametrize(
    ("master", "staging", "spares", "has"),
    [
        ("local[2]", "staging", 1, BOTH | SPARK),
        ("processes[2]", "staging", 1, BOTH),
        ("processes[2]", "gs://bucket/staging", 1, BOTH | GCS),
        ("spark://127.0.0.1:7077", "gs://bucket/staging", 0, set()),
    ],
)
def test_the_spare_shares_what_both_processes_need(
    master: str, staging: str, spares: int, has: set[str], tmp_path: Path
) -> None:
    variables = {"KBQ_SPARK_MASTER": master, "KBQ_STAGING": staging, "KBQ_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", COMMAND], env={**os.environ, **variables},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found, modules = json.loads(done.stdout)
    assert found == spares
    assert (BOTH | SPARK | GCS).intersection(modules) == has
    assert has & GCS or not WORKERS.intersection(modules)
