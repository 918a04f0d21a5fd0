"""Backups: planned with the tables, verified, kept for a time (PROTOCOL, Backup)."""
