"""The stored objects of docs/protocol.md: names, offsets, commits, watermarks, totals, and their JSON codec."""
