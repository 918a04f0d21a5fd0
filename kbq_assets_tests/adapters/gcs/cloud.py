"""A bucket for one test, and the faults to inject."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from google.auth.credentials import AnonymousCredentials
from google.cloud.storage import Client

from kbq_assets.adapters.gcs import GcsObjectStore, open_gcs_store
from kbq_assets.adapters.google.auth import GoogleAccess
from kbq_assets_tests.adapters.gcs.judge import DocumentedJudge
from kbq_assets_tests.contracts.object_store import Opener
from kbq_assets_tests.google.faults import Fault, Request
from kbq_assets_tests.google.reverse_proxy import Proxy

UNIT = 256 * 1024
NO_PAUSES = (0.0, 0.0, 0.0)
ATTEMPTS = 1 + len(NO_PAUSES)
#: Faults after which nothing is known, and 429, of which it is known that nothing was done.
TRANSIENT = ["408", "429", "500", "502", "503", "504", "drop_request", "drop_reply"]


@dataclass(frozen=True)
class Cloud:
    """Cloud Storage, and a bucket in it. ``store`` does not pause, and sends chunks of 256 KiB."""

    proxy: Proxy
    judge: DocumentedJudge
    bucket: str
    store: GcsObjectStore

    def opener(self) -> Opener:
        return partial(
            open_gcs_store, f"gs://{self.bucket}/kbq", GoogleAccess("anonymous", self.proxy.endpoint)
        )

    def strike(self, method: str, kind: str, times: int = 1, reason: str = "") -> None:
        """Let the next requests of a method fail, and forget those so far."""
        self.proxy.faults.add(Fault(method, kind, times=times, reason=reason))
        self.proxy.requests.clear()

    def sent(self, method: str = "") -> list[Request]:
        return [request for request in self.proxy.requests if method in ("", request.method)]


def anonymous_client(endpoint: str) -> Client:
    return Client("p", AnonymousCredentials(), client_options={"api_endpoint": endpoint})
