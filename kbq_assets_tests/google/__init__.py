"""Local Google servers for tests: what they forgive is corrected by proxies of ours."""
