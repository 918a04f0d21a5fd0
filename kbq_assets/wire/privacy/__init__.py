"""Personal data: fields replaced in Avro and JSON, sealed error rows."""
