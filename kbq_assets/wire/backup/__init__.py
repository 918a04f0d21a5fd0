"""Backup files: every record of a range, verbatim (PROTOCOL B3)."""
