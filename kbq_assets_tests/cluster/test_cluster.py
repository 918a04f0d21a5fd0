"""The same extraction on a standalone Spark cluster: code shipped with the job, workers killed and stopped."""

from __future__ import annotations

import base64
import contextlib
import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil
import pytest

from kbq_assets.core.offsets import TopicPartition
from kbq_assets_tests.cluster.runs import DAGSTER, Start
from kbq_assets_tests.cluster.standalone import SECRET, Cluster, base_python
from kbq_assets_tests.fakes.registry_server import Answer, registry_server
from kbq_assets_tests.fixtures.local_stack import free_ports
from kbq_assets_tests.google.servers import GcsServer
from kbq_assets_tests.integration.world import Producers, Registered, World

pytestmark = [
    pytest.mark.slow,
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.google,
    pytest.mark.skipif(sys.platform != "linux", reason="a second worker needs 127.0.0.2"),
]

PARTITIONS, RECORDS = 4, 95_000


@pytest.fixture(scope="module")
def order(producers: Producers) -> Registered:
    """What is in the topic."""
    return producers.register(("x", "long"))


@pytest.fixture(scope="module")
def topic(producers: Producers, order: Registered) -> str:
    """A topic of `PARTITIONS` times `RECORDS` records: two tasks at a time, of three windows each."""
    topic = producers.broker.create_topic(PARTITIONS)
    for partition in range(PARTITIONS):
        tp = TopicPartition(topic, partition)
        producers.produce(tp, [order.value(x=n) for n in range(RECORDS)], "row:shop.orders")
    return topic


@pytest.fixture
def settings(on_cluster: Mapping[str, str]) -> dict[str, str]:
    """Settings of a run in small windows; tests add theirs."""
    return {"KBQ_WINDOW_RECORDS": "10000", **on_cluster}


@pytest.fixture
def new_world(
    producers: Producers, topic: str, settings: dict[str, str], tmp_path: Path
) -> Callable[[], World]:
    """Make a world that reads the topic."""
    sources = f"{topic} dataset=shop table=orders\n"
    return lambda: World(tmp_path / "home", producers, sources=sources, environ=settings)


def check(world: World) -> None:
    """All that was produced is there once."""
    assert world.finish().totals()["loaded"] == PARTITIONS * RECORDS


def test_the_workers_own_python_does_not_know_this_project() -> None:
    found = subprocess.run(
        [base_python(), "-c", "import kbq_assets"], cwd="/", capture_output=True, check=False
    )
    assert b"No module named 'kbq_assets'" in found.stderr


def test_both_workers_extract_with_what_came_with_the_job_and_tell_no_secret(
    new_world: Callable[[], World],
    settings: dict[str, str],
    order: Registered,
    cluster: Cluster,
    gcs_server: GcsServer,
    start: Start,
    tmp_path: Path,
) -> None:
    (tmp_path / "password").write_text(f"{cluster.secret}\n")
    [ui] = free_ports(1)
    answers = {f"/schemas/ids/{order.schema_id}": Answer.of({"schema": json.dumps(order.schema)})}
    with registry_server(answers) as registry:
        settings |= {
            "KBQ_STAGING": f"gs://{gcs_server.new_bucket()}/staging",
            "KBQ_GCS_ENDPOINT": gcs_server.endpoint,
            "KBQ_EXTRACT_CREDENTIALS": "anonymous",
            "KBQ_LOAD_CREDENTIALS": "anonymous",
            "KBQ_REGISTRY_URL": registry.url,
            "KBQ_REGISTRY_USERNAME": "kbq",
            "KBQ_REGISTRY_PASSWORD": f"env:{SECRET}",
            "KBQ_KAFKA_SASL_PASSWORD": f"file:{tmp_path / 'password'}",
            "KBQ_SPARK_CONF_spark.ui.enabled": "true",
            "KBQ_SPARK_CONF_spark.ui.port": str(ui),
        }
        world = new_world()
        started = time.time()
        run = start(world)
        run.wait_until(run.something_is_staged)
        seen = {**page(f"http://127.0.0.1:{ui}/environment/"), **command_lines()}
        assert run.exit_code() == 0, run.said
    ended = run.events("TaskEnd")
    assert {event["Task End Reason"]["Reason"] for event in ended} == {"Success"}
    assert {event["Task Info"]["Host"] for event in ended} == {"127.0.0.1", "127.0.0.2"}
    # The kernels that came with the job are used: none was compiled.
    kernels = [path.stat().st_mtime for path in cluster.folder.rglob("*.nbc")]
    assert 0 < max(kernels) < started
    # Both had the password: each asked by itself.
    password = base64.b64encode(f"kbq:{cluster.secret}".encode()).decode()
    assert len(registry.authorizations) >= 2
    assert set(registry.authorizations) == {f"Basic {password}"}
    seen |= files_below(world.folder) | files_below(cluster.folder)
    assert [where for where, text in seen.items() if cluster.secret.encode() in text] == []
    # What is searched is what a secret would be in.
    assert sum(b"spark.archives" in text for text in seen.values()) >= 3
    check(world)


def test_a_task_of_dagsters_that_hangs_is_run_beside_itself_and_its_first_attempt_wakes_up_in_vain(
    new_world: Callable[[], World], settings: dict[str, str], cluster: Cluster, start: Start
) -> None:
    settings |= {
        # The slowest reader, in small batches: a task is still at work when its first window is there.
        "KBQ_READER": "librdkafka",
        "KBQ_KAFKA_MAX_PARTITION_FETCH_BYTES": "16384",
        "KBQ_KAFKA_FETCH_MAX_BYTES": "16384",
        "KBQ_KAFKA_MESSAGE_MAX_BYTES": "16384",
        "KBQ_SPARK_CONF_spark.speculation": "true",
        "KBQ_SPARK_CONF_spark.speculation.task.duration.threshold": "1s",
    }
    world = new_world()
    run = start(world, DAGSTER)
    run.wait_until(run.something_is_staged)
    sleepers = cluster.python_workers(0) or cluster.python_workers(1)
    assert sleepers
    for sleeper in sleepers:
        sleeper.send_signal(signal.SIGSTOP)
    try:
        assert run.exit_code() == 0, run.said
    finally:
        for sleeper in sleepers:
            with contextlib.suppress(psutil.NoSuchProcess):
                sleeper.send_signal(signal.SIGCONT)
    assert any(event["Task Info"]["Speculative"] for event in run.events("TaskEnd"))
    check(world)


def test_a_killed_worker_and_killed_processes_of_the_other_lose_and_double_nothing(
    new_world: Callable[[], World], cluster: Cluster, start: Start
) -> None:
    """The last test: it leaves a worker less."""
    world = new_world()
    run = start(world)
    run.wait_until(lambda: run.something_is_staged() and cluster.python_workers(1))
    [executor] = cluster.executors(0)
    victims = [executor, *cluster.python_workers(1)]
    assert len(victims) > 1
    cluster.workers[0].kill()
    for victim in victims:
        victim.kill()
    # Spark runs their tasks again, on the worker that is left.
    assert run.exit_code() == 0, run.said
    assert any(event["Task End Reason"]["Reason"] != "Success" for event in run.events("TaskEnd"))
    check(world)


def page(url: str) -> dict[str, bytes]:
    """A page of Spark's UI, by its address."""
    with urllib.request.urlopen(url, timeout=60) as reply:
        return {url: reply.read()}


def command_lines() -> dict[str, bytes]:
    """Of all processes, by their ids."""
    found = psutil.process_iter(["cmdline"])
    return {f"process {p.pid}": " ".join(p.info["cmdline"] or ()).encode() for p in found}


def files_below(folder: Path) -> dict[str, bytes]:
    """What was written, but for the unpacked archive and the archive."""
    paths = (p for p in folder.rglob("*") if p.is_file() and not p.name.endswith(".tar.gz"))
    return {str(path): path.read_bytes() for path in paths if "packages" not in path.parts}
