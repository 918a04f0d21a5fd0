"""The programs that read the same topics. Each is started from scratch and measured as a process tree."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from rich.console import Console

from benchmarks.measure import REPOSITORY, Usage, measure
from benchmarks.peers import Peers
from benchmarks.topics import BenchTopic, ensure_produced
from benchmarks.warm_cycle import COMMAND, measure_cycle
from kbq_assets.local.stack import LocalStack
from kbq_assets.worker import warm

CORES = 2
SPARK_MASTER = f"local[{CORES}]"
WORK = REPOSITORY / ".kbq" / "bench"

#: More than any contender writes.
_SCRATCH_BYTES = 1_536 * 1024 * 1024
_ZEROS = bytes(16 * 1024 * 1024)
#: The records that the first cycle of a resident application reads.
WARM_RECORDS = 10_000

Result: TypeAlias = tuple[Usage, dict[str, Any]]


class Missing(Exception):
    """A contender that is not installed on this machine."""


@dataclass(frozen=True)
class Bench:
    """The environment of the contenders."""

    stack: LocalStack
    peers: Peers
    warehouse: str = ""
    output: Path = WORK / "output"
    report: Path = WORK / "report.json"

    def __post_init__(self) -> None:
        """Prepare KBQ as an installation does: without the class archive, Spark's start takes 2 CPU s more."""
        warm.main()

    def clear(self) -> None:
        shutil.rmtree(self.output, ignore_errors=True)
        self.report.unlink(missing_ok=True)

    def settle(self) -> None:
        """Give each run the same memory for its files. Otherwise a virtual machine reclaims the pages that it returned
        to its host since the last run, which takes up to two seconds of system time."""
        scratch = self.output.with_name("scratch")
        with scratch.open("wb") as file:
            for _ in range(_SCRATCH_BYTES // len(_ZEROS)):
                file.write(_ZEROS)
        scratch.unlink()

    def run_kbq(self, topic: BenchTopic, backup: str = "false", master: str = SPARK_MASTER) -> Result:
        """`kbq extract`, including Spark's start."""
        self.output.mkdir(parents=True)
        self._sources.write_text(self._line(topic))
        usage = self._measure(
            "kbq",
            [sys.executable, "-m", "benchmarks.kbq_job", topic.name, self.report],
            {**self._environ(backup), "KBQ_SPARK_MASTER": master},
        )
        inside = json.loads(self.report.read_text())
        if (inside["rows"], inside.pop("tables")) != (topic.records, topic.tables):
            raise RuntimeError(f"KBQ staged {inside['rows']} rows of {topic.records}")
        return usage, inside

    def run_processes(self, topic: BenchTopic) -> Result:
        """The same extraction in processes of this machine, without Spark."""
        return self.run_kbq(topic, master=f"processes[{CORES}]")

    def run_resident(self, topic: BenchTopic) -> Result:
        """The same extraction as a cycle of an application that already runs."""
        self.output.mkdir(parents=True)
        small = BenchTopic(topic.kind, WARM_RECORDS)
        ensure_produced(self.stack, small, Console(stderr=True))
        lines, log = (self._line(small), self._line(topic)), WORK / "resident.log"
        return measure_cycle(self._environ("false"), *lines, topic.records, log), {}

    @staticmethod
    def _line(topic: BenchTopic) -> str:
        table = f"table={topic.kind.name}" if topic.tables == 1 else "route=record_name"
        return f"{topic.name} dataset=bench {table} event_date=ts\n"

    @property
    def _sources(self) -> Path:
        return self.output / "source-topics.txt"

    def _environ(self, backup: str) -> dict[str, str]:
        return {
            "KBQ_HOME": str(WORK / "kbq"),
            "KBQ_STAGING": str(self.output / "staging"),
            "KBQ_SOURCE_TOPICS": str(self._sources),
            "KBQ_KAFKA_BOOTSTRAP_SERVERS": self.stack.bootstrap_servers,
            "KBQ_REGISTRY_URL": self.stack.registry_url,
            "KBQ_SPARK_MASTER": SPARK_MASTER,
            "KBQ_BACKUP": backup,
            **({"KBQ_WAREHOUSE": self.warehouse} if self.warehouse else {}),
        }

    def run_load(self, topic: BenchTopic) -> Result:
        """`kbq load` of everything that `run_kbq` staged."""
        usage = self._measure("load", [*COMMAND, "load", "--json"], self._environ("false"))
        log = (WORK / "load.log").read_text()
        if f'\n  "rows": {topic.records},' not in log:
            raise RuntimeError(f"KBQ did not load {topic.records} rows: {log[-500:]}")
        return usage, {}

    def run_backup(self, topic: BenchTopic) -> Result:
        """The same extraction, with a verbatim copy of every record as backup."""
        return self.run_kbq(topic, backup="true")

    def run_replay(self, topic: BenchTopic, source: str) -> Result:
        """A replay that reads everything that `run_backup` read, from Kafka or from the backup."""
        command = [sys.executable, "-m", "benchmarks.kbq_job", topic.name, self.report, source]
        usage = self._measure("replay", command, self._environ("true"))
        inside = json.loads(self.report.read_text())
        if inside["rows"] != topic.records:
            raise RuntimeError(f"the replay staged {inside['rows']} rows of {topic.records}")
        return usage, inside

    def run_spark(self, topic: BenchTopic) -> Result:
        """Spark's Kafka source, from_avro and Avro writer."""
        arguments = WORK / "spark.json"
        given = {
            "master": f"local[{CORES}]",
            "jars": [str(jar) for jar in self.peers.connectors],
            "bootstrap_servers": self.stack.bootstrap_servers,
            "topic": topic.name,
            "schema": json.dumps(topic.kind.schema),
            "output": str(self.output),
        }
        arguments.write_text(json.dumps(given))
        environ = {"JAVA_HOME": str(self.peers.java_home), "SPARK_LOCAL_IP": "127.0.0.1"}
        job = REPOSITORY / "benchmarks" / "spark_job.py"
        usage = self._measure("spark", [self.peers.python, job, arguments, self.report], environ)
        return usage, json.loads(self.report.read_text())

    def run_perf_test(self, topic: BenchTopic) -> Result:
        """kafka-consumer-perf-test: reads and discards records on one thread."""
        command: list[str | Path] = [
            self.peers.java_home / "bin" / "java",
            *("-Xmx512m", "-cp", self.peers.tools, "org.apache.kafka.tools.ConsumerPerformance"),
            *("--bootstrap-server", self.stack.bootstrap_servers, "--topic", topic.name),
            *("--num-records", str(topic.records), "--timeout", "60000"),
        ]
        return self._measure("perf-test", command), {}

    def run_kcat(self, topic: BenchTopic) -> Result:
        """kcat with librdkafka. It prints nothing of a record, and verifies checksums as the others do."""
        kcat = shutil.which("kcat") or shutil.which("kafkacat")
        if kcat is None:
            raise Missing("kcat is not installed (Debian: apt-get install kcat)")
        options = ("-q", "-e", "-o", "beginning", "-f", "", "-X", "check.crcs=true")
        return self._measure(
            "kcat", [kcat, "-C", "-b", self.stack.bootstrap_servers, "-t", topic.name, *options]
        ), {}

    def run_python(self, topic: BenchTopic) -> Result:
        """confluent-kafka and fastavro in one process: decodes, adds columns, encodes."""
        self.output.mkdir(parents=True)
        arguments = [topic.name, json.dumps(topic.kind.schema), str(self.output)]
        command = [sys.executable, "-m", "benchmarks.python_job", self.stack.bootstrap_servers, *arguments]
        return self._measure("python", command), {}

    def run_connect(self, topic: BenchTopic) -> Result:
        """Kafka Connect's file sink: writes a line per value, decoded as text instead of Avro."""
        self.output.mkdir(parents=True)
        java = str(self.peers.java_home / "bin" / "java")
        arguments = [self.stack.bootstrap_servers, topic.name, str(topic.records), str(self.output)]
        command = [sys.executable, "-m", "benchmarks.connect_job", java, self.peers.connect, *arguments]
        return self._measure("connect", command), {}

    def _measure(
        self, name: str, command: list[str | Path] | list[str], environ: Mapping[str, str] | None = None
    ) -> Usage:
        return measure(command, WORK, WORK / f"{name}.log", environ)


@dataclass(frozen=True)
class Contender:
    """A program. ``writes`` says whether it keeps the records, ``routes`` whether it can distinguish tables."""

    run: Callable[[Bench, BenchTopic], Result]
    label: str
    writes: bool
    routes: bool = False


CONTENDERS: Mapping[str, Contender] = {
    "kbq": Contender(Bench.run_kbq, "KBQ", True, True),
    "processes": Contender(Bench.run_processes, "KBQ without Spark: processes", True, True),
    "resident": Contender(Bench.run_resident, "KBQ, a cycle of a resident application", True, True),
    "backup": Contender(Bench.run_backup, "KBQ with a backup of every record", True, True),
    "perf-test": Contender(Bench.run_perf_test, "kafka-consumer-perf-test: reads, forgets", False, True),
    "kcat": Contender(Bench.run_kcat, "kcat: reads, forgets", False, True),
    "spark": Contender(Bench.run_spark, "Spark: Kafka source, `from_avro`, Avro files", True),
    "connect": Contender(Bench.run_connect, "Kafka Connect's file sink: lines of text", True),
    "python": Contender(Bench.run_python, "confluent-kafka and fastavro: Avro files", True),
}


def try_version(command: list[str]) -> str:
    """The first line that a program prints about its version; empty if it is not installed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return (done.stdout + done.stderr).strip().partition("\n")[0]
