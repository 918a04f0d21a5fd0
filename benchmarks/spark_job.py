"""A peer: Spark's Kafka source, `from_avro`, and Avro files. Runs in PySpark 4.0's environment, without KBQ.

``python spark_job.py ARGUMENTS.json REPORT.json``. The output has the same columns as KBQ's staged files: the record's
fields, topic, partition, offset, timestamp, an epoch and an event date. Spark has no registry client, so the schema is
given, and the five bytes of Confluent's prefix are simply cut off.
"""

import json
import sys
import time

started = time.time()

from pyspark.sql import SparkSession  # noqa: E402
from pyspark.sql.avro.functions import from_avro  # noqa: E402
from pyspark.sql.functions import col, expr, lit, to_date  # noqa: E402


def main(arguments: str, report: str) -> None:
    with open(arguments) as file:
        given = json.load(file)
    session = (
        SparkSession.builder.master(given["master"])
        .appName("bench")
        .config("spark.jars", ",".join(given["jars"]))
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    opened = time.time()
    records = (
        session.read.format("kafka")
        .option("kafka.bootstrap.servers", given["bootstrap_servers"])
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", given["topic"])
        .option("startingOffsets", "earliest")
        .option("endingOffsets", "latest")
        .load()
    )
    record = from_avro(expr("substring(value, 6, length(value) - 5)"), given["schema"], {"mode": "FAILFAST"})
    rows = records.select(record.alias("record"), "topic", "partition", "offset", "timestamp").select(
        "record.*",
        col("topic").alias("_kafka_topic"),
        col("partition").alias("_kafka_partition"),
        col("offset").alias("_kafka_offset"),
        col("timestamp").alias("_kafka_timestamp"),
        lit(1).cast("long").alias("_kbq_epoch"),
        to_date(col("record.ts")).alias("event_date"),
    )
    rows.write.format("avro").option("compression", "snappy").save(given["output"])
    ended = time.time()
    session.stop()
    with open(report, "w") as file:
        json.dump({"session": opened - started, "extraction": ended - opened}, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
