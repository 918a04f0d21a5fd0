"""`kbq serve`: health, status and metrics over HTTP, from readings in the background."""
