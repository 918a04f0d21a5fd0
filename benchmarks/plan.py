"""The cost of planning a cycle of a large installation from a cold start: ``make bench-plan``.

50,000 committed files of 11,200 topic-partitions wait for 400 tables (`plan_state`), in fake-gcs-server. Each
measurement is a separate process. Seconds are those of the call, and memory is the process's high-water mark. The
broker answers from memory. Results are written to ``benchmarks/results/plan.json``.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import google_crc32c

from benchmarks import plan_state
from benchmarks.measure import REPOSITORY
from kbq_assets.adapters.gcs import open_gcs_store
from kbq_assets.adapters.google.auth import GoogleAccess
from kbq_assets.core.config.settings import parse_settings
from kbq_assets.core.protocol.offsets import BrokerOffsets, TopicDescription, TopicPartition
from kbq_assets.core.topics.source_list import parse_source_list
from kbq_assets.definitions import Adapters, Parts
from kbq_assets.pipelines.extraction import extract
from kbq_assets.pipelines.loading import load
from kbq_assets.pipelines.protocol.state_cache import StateCache
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets_tests.fakes.platform import with_ports

WORK = REPOSITORY / ".kbq" / "bench-plan"
RESULT = REPOSITORY / "benchmarks" / "results" / "plan.json"
BUCKET = "bench"
#: The limits in the design.
BARS = {
    "load_plan_seconds": 20.0,
    "extract_plan_seconds": 5.0,
    "extraction_tick_seconds": 10.0,
    "check_tick_seconds": 10.0,
    "peak_mb": 1000.0,
}


class Broker:
    """A broker with 11,200 partitions, each with records to read."""

    def cluster_id(self) -> str:
        return plan_state.CLUSTER

    def topics(self) -> Mapping[str, TopicDescription]:
        return {
            topic: TopicDescription(topic, plan_state.topic_id(topic), plan_state.PARTITIONS)
            for topic in plan_state.topics()
        }

    def offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, BrokerOffsets]:
        return {tp: BrokerOffsets(0, 200 * plan_state.ROWS) for tp in partitions}

    def offsets_for_time(
        self, partitions: Collection[TopicPartition], timestamp_ms: int
    ) -> Mapping[TopicPartition, int]:
        return dict.fromkeys(partitions, 200 * plan_state.ROWS)

    def held_back(self, stable: Mapping[TopicPartition, int], before_ms: int) -> Mapping[TopicPartition, int]:
        return {}


class QuietBroker(Broker):
    """A broker with the same partitions and nothing to read."""

    def __init__(self) -> None:
        self._ends = {tp: (windows[-1] + 101) * plan_state.ROWS for tp, windows in plan_state.positions()}

    def offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, BrokerOffsets]:
        return {tp: BrokerOffsets(0, self._ends[tp]) for tp in partitions}


def load_plan(store: ObjectStore) -> dict[str, float]:
    """Plan the next batch of each table twice, as a sensor does that looks again."""
    cache = StateCache(store)
    cold, batches = _timed(lambda: load.plan(store, cache=cache))
    warm, again = _timed(lambda: load.plan(store, cache=cache))
    files = [sum(len(batch.files) for batch in found) for found in (batches, again)]
    assert len(batches) == plan_state.TABLES and files[0] == files[1], files
    return {"load_plan_seconds": cold, "load_plan_again_seconds": warm, "batches": len(batches)}


def extract_plan(store: ObjectStore) -> dict[str, float]:
    """Plan the units of all partitions."""
    sources = parse_source_list("shop.*\n", "sources")
    seconds, planned = _timed(lambda: extract.plan(store, Broker(), sources))
    assert len(planned.units) == plan_state.TOPICS * plan_state.PARTITIONS, planned.stops[:3]
    return {"extract_plan_seconds": seconds, "units": len(planned.units)}


def prune(store: ObjectStore) -> dict[str, float]:
    """Do what an extraction does before it plans, if nothing has changed."""
    return {"repair_and_prune_seconds": _timed(lambda: extract.repair_and_prune(store))[0]}


def ticks(store: ObjectStore) -> dict[str, float]:
    """Run ticks of Dagster's sensors when everything is read. The extraction sensor marks every commit, which is the
    most that it does. The check sensor runs all checks, as the notice sensor does every minute."""
    import dagster as dg

    from kbq_assets.defs.extraction.engine import ENGINE

    engine = dg.ResourceDefinition.hardcoded_resource(None)
    definitions = _quiet_parts(store).definitions(resources={ENGINE: engine})
    found: dict[str, float] = {}
    with dg.DagsterInstance.ephemeral() as instance:
        for key, name in (("extraction", "extraction"), ("check", "check"), ("check_again", "check")):
            sensor = definitions.resolve_sensor_def(f"{name}_sensor")
            with dg.build_sensor_context(instance=instance, definitions=definitions) as context:
                found[f"{key}_tick_seconds"], result = _timed(partial(sensor, context))
            assert not result.run_requests, result
    return found


def _quiet_parts(store: ObjectStore) -> Parts:
    """The same parts as in `kbq ui`, over ``store``, without those that no sensor uses."""
    home, broker = WORK / "home", QuietBroker()
    home.mkdir(parents=True, exist_ok=True)
    (home / "topics.txt").write_text("shop.*\n")
    settings = parse_settings({"KBQ_HOME": str(home), "KBQ_SOURCE_TOPICS": str(home / "topics.txt")})
    return with_ports(
        Parts(Adapters(settings)),
        store=lambda: store,
        load_store=lambda: store,
        offsets=lambda: broker,
        source=_unused,
        warehouse=_unused,
        engine=_unused,
        expected=_unused,
    )


def _unused() -> Any:
    raise AssertionError("no sensor asks for it")


MEASURED: dict[str, Callable[[ObjectStore], dict[str, float]]] = {
    "load_plan": load_plan,
    "extract_plan": extract_plan,
    "prune": prune,
    "ticks": ticks,
}


def _timed(call: Callable[[], Any]) -> tuple[float, Any]:
    started = time.monotonic()
    result = call()
    return round(time.monotonic() - started, 3), result


def measure_here(name: str, endpoint: str) -> None:
    """Run one measurement in this process, and print it as JSON."""
    found = MEASURED[name](open_gcs_store(f"gs://{BUCKET}/staging", GoogleAccess("anonymous", endpoint)))
    usage = resource.getrusage(resource.RUSAGE_SELF)
    cpu = round(usage.ru_utime + usage.ru_stime, 2)
    print(json.dumps({**found, "cpu_seconds": cpu, "peak_mb": round(usage.ru_maxrss / 1000, 1)}))


def measure(name: str, endpoint: str) -> dict[str, float]:
    """One measurement in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.plan", "--measure", name, "--endpoint", endpoint]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name} failed:\n{done.stderr[-3000:]}")
    result: dict[str, float] = json.loads(done.stdout)
    print(f"  {name}: {result}", flush=True)
    return result


@contextmanager
def server() -> Iterator[str]:
    """A fake-gcs-server with the freshly written state."""
    from kbq_assets_tests.fixtures.local_stack import free_ports
    from kbq_assets_tests.google.install import fake_gcs_server
    from kbq_assets_tests.google.processes import ServerProcess

    shutil.rmtree(WORK, ignore_errors=True)
    (REPOSITORY / ".kbq" / "installed").mkdir(parents=True, exist_ok=True)
    program = fake_gcs_server(REPOSITORY / ".kbq" / "installed", print)
    _write(WORK / "gcs")
    (port,) = free_ports(1)
    endpoint = f"http://127.0.0.1:{port}"
    options = ("-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-log-level", "warn")
    folder = ("-backend", "filesystem", "-filesystem-root", str(WORK / "gcs"))
    data = (*folder, "-public-host", f"127.0.0.1:{port}")
    ready = f"{endpoint}/storage/v1/b?project=bench"
    running = ServerProcess((*program.command, *options, *data), program.environment, WORK / "gcs.log", ready)
    running.start()
    try:
        yield endpoint
    finally:
        running.kill()
        shutil.rmtree(WORK, ignore_errors=True)


def _write(root: Path) -> None:
    """Write objects in fake-gcs-server's own format: a file with its metadata in an extended attribute (Linux only).

    Uploading so many objects would take many minutes.
    """
    root.mkdir(parents=True)
    (root / f"{BUCKET}.bucketMetadata").write_text(
        '{"VersioningEnabled":false,"DefaultEventBasedHold":false}'
    )
    for number, (path, data) in enumerate(plan_state.objects()):
        target = root / BUCKET / "staging" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        os.setxattr(target, "user.metadata", json.dumps(_metadata(data, number)).encode())


def _metadata(data: bytes, number: int) -> dict[str, Any]:
    md5 = base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
    return {
        "StorageClass": "STANDARD",
        "ContentType": "application/octet-stream",
        "Crc32c": base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode(),
        "Md5Hash": md5,
        "Etag": md5,
        "Created": "2026-01-01T00:00:00Z",
        "Updated": "2026-01-01T00:00:00Z",
        "Generation": 1_700_000_000_000_000 + number,
    }


def main() -> int:
    """Measure. Returns 1 if a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", choices=sorted(MEASURED))
    parser.add_argument("--endpoint", default="")
    options = parser.parse_args()
    if options.measure:
        measure_here(options.measure, options.endpoint)
        return 0
    from benchmarks.extraction import machine

    with server() as endpoint:
        parts = {name: measure(name, endpoint) for name in MEASURED}
    result = {
        "machine": {key: value for key, value in machine().items() if key != "peer"},
        "files": plan_state.FILES,
        "tables": plan_state.TABLES,
        "partitions": plan_state.TOPICS * plan_state.PARTITIONS,
        **{key: value for part in parts.values() for key, value in part.items() if key.endswith("_seconds")},
        "cpu_seconds": {name: part["cpu_seconds"] for name, part in parts.items()},
        "peak_mb": max(part["peak_mb"] for part in parts.values()),
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    missed = [f"{name} is {result[name]}, the bar {bar}" for name, bar in BARS.items() if result[name] > bar]
    print("\n".join(missed) or f"every bar is met: {RESULT}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
