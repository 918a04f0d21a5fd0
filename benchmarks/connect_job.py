"""A peer: Kafka Connect's file sink, standalone. It does not end by itself, so it is stopped when its group has
committed the end.

``python -m benchmarks.connect_job JAVA CLASSPATH SERVERS TOPIC RECORDS FOLDER``.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from benchmarks.topics import free_ports

CORES = 2
_SECONDS = 900.0


def worker_properties(servers: str, folder: Path, port: int) -> str:
    text = "org.apache.kafka.connect.storage.StringConverter"
    return "\n".join(
        [
            f"bootstrap.servers={servers}",
            f"listeners=http://127.0.0.1:{port}",
            f"key.converter={text}",
            f"value.converter={text}",
            "value.converter.converter.encoding=ISO-8859-1",
            f"offset.storage.file.filename={folder / 'offsets'}",
            "offset.flush.interval.ms=1000",
            f"plugin.path={folder}",
            "plugin.discovery=only_scan",
            "consumer.auto.offset.reset=earliest",
        ]
    )


def connector_properties(name: str, topic: str, folder: Path) -> str:
    return "\n".join(
        [
            f"name={name}",
            "connector.class=org.apache.kafka.connect.file.FileStreamSinkConnector",
            f"tasks.max={CORES}",
            f"topics={topic}",
            f"file={folder / 'lines'}",
        ]
    )


def committed(consumer: Consumer, topic: str, partitions: int) -> int:
    found = consumer.committed([TopicPartition(topic, p) for p in range(partitions)], timeout=30)
    return sum(max(0, each.offset) for each in found)


def main(java: str, classpath: str, servers: str, topic: str, records: str, folder_name: str) -> None:
    folder, name = Path(folder_name), f"bench-{time.time_ns()}"
    (folder / "worker.properties").write_text(worker_properties(servers, folder, free_ports(1)[0]))
    (folder / "sink.properties").write_text(connector_properties(name, topic, folder))
    main_class = "org.apache.kafka.connect.cli.ConnectStandalone"
    command = [
        java,
        "-Xmx1g",
        "-cp",
        classpath,
        main_class,
        folder / "worker.properties",
        folder / "sink.properties",
    ]
    consumer = Consumer({"bootstrap.servers": servers, "group.id": f"connect-{name}"})
    partitions = len(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
    process = subprocess.Popen(command)
    deadline = time.monotonic() + _SECONDS
    try:
        while committed(consumer, topic, partitions) < int(records):
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit("Kafka Connect did not get to the end")
            time.sleep(0.3)
    finally:
        process.terminate()
        process.wait(60)
        consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
