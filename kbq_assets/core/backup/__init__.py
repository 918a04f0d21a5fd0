"""Verbatim copies of topics: names, positions, retention (PROTOCOL, Backup)."""
