"""`kbq serve`: health, status and metrics over HTTP, from background readings."""
