"""Metrics of KBQ: `kbq serve`, Prometheus families."""
