"""Kafka through confluent-kafka (librdkafka).

options   which client options users may set, how secrets are referred to, how they are shown
offsets   `KafkaOffsetReader`: topics, log starts, last stable offsets
source    `KafkaSource`: the records of one range as chunks
errors    librdkafka's error codes as KBQ's errors
"""
