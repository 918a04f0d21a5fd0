"""Kafka: KBQ's own client reads records, confluent-kafka (librdkafka) does everything else.

fetch       `FetchSource`: Kafka's fetch protocol over a socket
librdkafka  `LibrdkafkaSource`: the fallback for what `fetch` cannot read
reader      which of the two reads
offsets     `KafkaOffsetReader`: topics, log starts, last stable offsets
admin       `KafkaTopicAdmin`: topics, settings and access rules of the catalog
options     client options that users may set, with secrets resolved or hidden
errors      librdkafka's error codes as KBQ's errors
"""
