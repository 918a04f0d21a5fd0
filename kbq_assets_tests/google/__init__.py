"""Local Google servers for tests. Our proxies enforce the rules that these servers do not."""
