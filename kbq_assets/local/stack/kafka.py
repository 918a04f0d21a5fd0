"""One Kafka node (KRaft: broker and controller in one) on loopback, configured for tests and demonstrations."""

from __future__ import annotations

import base64
import logging
import shutil
import subprocess
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from kbq_assets.adapters.java import JavaRuntime, property_escaped
from kbq_assets.adapters.processes.daemons import Daemon, kill_marked, marker_of, replace_text
from kbq_assets.adapters.processes.loopback_ports import HOST, accepts_connections
from kbq_assets.core.errors import StateError
from kbq_assets.local.stack.installation import Installation

# By default librdkafka writes "connection refused" to standard error, but that is expected while waiting.
_SILENT = logging.getLogger("kbq.local.probe")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False

_LOG4J = """\
rootLogger.level=INFO
rootLogger.appenderRef.out.ref=OUT
appender.out.type=Console
appender.out.name=OUT
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=[%d] %p %m (%c)%n
"""

# Event times years in the past are normal here, so nothing expires unless a topic configures it.
# Checks run every second, so that tests soon see retention, compaction and transaction timeouts.
_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller_port}
listeners=PLAINTEXT://{host}:{kafka_port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{kafka_port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={data}
auto.create.topics.enable=false
num.partitions=1
default.replication.factor=1
min.insync.replicas=1
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=2
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
log.retention.ms=-1
log.retention.check.interval.ms=1000
log.segment.delete.delay.ms=1000
log.cleaner.backoff.ms=1000
log.cleaner.dedupe.buffer.size=16777216
transaction.abort.timed.out.transaction.cleanup.interval.ms=1000
num.network.threads=2
num.io.threads=4
background.threads=2
metric.reporters=
"""


@dataclass(frozen=True)
class Kafka:
    """The broker of one home folder."""

    home: Path
    port: int
    controller_port: int
    heap_mb: int = field(default=512, kw_only=True)

    service = "kafka"

    @property
    def grace_seconds(self) -> float:
        """Seconds for a clean stop, which flushes and closes every log. A few logs take 2 s; 11,000 take a minute or
        two on a busy machine. After a kill, the next start would have to check them all."""
        return 20.0 + sum(1 for _ in (self._folder / "data").glob("*-*/partition.metadata")) / 50

    @property
    def address(self) -> str:
        """The value of ``bootstrap.servers``."""
        return f"{HOST}:{self.port}"

    @property
    def ports(self) -> dict[str, int]:
        """Every port it listens on, by the name of the option that changes it."""
        return {"kafka_port": self.port, "controller_port": self.controller_port}

    @property
    def _folder(self) -> Path:
        return self.home / self.service

    def prepare(self, installation: Installation, java: JavaRuntime) -> None:
        """Write the configuration; format the storage the first time.

        Raises StateError if Kafka cannot format it.
        """
        replace_text(self._folder / "log4j2.properties", _LOG4J)
        replace_text(self._folder / "server.properties", self._settings(self._folder / "data"))
        if not (self._folder / "data").exists():
            self._format(installation, java)

    def daemon(self, installation: Installation, java: JavaRuntime) -> Daemon:
        """The program to start."""
        # Use only the quick compiler: 3 s of CPU until the first response instead of 5, and less CPU even for a few
        # million records.
        options = ("-Xms128m", f"-Xmx{self.heap_mb}m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
        command = (
            *(str(java.executable), *options, "-Djava.awt.headless=true"),
            f"-Dlog4j2.configurationFile={self._folder / 'log4j2.properties'}",
            *("-cp", installation.kafka_classpath, "kafka.Kafka", str(self._folder / "server.properties")),
        )
        return Daemon(self.service, self.home, command, self.port)

    def problem(self) -> str:
        """Why the broker does not serve yet; empty if it does."""
        if not accepts_connections(self.port):
            return f"no connection to {self.address}"
        # The probe's threads end when it is collected, so none outlives this call.
        probe = AdminClient({"bootstrap.servers": self.address}, logger=_SILENT)
        try:
            brokers = probe.list_topics(timeout=3).brokers
        except KafkaException as error:
            return str(error.args[0])
        return "" if brokers else "the cluster has no broker yet"

    def _settings(self, data: Path) -> str:
        return _SETTINGS.format(
            host=HOST,
            kafka_port=self.port,
            controller_port=self.controller_port,
            data=property_escaped(str(data)),
        )

    def _format(self, installation: Installation, java: JavaRuntime) -> None:
        """Format a temporary folder and rename it, so that a half-formatted folder is never used."""
        marker = marker_of("format", self.home)
        kill_marked(marker)
        partial = self._folder / "data.partial"
        shutil.rmtree(partial, ignore_errors=True)
        settings = self._folder / "format.properties"
        replace_text(settings, self._settings(partial))
        # Begin with a letter: Kafka would parse a leading dash as an option.
        cluster_id = "K" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]
        tool = [
            *(str(java.executable), marker),
            f"-Dlog4j2.configurationFile={self._folder / 'log4j2.properties'}",
            *("-cp", installation.kafka_classpath, "kafka.tools.StorageTool"),
            *("format", "--cluster-id", cluster_id, "--config", str(settings)),
        ]
        done = subprocess.run(tool, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode != 0:
            reason = (done.stderr or done.stdout).strip()[-2000:]
            raise StateError(
                f"Kafka cannot format {partial}: {reason}", next_step="fix the cause, then run it again"
            )
        partial.rename(self._folder / "data")
