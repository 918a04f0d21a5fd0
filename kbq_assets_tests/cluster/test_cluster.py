"""The same extraction on a standalone Spark cluster: code shipped with the job, workers killed and stopped."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil
import pytest

from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.extras.reconcile.values import NONE, SAMPLE
from kbq_assets_tests.cluster.conftest import WORKERS
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
#: Runs until one was caught at work: it may be over before anybody looks.
TRIES = 4


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
    sources, numbers = f"{topic} dataset=shop table=orders\n", itertools.count(1)
    return lambda: World(tmp_path / f"home-{next(numbers)}", producers, sources=sources, environ=settings)


def check(world: World, values: str = SAMPLE) -> None:
    """All that was produced is there once."""
    assert world.finish(values).totals()["loaded"] == PARTITIONS * RECORDS


def test_the_workers_own_python_does_not_know_this_project() -> None:
    found = subprocess.run(
        [base_python(), "-c", "import kbq_assets"], cwd="/", capture_output=True, check=False
    )
    assert b"No module named 'kbq_assets'" in found.stderr


def test_both_workers_extract_with_what_came_with_the_job_and_show_no_secret(
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
            "KBQ_QUIET_SECONDS": "0",
            "KBQ_GCS_ENDPOINT": gcs_server.endpoint,
            "KBQ_EXTRACT_CREDENTIALS": "anonymous",
            "KBQ_LOAD_CREDENTIALS": "anonymous",
            "KBQ_REGISTRY_URL": registry.url,
            "KBQ_REGISTRY_USERNAME": "kbq",
            "KBQ_REGISTRY_PASSWORD": f"env:{SECRET}",
            "KBQ_KAFKA_SASL_PASSWORD": f"file:{tmp_path / 'password'}",
            "KBQ_SPARK_CONF_spark.ui.enabled": "true",
            "KBQ_SPARK_CONF_spark.ui.port": str(ui),
            "KBQ_SPARK_CONF_spark.executorEnv.DB": cluster.secret,
            "KBQ_SPARK_CONF_spark.hadoop.metastore": f"jdbc:oracle:thin:me/{cluster.secret}@db",
        }
        world = new_world()
        started = time.time()
        run, url = start(world), f"http://127.0.0.1:{ui}/environment/"
        assert run.wait_until(lambda: b"spark.archives" in page(url))
        assert run.wait_until(lambda: cluster.executors(0) and cluster.executors(1))
        seen = {url: page(url), **command_lines()}
        run.wait_until(run.something_is_staged)
        seen |= command_lines()
        assert run.exit_code() == 0, run.said
    cluster.wait_until_idle()
    ended = run.events("TaskEnd")
    assert {event["Task End Reason"]["Reason"] for event in ended} == {"Success"}
    assert {event["Task Info"]["Host"] for event in ended} == {"127.0.0.1", "127.0.0.2"}
    # The kernels that came with the job are used: none was compiled.
    kernels = [path.stat().st_mtime for path in paths_below(cluster.folder) if path.suffix == ".nbc"]
    assert 0 < max(kernels) < started
    # Both had the password: each asked on its own.
    password = base64.b64encode(f"kbq:{cluster.secret}".encode()).decode()
    assert len(registry.authorizations) >= 2
    assert set(registry.authorizations) == {f"Basic {password}"}
    seen |= files_below(world.folder) | files_below(cluster.folder)
    assert [where for where, text in seen.items() if cluster.secret.encode() in text] == []
    # What is searched is what a secret would be in.
    assert {where for where, text in seen.items() if b"spark.archives" in text} >= {url}
    assert sum(b"spark.archives" in text for text in files_below(world.folder).values()) == 1  # its event log
    check(world, NONE)  # its registry is gone


def test_a_task_of_dagsters_that_hangs_is_run_twice_and_its_first_attempt_changes_nothing(
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
    for _ in range(TRIES):
        cluster.wait_until_idle()
        world = new_world()
        run = start(world, DAGSTER)
        run.wait_until(run.something_is_staged)
        sleepers = cluster.python_workers(0) or cluster.python_workers(1)
        signal_all(sleepers, signal.SIGSTOP)
        try:
            assert run.exit_code() == 0, run.said
        finally:
            signal_all(sleepers, signal.SIGCONT)
        check(world)
        if any(event["Task Info"]["Speculative"] for event in run.events("TaskEnd")):
            return
    pytest.fail("no task was ever run next to itself")


def test_a_killed_worker_and_killed_processes_of_the_other_lose_and_double_nothing(
    new_world: Callable[[], World], cluster: Cluster, start: Start
) -> None:
    """The last test: it leaves a worker less."""
    for _ in range(TRIES):
        cluster.start_workers(WORKERS)
        cluster.wait_until_idle()
        world = new_world()
        run = start(world)
        if not (
            run.wait_until(run.something_is_staged) and run.wait_until(lambda: cluster.python_workers(1))
        ):
            continue
        executors, workers = cluster.executors(0), cluster.python_workers(1)
        cluster.workers[0].kill()
        signal_all([*executors, *workers], signal.SIGKILL)
        # Spark runs their tasks again, on the worker that is left.
        assert run.exit_code() == 0, run.said
        check(world)
        ends = [event["Task End Reason"]["Reason"] for event in run.events("TaskEnd")]
        if executors and workers and set(ends) != {"Success"}:
            return
    pytest.fail("no task was ever killed")


def signal_all(processes: list[psutil.Process], number: signal.Signals) -> None:
    """Send a signal to those that still run."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def page(url: str) -> bytes:
    """A page of Spark's UI; empty if it does not exist yet."""
    try:
        with urllib.request.urlopen(url, timeout=60) as reply:
            return bytes(reply.read())
    except OSError:
        return b""


def command_lines() -> dict[str, bytes]:
    """Of all processes, by their ids."""
    found = psutil.process_iter(["cmdline"])
    return {f"process {p.pid}": " ".join(p.info["cmdline"] or ()).encode() for p in found}


def files_below(folder: Path) -> dict[str, bytes]:
    """What was written, but for the unpacked archive and the archive."""
    found = {}
    for path in paths_below(folder):
        if not path.name.endswith(".tar.gz") and "packages" not in path.parts:
            with contextlib.suppress(FileNotFoundError):  # Spark tidies up behind a run
                found[str(path)] = path.read_bytes()
    return found


def paths_below(folder: Path) -> Iterator[Path]:
    """All files; folders that go meanwhile have none."""
    for where, _, names in os.walk(folder):
        yield from (path for name in names if (path := Path(where, name)).is_file())
