"""A reader that speaks Kafka's protocol itself: what one range needs, over blocking sockets, into chunks.

`source.FetchSource` reads a range; `cluster` finds leaders and keeps connections; `protocol` and `batches` are bytes to
values, every length checked.
"""
