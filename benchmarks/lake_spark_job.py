"""A peer: Spark's Avro reader and Parquet writer, on the files that KBQ loads into a lake. Runs in PySpark 4.0's
environment, without KBQ.

``python lake_spark_job.py ARGUMENTS.json``. The output has the same columns, partitions and compression. It is in no
catalog, and the checksums of the input are not verified.
"""

import json
import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import hour, lit


def main(arguments: str) -> None:
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
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    rows = session.read.format("avro").load(given["input"])
    rows = rows.withColumn("schema_version", lit(1)).withColumn("event_hour", hour("_event_time"))
    rows.write.partitionBy("schema_version", "event_date", "event_hour").option(
        "compression", "zstd"
    ).parquet(given["output"])
    session.stop()


main(sys.argv[1])
