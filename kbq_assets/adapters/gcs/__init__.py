"""The object store in a Google Cloud Storage bucket.

The client library authenticates and connects. This package sends each request of the JSON API itself, because the
meaning of a repetition's answer matters: after a lost reply, a conditional write gets 412 for our own write.

The meaning of each answer, and whether a write with that answer was applied:

    answer                                        applied   raised
    2xx                                           yes
    412                                           no        PreconditionFailed
    404                                           no        NotFound; ConfigurationError if it is the bucket
    429; 400 for damaged data                     no        Unavailable, after repetitions
    no connection, no token                       no        Unavailable, after repetitions
    400, 401, 403, other 3xx and 4xx              no        ConfigurationError
    408, 5xx                                      unknown   UnknownOutcome
    connection lost, timeout, unreadable answer   unknown   UnknownOutcome

Every request is repeated in the unknown cases too; reads then raise Unavailable. If a repeated write gets 412, its
outcome stays unknown, except for files that nobody else writes with other bytes (staged files, empty done files): their
checksum decides. A streamed object's upload session reports what it has, so asking it settles an unknown outcome there.
A swap that is lost pauses before it raises, so that loops of swaps are paced at what one object takes.
Times are in whole seconds, like those in the headers of a download.
"""

from kbq_assets.adapters.gcs.bucket import BucketReport, check_bucket, require_safe_bucket
from kbq_assets.adapters.gcs.store import GcsObjectStore, open_gcs_store

__all__ = ["BucketReport", "GcsObjectStore", "check_bucket", "open_gcs_store", "require_safe_bucket"]
