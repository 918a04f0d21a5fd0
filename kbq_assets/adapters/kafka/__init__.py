"""Kafka: KBQ's own client reads records, and confluent-kafka (librdkafka) does everything else.

fetch       `FetchSource`: Kafka's fetch protocol over a socket
librdkafka  `LibrdkafkaSource`: the fallback if `fetch` cannot read
reader      chooses between the two
offsets     `KafkaOffsetReader`: topics, log starts, last stable offsets
admin       `KafkaTopicAdmin`: topics, settings and access rules of the catalog
options     client options that users may set, with secrets resolved or hidden
errors      librdkafka's error codes as KBQ's errors
"""
