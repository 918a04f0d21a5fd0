"""Batches of files in a bucket or folder: discovery, configuration, and the plan of what to load next."""
