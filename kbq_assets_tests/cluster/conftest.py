"""One cluster and one archive for all tests of this folder."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from kbq_assets.local.stack import LocalStack
from kbq_assets_tests.adapters.kafka.brokers import real_broker
from kbq_assets_tests.cluster.runs import KBQ, ClusterRun, Start
from kbq_assets_tests.cluster.standalone import SECRET, Cluster, standalone
from kbq_assets_tests.integration.world import Producers, World

WORKERS = 2


@pytest.fixture(scope="package")
def producers(local_stack: LocalStack) -> Iterator[Producers]:
    for broker in real_broker(local_stack.bootstrap_servers):
        yield Producers(broker, local_stack.registry_url)


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with standalone(tmp_path_factory.mktemp("cluster"), WORKERS) as running:
        yield running


@pytest.fixture(scope="package")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `kbq pack` makes of this environment."""
    path = tmp_path_factory.mktemp("packed") / "kbq.tar.gz"
    program = "from kbq_assets.definitions import main; main()"
    subprocess.run([sys.executable, "-c", program, "pack", str(path)], check=True)
    return path


@pytest.fixture
def on_cluster(cluster: Cluster, archive: Path) -> Mapping[str, str]:
    """Settings of a run on the cluster, which waits for both executors before its first task."""
    options = {
        "spark.archives": f"{archive}#environment",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.cores.max": str(WORKERS),
        "spark.scheduler.minRegisteredResourcesRatio": "1",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
        "spark.eventLog.compress": "false",
    }
    return {
        "KBQ_SPARK_MASTER": cluster.master,
        SECRET: cluster.secret,
        **{f"KBQ_SPARK_CONF_{name}": value for name, value in options.items()},
    }


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a run; it does not outlive the test."""
    runs: list[ClusterRun] = []

    def begin(world: World, program: str = KBQ) -> ClusterRun:
        runs.append(ClusterRun(world, program))
        return runs[-1]

    yield begin
    for run in runs:
        run.end()
