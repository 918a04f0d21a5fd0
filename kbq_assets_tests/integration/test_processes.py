"""`KBQ_SPARK_MASTER=processes[n]` with a real broker: no Java, no Spark, and the same rows, whatever is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets_tests.integration.world import World

pytestmark = pytest.mark.kafka

#: `kbq`, which then says what it has imported of Spark.
PROGRAM = """
import sys
from kbq_assets.definitions import main
try:
    main()
finally:
    print("imported:", sorted({"pyspark", "py4j", "dagster"} & sys.modules.keys()), file=sys.stderr)
"""
REPOSITORY = Path(__file__).resolve().parents[2]


def extract(world: World, processes: int) -> subprocess.Popen[str]:
    """`kbq extract`, where no Java is found."""
    environ = {
        **os.environ,
        **world.environ,
        "PYTHONPATH": str(REPOSITORY),
        "KBQ_SPARK_MASTER": f"processes[{processes}]",
        "KBQ_WINDOW_RECORDS": "100",
        "JAVA_HOME": str(world.folder / "none"),
    }
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "extract", "--json"],
        cwd=world.folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def produce(world: World, partitions: int, count: int) -> None:
    """Records in each partition of a new topic."""
    order, first = world.producers.register(("x", "long")), world.topic(partitions=partitions)
    for partition in range(partitions):
        tp = TopicPartition(first.topic, partition)
        world.producers.produce(tp, [order.value(x=n) for n in range(count)], "row:shop.orders")


def test_an_extraction_needs_neither_java_nor_spark(world: World) -> None:
    produce(world, partitions=3, count=50)
    run = extract(world, processes=2)
    output, errors = run.communicate(timeout=600)
    assert run.returncode == 0, errors
    assert '"records": 150' in output
    assert "imported: []" in errors
    assert world.finish().totals()["loaded"] == 150


@pytest.mark.parametrize(
    "victim",
    [
        pytest.param("worker", marks=pytest.mark.thorough),
        pytest.param("server", marks=pytest.mark.thorough),
        "driver",
    ],
)
def test_a_killed_process_loses_and_doubles_nothing(world: World, victim: str) -> None:
    produce(world, partitions=4, count=2_000)
    run = extract(world, processes=2)
    driver = psutil.Process(run.pid)
    family = [driver]
    # A run that has ended before it could be killed shows nothing, and harms nothing.
    while len(family) < 3 and run.poll() is None:
        time.sleep(0.005)
        try:
            family = [driver, *driver.children(recursive=True)]
        except psutil.NoSuchProcess:
            break
    if len(family) >= 3:
        {"driver": driver, "server": family[1], "worker": family[2]}[victim].kill()
    run.communicate(timeout=600)
    if victim == "driver":
        _, alive = psutil.wait_procs(family, timeout=600)
        assert alive == []
    assert world.finish().totals()["loaded"] == 8_000
