"""Serve the local Google servers until interrupted; ``settings.sh`` in their folder makes KBQ use them.

The folder is ``.kbq/google``, or the argument.
"""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

from kbq_assets_tests.fixtures.local_stack import INSTALLED, REPOSITORY
from kbq_assets_tests.google import install
from kbq_assets_tests.google.servers import BigQueryServer, GcsServer, run_bigquery, run_gcs

BUCKET = "kbq-local"


def main(folder: Path) -> None:
    """Serve until SIGINT or SIGTERM. The data in ``folder`` stays."""
    folder.mkdir(parents=True, exist_ok=True)
    gcs_program = install.fake_gcs_server(INSTALLED, _tell)
    bigquery_program = install.local_bigquery(INSTALLED, _tell)
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    with run_gcs(gcs_program, folder) as gcs, run_bigquery(bigquery_program, folder, gcs) as bigquery:
        _make_bucket(gcs)
        settings = folder / "settings.sh"
        settings.write_text(_exports(gcs, bigquery), encoding="utf-8")
        _tell(f"serving until Ctrl-C; in another shell: source {settings}")
        over.wait()


def _make_bucket(gcs: GcsServer) -> None:
    """The bucket as it should be; settings of buckets last as long as the proxy."""
    bucket = gcs.client().lookup_bucket(BUCKET) or gcs.client().create_bucket(BUCKET)
    bucket.iam_configuration.uniform_bucket_level_access_enabled = True
    bucket.iam_configuration.public_access_prevention = "enforced"
    bucket.patch()


def _exports(gcs: GcsServer, bigquery: BigQueryServer) -> str:
    values = {
        "KBQ_STAGING": f"gs://{BUCKET}/kbq",
        "KBQ_WAREHOUSE": f"bigquery://{bigquery.project}?location=US",
        "KBQ_GCS_ENDPOINT": gcs.endpoint,
        "KBQ_BIGQUERY_ENDPOINT": bigquery.endpoint,
        "KBQ_EXTRACT_CREDENTIALS": "anonymous",
        "KBQ_LOAD_CREDENTIALS": "anonymous",
        "KBQ_POLL_SECONDS": "1",
        "KBQ_QUIET_SECONDS": "0",
    }
    return "".join(f"export {name}='{value}'\n" for name, value in values.items())


def _tell(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else REPOSITORY / ".kbq" / "google")
