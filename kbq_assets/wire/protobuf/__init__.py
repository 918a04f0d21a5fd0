"""Protobuf messages as Avro records, in one compiled pass over their bytes."""
