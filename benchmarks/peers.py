"""The programs with which KBQ is compared, in separate environments in the benchmarks' work folder.

Spark's Kafka source and Avro writer are those of PySpark 4.0.0, because the connectors of 4.0.1 and 4.0.2 could not be
fetched completely when this was written. Kafka's own perf test is part of Kafka. As in `kbq local`, the Ivy that
PySpark includes fetches the jars.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from kbq_assets.adapters.java import JavaRuntime, find_java
from kbq_assets.local.stack import LocalStack
from kbq_assets.local.stack.ivy import ivy_jar

SPARK = "4.0.0"
KAFKA_TOOLS = "4.3.1"
_CONNECTORS = (
    f'<dependency org="org.apache.spark" name="spark-sql-kafka-0-10_2.13" rev="{SPARK}"/>',
    f'<dependency org="org.apache.spark" name="spark-avro_2.13" rev="{SPARK}"/>',
)
_TOOLS = (f'<dependency org="org.apache.kafka" name="kafka-tools" rev="{KAFKA_TOOLS}" transitive="false"/>',)
_CONNECT = tuple(
    f'<dependency org="org.apache.kafka" name="{name}" rev="{KAFKA_TOOLS}"/>'
    for name in ("connect-runtime", "connect-file")
)
#: Libraries that PySpark includes. Two versions on one class path are incompatible.
_SHIPPED = ("hadoop-", "scala-library", "slf4j-", "snappy-java", "lz4-java", "jsr305", "spark-tags")


@dataclass(frozen=True)
class Peers:
    """``python`` is an interpreter with PySpark 4.0, ``connectors`` are its jars. ``tools`` and ``connect`` are the
    class paths of Kafka's perf test and Kafka Connect."""

    python: Path
    connectors: tuple[Path, ...]
    tools: str
    connect: str
    java_home: Path

    @classmethod
    def none(cls) -> Peers:
        """No programs other than KBQ."""
        return cls(Path(), (), "", "", Path())


def prepare(work: Path, stack: LocalStack, console: Console, programs: Collection[str]) -> Peers:
    """Install the programs as needed: about 500 MB, a few minutes the first time."""
    java = find_java(work / "java")
    python, chosen, _ = spark(work, console) if "spark" in programs else (Path(), (), java)
    tools = _fetch(work, f"tools-{KAFKA_TOOLS}", _TOOLS, java.executable, console)
    connect: tuple[Path, ...] = ()
    if "connect" in programs:
        connect = _fetch(work, f"connect-{KAFKA_TOOLS}", _CONNECT, java.executable, console)
    kafka = stack.install().kafka_classpath
    return Peers(
        python, chosen, ":".join([kafka, *map(str, tools)]), ":".join([kafka, *map(str, connect)]), java.home
    )


def spark(work: Path, console: Console) -> tuple[Path, tuple[Path, ...], JavaRuntime]:
    """PySpark's Python, its connectors' jars, and Java, installed if missing."""
    java = find_java(work / "java")
    environment = work / f"spark-{SPARK}"
    python = environment / "bin" / "python"
    if not (environment / "complete").is_file():
        console.print(f"installing pyspark {SPARK} into {environment}")
        venv.create(environment, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "-q", f"pyspark=={SPARK}"], check=True)
        (environment / "complete").touch()
    connectors = _fetch(work, f"connectors-{SPARK}", _CONNECTORS, java.executable, console)
    return python, tuple(jar for jar in connectors if not jar.name.startswith(_SHIPPED)), java


def _fetch(
    work: Path, name: str, dependencies: Sequence[str], java: Path, console: Console
) -> tuple[Path, ...]:
    folder = work / name
    if not folder.is_dir():
        console.print(f"fetching {name}")
        module = work / f"{name}.xml"
        module.write_text(
            '<ivy-module version="2.0"><info organisation="kbq" module="bench"/>'
            '<configurations><conf name="default"/></configurations>'
            f'<dependencies defaultconf="default->default">{"".join(dependencies)}</dependencies></ivy-module>'
        )
        partial = work / f"{name}-partial"
        pattern = f"{partial}/[artifact]-[revision](-[classifier]).[ext]"
        command: list[str | Path] = [
            java,
            "-jar",
            ivy_jar(),
            "-ivy",
            module,
            "-cache",
            work / "ivy",
            "-retrieve",
            pattern,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"Ivy could not fetch {name}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        partial.rename(folder)
    return tuple(sorted(folder.glob("*.jar")))
