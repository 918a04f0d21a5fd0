"""Staged Avro files: blocks, containers, codecs, headers."""
