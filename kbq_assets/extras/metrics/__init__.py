"""Metrics of KBQ: `kbq serve` and Prometheus families."""
