"""A reader that speaks Kafka's protocol itself: the requests that a range needs, over blocking sockets, into chunks.

`source.FetchSource` reads a range; `cluster` finds leaders and keeps connections; `protocol` and `batches` turn
bytes into values and check every length.
"""
