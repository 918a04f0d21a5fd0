"""Batches of files in a bucket or folder: what is found, how it is configured, and what is loaded next."""
