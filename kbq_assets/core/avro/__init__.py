"""Avro writer schemas as a tree of types."""
