"""Failed and missing responses: what the store retries, what it reports, and what it knows afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeAlias

import pytest

from kbq_assets.adapters.gcs import GcsObjectStore
from kbq_assets.core.errors import (
    ConfigurationError,
    KbqError,
    NotFound,
    PreconditionFailed,
    TransientError,
    Unavailable,
    UnknownOutcome,
)
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets_tests.adapters.gcs.cloud import ATTEMPTS, NO_PAUSES, TRANSIENT, Cloud, anonymous_client
from kbq_assets_tests.contracts.object_store import paths, stream
from kbq_assets_tests.google.faults import Fault
from kbq_assets_tests.google.reverse_proxy import Reply

pytestmark = pytest.mark.google
Change: TypeAlias = Callable[[ObjectStore], object]


# Answers that are none: what may be repeated


REPEATED: list[tuple[str, Change]] = [
    ("objects.download", lambda store: store.get("a")),
    ("objects.download", lambda store: store.open_read("a").read()),
    ("objects.list", lambda store: list(store.list(""))),
    ("objects.delete", lambda store: store.delete("a")),
    ("objects.rewrite", lambda store: store.copy("a", "b")),
    ("objects.get", lambda store: store.now_ms()),
]
IDS = ["get", "open_read", "list", "delete", "copy", "now_ms"]


@pytest.mark.parametrize("kind", TRANSIENT)
@pytest.mark.parametrize(("method", "call"), REPEATED, ids=IDS)
def test_reads_deletions_and_copies_are_repeated(cloud: Cloud, method: str, call: Change, kind: str) -> None:
    cloud.store.create("a", b"x")
    cloud.strike(method, kind)
    call(cloud.store)
    assert len(cloud.sent(method)) == 2


@pytest.mark.parametrize(("method", "call"), REPEATED, ids=IDS)
def test_repetitions_end(cloud: Cloud, method: str, call: Change) -> None:
    cloud.store.create("a", b"x")
    cloud.strike(method, "503", times=99)
    with pytest.raises(TransientError) as raised:
        call(cloud.store)
    changes = method in ("objects.delete", "objects.rewrite")
    assert type(raised.value) is (UnknownOutcome if changes else Unavailable)
    assert len(cloud.sent(method)) == ATTEMPTS


def test_a_refused_repetition_does_not_show_what_became_of_the_first_request(cloud: Cloud) -> None:
    cloud.store.create("a", b"x")
    cloud.strike("objects.delete", "drop_reply")
    cloud.proxy.faults.add(Fault("objects.delete", "429", times=99))
    with pytest.raises(UnknownOutcome):
        cloud.store.delete("a")


CONDITIONAL: list[Change] = [
    lambda store: store.create("new", b"x"),
    lambda store: store.swap("a", b"x", store.get("a").generation),
    lambda store: stream(store, "new", b"x"),
]


UNHEARD = [kind for kind in TRANSIENT if kind not in ("429", "drop_reply")]
OVERWRITTEN = [CONDITIONAL[0], CONDITIONAL[1]]


@pytest.mark.parametrize("kind", UNHEARD)
@pytest.mark.parametrize("write", CONDITIONAL, ids=["create", "swap", "stream"])
def test_a_conditional_write_of_unknown_outcome_is_repeated(cloud: Cloud, write: Change, kind: str) -> None:
    generation = cloud.store.create("a", b"old")
    cloud.strike("objects.insert", kind)
    write(cloud.store)
    assert len(cloud.sent("objects.insert")) == 2
    assert paths(cloud.store) == ["a", "new"] or cloud.store.get("a").generation != generation


@pytest.mark.parametrize("write", OVERWRITTEN, ids=["create", "swap"])
def test_a_repetition_that_meets_its_own_write_is_an_unknown_outcome(cloud: Cloud, write: Change) -> None:
    """Or another's: the answer is the same, and who decides by it must read the object."""
    cloud.store.create("a", b"old")
    cloud.strike("objects.insert", "drop_reply")
    with pytest.raises(UnknownOutcome):
        write(cloud.store)
    assert len(cloud.sent("objects.insert")) == 2


@pytest.mark.parametrize("answer", [{}, {"status": "ok"}, {"generation": None, "size": "1", "crc32c": ""}])
@pytest.mark.parametrize("write", OVERWRITTEN, ids=["create", "swap"])
def test_an_answer_to_a_write_that_describes_no_object_is_an_unknown_outcome(
    cloud: Cloud, write: Change, answer: dict[str, object]
) -> None:
    cloud.store.create("a", b"old")
    cloud.judge.tamper = lambda request, reply: (
        Reply.of_json(200, reply.json() and answer) if request.method == "objects.insert" else reply
    )
    with pytest.raises(UnknownOutcome):
        write(cloud.store)
    assert len(cloud.sent("objects.insert")) == 1 + ATTEMPTS  # the first wrote the old object


ITEM: dict[str, object] = {
    "name": "kbq/a",
    "size": "1",
    "updated": "2026-11-21T14:30:30.510346Z",
    "generation": "1",
    "crc32c": "AAAAAA==",
}
ODD_PAGES: list[dict[str, object]] = [
    {"items": "kbq/a"},
    {"items": {"name": "kbq/a"}},
    {"items": None},
    {"items": ["kbq/a"]},
    {"items": [{}]},
    {"items": [{**ITEM, "name": 5}]},
    {"items": [], "nextPageToken": 5},
    {"items": [], "nextPageToken": "again"},
]


@pytest.mark.parametrize("page", ODD_PAGES, ids=str)
@pytest.mark.parametrize("entries", ["list", "paths", "checksums"])
def test_a_listing_of_another_shape_is_no_answer(cloud: Cloud, entries: str, page: dict[str, object]) -> None:
    cloud.judge.tamper = lambda request, reply: Reply.of_json(200, reply.json() and page)
    with pytest.raises(Unavailable, match="not Cloud Storage's"):
        list(getattr(cloud.store, entries)(""))


@pytest.mark.parametrize(
    ("entries", "odd"),
    [
        ("list", {"size": None}),
        ("list", {"size": "many"}),
        ("list", {"updated": 5}),
        ("list", {"updated": "today"}),
        ("list", {"generation": []}),
        ("checksums", {"size": {}}),
        ("checksums", {"crc32c": 5}),
    ],
)
def test_an_entry_of_another_shape_is_no_answer(cloud: Cloud, entries: str, odd: dict[str, object]) -> None:
    cloud.judge.tamper = lambda request, reply: Reply.of_json(
        200, reply.json() and {"items": [{**ITEM, **odd}]}
    )
    with pytest.raises(Unavailable, match="not Cloud Storage's"):
        list(getattr(cloud.store, entries)(""))


@pytest.mark.parametrize("answer", [{}, {"done": False, "rewriteToken": 5}, {"done": "no"}])
def test_a_copy_that_is_answered_in_another_shape_has_an_unknown_outcome(
    cloud: Cloud, answer: dict[str, object]
) -> None:
    cloud.store.create("a", b"x")
    cloud.judge.tamper = lambda request, reply: Reply.of_json(200, reply.json() and answer)
    with pytest.raises(UnknownOutcome, match="not Cloud Storage's"):
        cloud.store.copy("a", "b")


@pytest.mark.parametrize("data", [b"", b"staged"], ids=["done file", "staged file"])
def test_a_file_that_nobody_else_writes_is_settled_by_its_checksum(cloud: Cloud, data: bytes) -> None:
    cloud.strike("objects.insert", "drop_reply")
    if data:
        stream(cloud.store, "new", data)
    else:
        assert cloud.store.create("new", data) == cloud.store.get("new").generation
    assert cloud.store.get("new").data == data


def test_a_file_of_another_is_not_taken_for_the_own(cloud: Cloud) -> None:
    cloud.store.create("new", b"theirs")
    cloud.strike("objects.insert", "503")
    with pytest.raises(UnknownOutcome):
        stream(cloud.store, "new", b"staged")
    cloud.strike("objects.insert", "503", times=99)
    with pytest.raises(UnknownOutcome):
        stream(cloud.store, "other", b"staged")


def test_a_swap_that_is_lost_waits_before_the_next(cloud: Cloud) -> None:
    """A loop of swaps does not use up all of its attempts within a second."""
    waited: list[float] = []
    client = anonymous_client(cloud.proxy.endpoint)
    store = GcsObjectStore(client, cloud.bucket, pauses=(0.25, 4.0), pause=waited.append)
    generation = store.create("a", b"1")
    store.swap("a", b"2", generation)
    assert waited == []
    with pytest.raises(PreconditionFailed):
        store.swap("a", b"3", generation)
    assert waited == [0.25]


@pytest.mark.parametrize("write", CONDITIONAL, ids=["create", "swap", "stream"])
def test_a_conditional_write_that_was_surely_not_applied_is_repeated(cloud: Cloud, write: Change) -> None:
    cloud.store.create("a", b"old")
    cloud.strike("objects.insert", "429", times=2)
    write(cloud.store)
    assert len(cloud.sent("objects.insert")) == 3


def test_a_write_that_arrives_late_changes_nothing(cloud: Cloud) -> None:
    generation = cloud.store.create("a", b"1")
    cloud.strike("objects.insert", "late")
    cloud.store.swap("a", b"2", generation)
    cloud.strike("objects.insert", "late")
    cloud.store.create("b", b"2")
    latest = cloud.store.swap("a", b"3", cloud.store.get("a").generation)
    assert cloud.proxy.faults.deliver_late() == 2
    assert [cloud.store.get(path).data for path in ("a", "b")] == [b"3", b"2"]
    assert cloud.store.get("a").generation == latest


def test_too_many_requests_for_too_long_is_no_unknown_outcome(cloud: Cloud) -> None:
    cloud.strike("objects.insert", "429", times=99)
    with pytest.raises(Unavailable):
        cloud.store.create("a", b"")
    assert len(cloud.sent("objects.insert")) == ATTEMPTS


def test_what_could_not_be_sent_is_no_unknown_outcome() -> None:
    store = GcsObjectStore(anonymous_client("http://127.0.0.1:1"), "bucket", pauses=NO_PAUSES)
    try:
        raise LookupError("something else that is being dealt with")
    except LookupError:
        with pytest.raises(Unavailable, match="Connection refused"):
            store.create("a", b"")


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("401", ConfigurationError),
        ("403", ConfigurationError),
        ("404", NotFound),
        ("412", PreconditionFailed),
    ],
)
def test_a_refused_write_is_sent_once(cloud: Cloud, kind: str, error: type[KbqError]) -> None:
    cloud.strike("objects.insert", kind)
    with pytest.raises(error):
        cloud.store.create("a", b"")
    assert len(cloud.sent("objects.insert")) == 1
    assert paths(cloud.store) == []


@pytest.mark.parametrize(
    ("method", "call", "permission"),
    [
        ("objects.download", lambda store: store.get("a"), "storage.objects.get"),
        ("objects.list", lambda store: list(store.list("")), "storage.objects.list"),
        ("objects.delete", lambda store: store.delete("a"), "storage.objects.delete"),
        ("objects.insert", lambda store: store.create("a", b""), "storage.objects.create"),
        ("objects.insert", lambda store: store.swap("a", b"", 1), "storage.objects.delete"),
    ],
)
def test_a_missing_permission_is_named_with_its_object(
    cloud: Cloud, method: str, call: Change, permission: str
) -> None:
    cloud.strike(method, "403")
    with pytest.raises(ConfigurationError) as raised:
        call(cloud.store)
    assert f"gs://{cloud.bucket}/kbq/" in raised.value.message
    assert permission in raised.value.next_step
    assert "grant" in raised.value.next_step


def test_deletions_go_on_past_a_failure(cloud: Cloud) -> None:
    names = [f"staging/{number}" for number in range(40)]
    for name in names:
        cloud.store.create(name, b"")
    cloud.proxy.faults.add(Fault("objects.delete", "403", when=lambda r: r.path.endswith("%2F7")))
    failures = cloud.store.delete_many(names)
    assert {path: type(error) for path, error in failures.items()} == {"staging/7": ConfigurationError}
    assert paths(cloud.store) == ["staging/7"]


def test_deletions_end_when_nothing_is_answered(cloud: Cloud) -> None:
    """A deletion without an answer takes minutes, and a clean-up deletes thousands."""
    names = [f"staging/{number}" for number in range(100)]
    cloud.strike("objects.delete", "503", times=10_000)
    failures = cloud.store.delete_many(names)
    assert failures.keys() == set(names)
    tried = [error for error in failures.values() if "was not tried" not in str(error)]
    assert 16 <= len(tried) < 32
    assert all(isinstance(error, TransientError) for error in failures.values())
    cloud.proxy.faults.clear()
    assert cloud.store.delete_many(names) == {}


def test_a_large_copy_goes_on_until_it_is_done(cloud: Cloud) -> None:
    answers = iter(
        [{"done": False, "rewriteToken": "t1"}, {"done": False, "rewriteToken": "t2"}, {"done": True}]
    )
    cloud.store.create("a", b"x")
    cloud.judge.tamper = lambda _, reply: Reply.of_json(200, reply.json() and next(answers))
    cloud.store.copy("a", "b")
    asked = [
        (r.query.get("rewriteToken"), r.query["ifGenerationMatch"]) for r in cloud.sent("objects.rewrite")
    ]
    assert asked == [(None, "0"), ("t1", "0"), ("t2", "0")]


# Damage on the way


def _with_hash(reply: Reply, checksum: str) -> Reply:
    kept = tuple(h for h in reply.headers if h[0].lower() != "x-goog-hash")
    return replace(reply, headers=(*kept, ("X-Goog-Hash", f"crc32c={checksum}")))


def test_damaged_bytes_are_read_again(cloud: Cloud) -> None:
    cloud.store.create("a", b"x")
    wrong = iter(["AAAAAA=="])
    cloud.judge.tamper = lambda _, reply: (
        _with_hash(reply, damaged) if (damaged := next(wrong, "")) else reply
    )
    assert cloud.store.get("a").data == b"x"
    assert len(cloud.sent("objects.download")) == 2


@pytest.mark.parametrize("read", [lambda s: s.get("a"), lambda s: s.open_read("a").read()])
def test_bytes_that_stay_damaged_are_not_handed_out(cloud: Cloud, read: Change) -> None:
    cloud.store.create("a", b"x")
    cloud.judge.tamper = lambda _, reply: _with_hash(reply, "AAAAAA==")
    with pytest.raises(Unavailable, match="checksum"):
        read(cloud.store)


@pytest.mark.parametrize("header", ["X-Goog-Hash", "X-Goog-Generation", "Last-Modified"])
def test_an_answer_that_is_not_cloud_storages_is_not_believed(cloud: Cloud, header: str) -> None:
    cloud.store.create("a", b"x")
    cloud.judge.tamper = lambda _, reply: replace(
        reply, headers=tuple(h for h in reply.headers if h[0] != header)
    )
    with pytest.raises(Unavailable):
        cloud.store.get("a")


def _cut(reply: Reply, after: int) -> Reply:
    def pieces() -> Iterator[bytes]:
        yield b"".join(reply.body)[:after]
        raise OSError("the connection breaks here")

    return replace(reply, body=pieces())


def test_a_stream_whose_connection_breaks_goes_on_where_it_was(cloud: Cloud) -> None:
    data = bytes(range(256)) * 4096
    generation = cloud.store.create("a", data)
    cuts = iter([300_000, 500_000])
    cloud.judge.tamper = lambda _, reply: _cut(reply, cut) if (cut := next(cuts, 0)) else reply
    with cloud.store.open_read("a") as file:
        assert file.read() == data
    first, *others = cloud.sent("objects.download")
    assert "Range" not in first.headers
    assert [r.headers["Range"] for r in others] == ["bytes=300000-", "bytes=800000-"]
    assert {r.query["ifGenerationMatch"] for r in others} == {str(generation)}


def test_a_stream_is_of_one_generation(cloud: Cloud) -> None:
    generation = cloud.store.create("a", b"1" * 3_000_000)
    cuts = iter([2_000_000])
    cloud.judge.tamper = lambda _, reply: _cut(reply, cut) if (cut := next(cuts, 0)) else reply
    with cloud.store.open_read("a") as file:
        assert file.read(10) == b"1" * 10
        cloud.store.swap("a", b"2" * 3_000_000, generation)
        with pytest.raises(Unavailable, match="replaced"):
            file.read()
