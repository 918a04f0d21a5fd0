"""Backups: planned with the tables, verified, and kept for a retention time (PROTOCOL, Backup)."""
