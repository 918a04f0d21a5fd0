"""`cloud`: see `Cloud`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kbq_assets.adapters.gcs import GcsObjectStore
from kbq_assets_tests.adapters.gcs.cloud import NO_PAUSES, UNIT, Cloud, anonymous_client
from kbq_assets_tests.adapters.gcs.judge import DocumentedJudge
from kbq_assets_tests.google.reverse_proxy import Proxy
from kbq_assets_tests.google.servers import GcsServer


@pytest.fixture(scope="module")
def proxied(gcs_server: GcsServer) -> Iterator[tuple[Proxy, DocumentedJudge]]:
    judge = DocumentedJudge(int(gcs_server.direct_endpoint.rpartition(":")[2]))
    proxy = Proxy(judge)
    yield proxy, judge
    proxy.close()


@pytest.fixture
def cloud(gcs_server: GcsServer, proxied: tuple[Proxy, DocumentedJudge]) -> Iterator[Cloud]:
    proxy, judge = proxied
    client = anonymous_client(proxy.endpoint)
    bucket = gcs_server.new_bucket()
    yield Cloud(
        proxy, judge, bucket, GcsObjectStore(client, bucket, "kbq", pauses=NO_PAUSES, chunk_bytes=UNIT)
    )
    client.close()
    proxy.faults.clear()
    proxy.requests.clear()
    judge.keeps.clear()
    judge.sessions.clear()
    judge.tamper = lambda _, reply: reply
