"""Backup files: each holds every record of an offset range, verbatim (PROTOCOL B3)."""
