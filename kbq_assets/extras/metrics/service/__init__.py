"""`kbq serve`: health, status and metrics over HTTP, from what is read in the background."""
