"""A reader with its own implementation of Kafka's protocol: only the requests that a range needs, over blocking
sockets.

`source.FetchSource` reads a range into chunks. `cluster` finds leaders and keeps connections. `wire_protocol` and
`record_batches` parse bytes into values and check every length.
"""
