"""Kafka through confluent-kafka (librdkafka).

options   client options that users may set, with secrets resolved or hidden
offsets   `KafkaOffsetReader`: topics, log starts, last stable offsets
source    `KafkaSource`: the records of one range as chunks
errors    librdkafka's error codes as KBQ's errors
"""
