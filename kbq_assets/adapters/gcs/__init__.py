"""The object store in a Google Cloud Storage bucket.

The client library authenticates and connects; the JSON API's requests are made one by one, since a conditional
write must never be repeated behind our back: after a lost reply the repetition says 412 for one's own write.

What an answer means, and whether a write that got it was applied:

    answer                                        applied   raised
    2xx                                           yes
    412                                           no        PreconditionFailed
    404                                           no        NotFound; ConfigurationError if it is the bucket
    429; 400 for damaged data                     no        Unavailable, after repetitions
    no connection was made, no token was got      no        Unavailable, after repetitions
    400, 401, 403, other 3xx and 4xx              no        ConfigurationError
    408, 5xx                                      unknown   UnknownOutcome
    connection lost, timeout, unreadable answer   unknown   UnknownOutcome

Reads, deletions and copies are repeated in the unknown cases too; reads then raise Unavailable. A streamed
object's upload session says itself what it has, so there an unknown outcome is settled by asking the session.
Times are in whole seconds: no more is in the header of an object that is read.
"""

from kbq_assets.adapters.gcs.bucket import BucketReport, check_bucket
from kbq_assets.adapters.gcs.store import GcsObjectStore, open_gcs_store

__all__ = ["BucketReport", "GcsObjectStore", "check_bucket", "open_gcs_store"]
