"""State objects survive the round trip with unknown keys. Newer and damaged ones are refused."""

from __future__ import annotations

import dataclasses
import gc
import json
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from kbq_assets.core.errors import CorruptState, UnsupportedFormat
from kbq_assets.core.extraction.pruning import BacklogChunk
from kbq_assets.core.loading.mismatches import RowMismatch
from kbq_assets.core.loading.quota import JobCounts
from kbq_assets.core.loading.schema_changes import SchemaChange
from kbq_assets.core.loading.table_registry import TableRegistry
from kbq_assets.core.loading.table_state import (
    Accepted,
    Definition,
    Failures,
    JobInFlight,
    JobTally,
    Parked,
    QuarantinedFile,
    TableState,
)
from kbq_assets.core.ordering.table_order import (
    AuditChunk,
    AuditEntry,
    FailedBatch,
    GateResult,
    Hold,
    OrderRule,
    TableOrder,
)
from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol.commits import AcceptedGap, Commit, PartitionCommit, Stop, Window, publish
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import OffsetRange
from kbq_assets.core.protocol.topic_registry import TopicEntry, TopicRegistry
from kbq_assets.core.protocol.totals import Histogram
from kbq_assets.core.protocol.watermarks import Watermark
from kbq_assets_tests.fixtures.golden_state import OTHERS
from kbq_assets_tests.strategies import staged_file, window

_FILE = staged_file(0, 5)
_PARTITION = PartitionCommit(
    next=5,
    windows=(window(0, 5, _FILE),),
    stop=Stop("error_share", "bad", 5, 9),
    accepted_gaps=(AcceptedGap(0, 3, "lost"),),
)
_VALUES = [
    TopicRegistry({"t": TopicEntry((0, 1), (2,))}),
    TableRegistry({"d.t": "u"}, {"d.s": "v"}),
    Commit(
        "t",
        1,
        "c",
        "",
        3,
        {64: _PARTITION},
    ),
    TableState(
        "u",
        7,
        marks={"t/0/1/1": 5},
        rows={"t/0/1": 5},
        in_flight=JobInFlight(
            "kbq-u-7", "p", "l", (_FILE,), (QuarantinedFile(_FILE, "broken"),), burning=True
        ),
        parked=Parked("load_failed", "no"),
        mismatches=(RowMismatch("kbq-u-6", 5, 4),),
        jobs=JobTally(JobCounts({4: 2}, 9)),
        accepted=Accepted(1, 2, True, 3),
        failed=Failures(4, 5),
        definition=Definition(None, (SchemaChange(3, True, 7),), True),
        order=TableOrder(
            OrderRule("offset", ("person",), "history"),
            failed=FailedBatch(1, "kbq-u-7", "bad", (_FILE,), (_FILE.path,)),
            hold=Hold("a migration", 5),
            gates=(GateResult("person", 1, True),),
            audit=(AuditEntry(5, "skip", 1, "by hand", "me", 1, 5),),
        ),
    ),
]
#: A value of every kind of state object.
ALL = [*_VALUES, BacklogChunk((_FILE,)), AuditChunk((AuditEntry(5, "hold", 1),)), *OTHERS.values()]


@pytest.mark.parametrize("value", ALL, ids=lambda v: type(v).__name__)
def test_a_state_object_decodes_to_itself(value: object) -> None:
    assert codec.loads(type(value), codec.dumps(value), "x") == value


def test_the_parts_of_a_table_s_state_are_stored_with_it_under_the_keys_of_older_releases() -> None:
    document = json.loads(codec.dumps(_VALUES[3]))
    flat = {
        "accepted_mismatches": 1, "accepted_quarantined": 2, "accepts_loss": True, "given_up_rows": 3,
        "failures": 4, "lost_batches": 5, "labelled": True,
    }  # fmt: skip
    assert flat.items() <= document.items()
    assert not {"accepted", "failed", "definition"} & document.keys()
    assert codec.decode(TableState, {"uuid": "u", "failures": 2, "of_tomorrow": 1}) == TableState(
        "u", failed=Failures(2), extra={"of_tomorrow": 1}
    )


def test_a_job_in_flight_is_stored_under_the_key_that_older_loaders_read() -> None:
    """An older loader that sees no ``flight`` would start a second job."""
    document = json.loads(codec.dumps(_VALUES[3]))
    assert document["flight"]["job_id"] == "kbq-u-7"
    assert "in_flight" not in document


def _with_unknown(value: Any) -> Any:
    """The value with an unknown field from a newer version in each of its parts."""
    if isinstance(value, codec.Stored):
        fields = [
            f for f in dataclasses.fields(value) if f.metadata != codec.INLINE
        ]  # those have their owner's
        known = {f.name: _with_unknown(getattr(value, f.name)) for f in fields}
        return dataclasses.replace(value, **{**known, "extra": {"newer": [{"a": 1}]}})
    if isinstance(value, Mapping):
        return {key: _with_unknown(item) for key, item in value.items()}
    return tuple(map(_with_unknown, value)) if isinstance(value, tuple) else value


@pytest.mark.parametrize("value", ALL, ids=lambda v: type(v).__name__)
def test_fields_of_a_newer_version_are_passed_on_at_every_depth(value: object) -> None:
    newer = codec.dumps(_with_unknown(value))
    found = codec.loads(type(value), newer, "x")
    assert found == _with_unknown(value)
    assert codec.dumps(found) == newer


def test_transitions_keep_fields_of_a_newer_version() -> None:
    counts, unknown = Counts(positions=5, records=5, skipped=5), {"newer": 7, "text": "a"}
    state = PartitionCommit(0, totals=Counts(extra=unknown), watermark=Watermark(extra=unknown))
    commit = Commit("t", 0, "c", "i", 1, {0: state})
    newer = Window(0, 5, dataclasses.replace(counts, extra={"newer": 3}))
    after = publish(commit, 0, 1, [newer], asked_ms=9).partitions[0]
    assert after.totals.extra == {"newer": 10, "text": "a"}
    assert after.watermark.extra == unknown
    assert Histogram(extra=unknown).observe((1, 2), [1.5]).extra == unknown
    assert (Histogram((1,), extra=unknown) + Histogram((1, 2))).extra == unknown
    assert JobCounts(extra=unknown).add(5).extra == unknown
    registry = TopicRegistry({"t": TopicEntry((), (0,), extra=unknown)})
    assert registry.activate("t", 0).topics["t"].extra == unknown


def _parts(annotation: Any, seen: set[Any]) -> set[Any]:
    """The dataclasses that a type consists of."""
    if dataclasses.is_dataclass(annotation) and annotation not in seen:
        seen.add(annotation)
        for hint in typing.get_type_hints(annotation).values():
            _parts(hint, seen)
    for inner in typing.get_args(annotation):
        _parts(inner, seen)
    return seen


@pytest.mark.parametrize("value", ALL, ids=lambda v: type(v).__name__)
def test_every_part_of_a_state_object_keeps_unknown_fields(value: object) -> None:
    parts = _parts(type(value), set()) - {TableReference}
    assert [part for part in parts if not issubclass(part, codec.Stored)] == []


def test_a_type_that_would_lose_unknown_fields_is_refused() -> None:
    @dataclass(frozen=True)
    class Careless:
        name: str

    with pytest.raises(TypeError, match="would lose unknown fields of Careless"):
        codec.decode(Careless, {})


def _damaged(data: bytes) -> Iterator[bytes]:
    yield from (data[:length] for length in range(len(data)))
    yield data + b" "
    for place in range(len(data)):
        for bit in range(8):
            yield data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]
    # Blocks of a torn write.
    yield from (data[:cut] + b"\0" * (len(data) - cut) for cut in range(len(data)))
    yield from (data[cut:] + data[:cut] for cut in range(1, len(data)))


@pytest.mark.parametrize("value", ALL, ids=lambda v: type(v).__name__)
def test_every_flipped_bit_and_every_truncation_is_detected(value: object) -> None:
    for data in _damaged(codec.dumps(value)):
        with pytest.raises(CorruptState):
            codec.loads(type(value), data, "x")


def test_an_older_version_finds_a_number_that_it_refuses() -> None:
    document = json.loads(codec.dumps(TopicRegistry()))
    assert document["format"] == 3


def test_a_higher_format_is_refused() -> None:
    higher = codec.HIGHEST + 1
    with pytest.raises(UnsupportedFormat, match=f"format {higher}"):
        codec.loads(TopicRegistry, b'{"format":%d,"topics":{}}' % higher, "commits/_topics.json")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"format":1,"uuid":5}',
        b'{"format":1}',
        b'{"format":1,"uuid":"u","marks":[1]}',
        b'{"format":0,"uuid":"u"}',
        b'{"format":true,"uuid":"u"}',
        b'{"format":2,"uuid":"u"}',
        b'{"format":3,"uuid":"u"}',
        b'{"format":1,"checksum":"0","uuid":"u"}',
        b'{"a":' * 100_000,
    ],
)
def test_what_cannot_be_read_names_the_object_and_is_never_empty(data: bytes) -> None:
    with pytest.raises(CorruptState, match=r"tables/d\.t\.json"):
        codec.loads(TableState, data, "tables/d.t.json")


def test_a_document_without_a_field_that_must_be_there_is_corrupt() -> None:
    with pytest.raises(CorruptState, match="uuid"):
        codec.loads(TableState, b'{"format":1,"sequence":3}', "tables/d.t.json")


def test_values_with_checks_of_their_own_are_not_built_without_them() -> None:
    with pytest.raises(TypeError, match="without its checks"):
        codec.decode(OffsetRange, {})


def test_the_search_for_cycles_continues_after_reading_and_after_failing_to() -> None:
    codec.loads(TableState, b'{"format":1,"uuid":"u"}', "p")
    with pytest.raises(CorruptState):
        codec.loads(TableState, b"{}", "p")
    assert gc.isenabled()


def test_an_object_is_parsed_once_while_it_is_among_the_latest_bytes() -> None:
    first, second = (codec.dumps(TopicRegistry(warehouses={name: "active"})) for name in ("a", "b"))
    parsed = codec._Parsed(len(first) + len(second))
    kept = parsed.get(TopicRegistry, first)
    assert parsed.get(TopicRegistry, second) is not kept
    assert parsed.get(TopicRegistry, bytes(bytearray(first))) is kept
    third = parsed.get(TopicRegistry, codec.dumps(TopicRegistry(warehouses={"c": "active"})))
    assert parsed.get(TopicRegistry, first) is kept, "the second was used before it"
    assert third.warehouses == {"c": "active"}
    huge = codec.dumps(TopicRegistry(warehouses={f"w{number}": "active" for number in range(99)}))
    assert parsed.get(TopicRegistry, huge) == parsed.get(TopicRegistry, huge)
    assert parsed._values == {}
