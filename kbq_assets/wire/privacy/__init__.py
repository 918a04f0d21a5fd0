"""Personal data: replaces fields in Avro and JSON, and seals error rows."""
