"""Converts Protobuf messages to Avro records in one compiled pass over their bytes."""
