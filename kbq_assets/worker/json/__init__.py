"""JSON topics in a worker: documents become Avro records."""
