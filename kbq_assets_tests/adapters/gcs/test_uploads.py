"""Streamed objects: bounded memory, and a complete object or none, whatever happens to the upload session."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kbq_assets.adapters.gcs import GcsObjectStore
from kbq_assets.adapters.gcs.upload import chunk_size
from kbq_assets.core.errors import PreconditionFailed, Unavailable, UnknownOutcome
from kbq_assets.ports.object_store import ObjectWriter
from kbq_assets_tests.adapters.gcs.cloud import ATTEMPTS, NO_PAUSES, TRANSIENT, UNIT, Cloud, anonymous_client
from kbq_assets_tests.contracts.object_store import paths, stream
from kbq_assets_tests.google.faults import Fault, Request
from kbq_assets_tests.google.reverse_proxy import Reply

pytestmark = pytest.mark.google


# Uploads in chunks


DATA = bytes(range(256)) * 1024 * 3 + b"the end"  # three chunks and a bit


def in_pieces(writer: ObjectWriter) -> None:
    for start in range(0, len(DATA), 100_000):
        writer.write(DATA[start : start + 100_000])


def test_a_large_object_goes_in_chunks_and_a_small_one_in_one_request(cloud: Cloud) -> None:
    stream(cloud.store, "small", DATA[:UNIT])
    assert [r.verb for r in cloud.sent()] == ["POST"]
    cloud.proxy.requests.clear()
    writer = cloud.store.open_write("large")
    in_pieces(writer)
    stored = writer.close()
    ranges = [r.headers.get("Content-Range") for r in cloud.sent()]
    total = len(DATA)
    assert ranges == [
        None,
        f"bytes 0-{UNIT - 1}/*",
        f"bytes {UNIT}-{2 * UNIT - 1}/*",
        f"bytes {2 * UNIT}-{3 * UNIT - 1}/*",
        f"bytes {3 * UNIT}-{total - 1}/{total}",
    ]
    assert [r.headers.get("X-Goog-Hash") for r in cloud.sent()[-2:]] == [None, f"crc32c={stored.crc32c}"]
    assert cloud.store.get("large").data == DATA


@pytest.mark.parametrize("kind", TRANSIENT)
@pytest.mark.parametrize(
    ("method", "nth"), [("objects.insert", 0), *(("objects.upload_chunk", nth) for nth in range(4))]
)
def test_an_upload_goes_on_after_a_failure_at_any_step(
    cloud: Cloud, method: str, nth: int, kind: str
) -> None:
    counted = iter(range(99))
    cloud.proxy.faults.add(
        Fault(method, kind, when=lambda request: request.method == method and next(counted) == nth)
    )
    writer = cloud.store.open_write("a")
    in_pieces(writer)
    stored = writer.close()
    assert stored.size == len(DATA)
    assert cloud.store.get("a").data == DATA


def test_with_many_open_writers_each_holds_little(cloud: Cloud) -> None:
    store = GcsObjectStore(anonymous_client(cloud.proxy.endpoint), cloud.bucket, pauses=NO_PAUSES)
    writer = store.open_write("a")
    writer.write(DATA)
    assert cloud.sent() == []
    others = [store.open_write(f"other-{number}") for number in range(300)]
    writer.write(DATA)
    del others
    writer.write(DATA)
    writer.close()
    assert [request.headers.get("Content-Range") for request in cloud.sent("objects.upload_chunk")] == [
        f"bytes 0-{3 * UNIT - 1}/*",
        *(f"bytes {first}-{first + UNIT - 1}/*" for first in (3 * UNIT, 4 * UNIT, 5 * UNIT)),
        f"bytes {6 * UNIT}-{3 * len(DATA) - 1}/{3 * len(DATA)}",
    ]
    assert store.get("a").data == DATA * 3


@pytest.mark.parametrize(("writers", "units"), [(0, 32), (4, 32), (20, 6), (100, 1), (10_000, 1)])
def test_chunks_are_whole_units_that_share_a_budget(writers: int, units: int) -> None:
    assert chunk_size(32 * UNIT, writers) == units * UNIT


@pytest.mark.parametrize("chunk", range(2))
@pytest.mark.parametrize("kept", [0, UNIT])
def test_what_a_session_did_not_keep_is_sent_again(cloud: Cloud, chunk: int, kept: int) -> None:
    client = anonymous_client(cloud.proxy.endpoint)
    store = GcsObjectStore(client, cloud.bucket, pauses=NO_PAUSES, chunk_bytes=2 * UNIT)
    cloud.judge.keeps += [2 * UNIT] * chunk + [kept]
    writer = store.open_write("a")
    in_pieces(writer)
    writer.close()
    assert cloud.judge.keeps == []
    assert store.get("a").data == DATA


def test_a_last_chunk_whose_reply_is_lost_is_settled_by_asking(cloud: Cloud) -> None:
    writer = cloud.store.open_write("a")
    in_pieces(writer)
    cloud.strike("objects.upload_chunk", "drop_reply")
    assert writer.close().size == len(DATA)
    assert [r.headers["Content-Range"] for r in cloud.sent()] == [
        f"bytes {3 * UNIT}-{len(DATA) - 1}/{len(DATA)}",
        f"bytes */{len(DATA)}",
    ]
    assert ["X-Goog-Hash" in r.headers for r in cloud.sent()] == [True, False]


@pytest.mark.parametrize("kind", ["503", "drop_request", "drop_reply"])
def test_a_last_chunk_that_nothing_is_heard_of_is_an_unknown_outcome(cloud: Cloud, kind: str) -> None:
    writer = cloud.store.open_write("a")
    in_pieces(writer)
    cloud.strike("objects.upload_chunk", kind)
    cloud.proxy.faults.add(Fault("objects.upload_chunk", "429", times=99))
    with pytest.raises(UnknownOutcome) as raised:
        writer.close()
    assert "upload_id" not in str(raised.value)
    assert len(cloud.sent("objects.upload_chunk")) == ATTEMPTS
    assert paths(cloud.store) == (["a"] if kind == "drop_reply" else [])


def test_a_chunk_in_the_middle_that_nothing_is_heard_of_leaves_nothing(cloud: Cloud) -> None:
    writer = cloud.store.open_write("a")
    cloud.strike("objects.upload_chunk", "drop_reply", times=99)
    with pytest.raises(Unavailable) as raised:
        in_pieces(writer)
    assert "upload_id" not in str(raised.value)
    writer.abort()
    assert paths(cloud.store) == []


def test_a_session_that_is_over_is_reported_at_once(cloud: Cloud) -> None:
    writer = cloud.store.open_write("a")
    in_pieces(writer)
    cloud.judge.sessions.clear()
    cloud.proxy.requests.clear()
    with pytest.raises(Unavailable, match="session is over"):
        writer.close()
    assert len(cloud.sent()) == 1
    writer.abort()
    assert paths(cloud.store) == []


def test_a_session_that_is_over_after_a_lost_reply_is_an_unknown_outcome(cloud: Cloud) -> None:
    writer = cloud.store.open_write("a")
    in_pieces(writer)
    cloud.strike("objects.upload_chunk", "drop_reply")
    cloud.proxy.faults.add(Fault("objects.upload_chunk", "404"))
    with pytest.raises(UnknownOutcome):
        writer.close()
    assert paths(cloud.store) == ["a"]


def test_a_session_that_takes_nothing_more_ends(cloud: Cloud) -> None:
    cloud.judge.keeps += [0] * 99
    writer = cloud.store.open_write("a")
    with pytest.raises(Unavailable, match="accepts no more"):
        in_pieces(writer)


def test_a_path_taken_before_the_upload_begins_costs_no_data(cloud: Cloud) -> None:
    cloud.store.create("a", b"theirs")
    cloud.proxy.requests.clear()
    writer = cloud.store.open_write("a")
    with pytest.raises(PreconditionFailed):
        in_pieces(writer)
    assert cloud.sent("objects.upload_chunk") == []
    writer.abort()
    assert cloud.store.get("a").data == b"theirs"


def test_a_path_taken_during_the_upload_stays_theirs(cloud: Cloud) -> None:
    writer = cloud.store.open_write("a")
    in_pieces(writer)
    cloud.store.create("a", b"theirs")
    with pytest.raises(PreconditionFailed):
        writer.close()
    writer.abort()
    assert cloud.store.get("a").data == b"theirs"


def test_giving_up_cancels_the_session(cloud: Cloud) -> None:
    writer = cloud.store.open_write("a")
    in_pieces(writer)
    assert len(cloud.judge.sessions) == 1
    writer.abort()
    writer.abort()
    assert cloud.judge.sessions == {}
    assert len(cloud.sent("objects.upload_cancel")) == 1
    assert paths(cloud.store) == []


@pytest.mark.parametrize("kind", ["503", "403", "drop_request"])
def test_giving_up_never_fails(cloud: Cloud, kind: str) -> None:
    writer = cloud.store.open_write("a")
    in_pieces(writer)
    cloud.strike("objects.upload_cancel", kind)
    writer.abort()
    assert len(cloud.sent()) == 1


@pytest.mark.parametrize("size", [UNIT, UNIT + 1])
def test_an_object_stored_otherwise_than_written_is_reported_and_left_alone(cloud: Cloud, size: int) -> None:
    def damaged(request: Request, reply: Reply) -> Reply:
        document = reply.json()
        return Reply.of_json(200, {**document, "crc32c": "AAAAAA=="}) if document else reply

    cloud.judge.tamper = damaged
    with pytest.raises(Unavailable, match="checksum AAAAAA==") as raised:
        stream(cloud.store, "a", b"x" * size)
    assert "clean-up deletes this file" in raised.value.next_step
    assert cloud.sent("objects.delete") == []


@pytest.mark.thorough
def test_memory_does_not_grow_with_the_object(cloud: Cloud) -> None:
    """64 MiB written and read cost a few chunks."""
    done = subprocess.run(
        [sys.executable, "-c", _WRITE_AND_READ, cloud.bucket, cloud.proxy.endpoint],
        check=True,
        capture_output=True,
        text=True,
    )
    assert int(done.stdout) < 40 * 1024


_WRITE_AND_READ = """
import resource, sys
from kbq_assets.adapters.gcs import open_gcs_store
from kbq_assets.adapters.google.auth import GoogleAccess
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
bucket, endpoint = sys.argv[1:]
store = open_gcs_store(f"gs://{bucket}/kbq", GoogleAccess("anonymous", endpoint))
store.now_ms()
before = peak()
writer = store.open_write("a")
for _ in range(64):
    writer.write(b"x" * (1 << 20))
writer.close()
with store.open_read("a") as file:
    assert sum(iter(lambda: len(file.read(1 << 20)), 0)) == 64 << 20
print(peak() - before)
"""
