"""The object store in a Google Cloud Storage bucket.

The client library authenticates and connects. This package sends the requests of the JSON API itself, because it must
interpret the responses to retries: if the first response is lost, the retry of a conditional write gets 412 because of
our own write.

The meaning of each response, and whether a write with that response was applied:

    response                                      applied   raised
    2xx                                           yes
    412                                           no        PreconditionFailed
    404                                           no        NotFound; ConfigurationError if it is the bucket
    429; 400 for damaged data                     no        Unavailable, after retries
    no connection, no token                       no        Unavailable, after retries
    400, 401, 403, other 3xx and 4xx              no        ConfigurationError
    408, 5xx                                      unknown   UnknownOutcome
    connection lost, timeout, unreadable          unknown   UnknownOutcome

Requests with an unknown outcome are retried too; reads then raise Unavailable. If a retried write gets 412, its outcome
stays unknown, except for files that nobody else writes with other bytes (staged files, empty done files): their
checksum decides. For a streamed object, the upload session reports the bytes received, which settles the outcome. A
failed swap pauses before it raises, so that loops of swaps respect the update rate of an object.
Times are in whole seconds, like those in the headers of a download.
"""

from kbq_assets.adapters.gcs.bucket import BucketReport, check_bucket, require_safe_bucket
from kbq_assets.adapters.gcs.store import GcsObjectStore, open_gcs_store

__all__ = ["BucketReport", "GcsObjectStore", "check_bucket", "open_gcs_store", "require_safe_bucket"]
