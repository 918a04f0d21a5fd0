"""Backups: planned beside the tables, verified, kept for a time (PROTOCOL, Backup)."""
