"""State objects survive the round trip, keep what they do not know, and refuse what is newer or broken."""

from __future__ import annotations

import gc
import json

import pytest

from kbq_assets.core.errors import CorruptState, UnsupportedFormat
from kbq_assets.core.loading.table_state import (
    JobInFlight,
    Parked,
    QuarantinedFile,
    RowMismatch,
    TableRegistry,
    TableState,
)
from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol.commits import Commit, PartitionCommit, Stop
from kbq_assets.core.protocol.offsets import OffsetRange
from kbq_assets.core.protocol.topic_registry import TopicEntry, TopicRegistry
from kbq_assets_tests.strategies import staged_file, window

_FILE = staged_file(0, 5)
_VALUES = [
    TopicRegistry({"t": TopicEntry((0, 1), (2,))}),
    TableRegistry({"d.t": "u"}, {"d.s": "v"}),
    Commit(
        "t",
        1,
        "c",
        "",
        3,
        {64: PartitionCommit(next=5, windows=(window(0, 5, _FILE),), stop=Stop("error_share", "bad", 5, 9))},
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
    ),
]


@pytest.mark.parametrize("value", _VALUES, ids=lambda v: type(v).__name__)
def test_a_state_object_decodes_to_itself(value: object) -> None:
    assert codec.loads(type(value), codec.dumps(value), "x") == value


def test_a_job_in_flight_is_stored_under_the_key_that_older_loaders_read() -> None:
    """An older loader that sees no ``flight`` would start a second job."""
    document = json.loads(codec.dumps(_VALUES[3]))
    assert document["flight"]["job_id"] == "kbq-u-7"
    assert "in_flight" not in document


def test_fields_of_a_newer_version_are_passed_on() -> None:
    document = json.loads(codec.dumps(_VALUES[2]))
    document["partitions"]["64"]["windows"][0]["compacted"] = True
    document["owner"] = {"team": "a"}
    commit = codec.loads(Commit, json.dumps(document).encode(), "x")
    assert json.loads(codec.dumps(commit)) == document


def test_a_higher_format_is_refused() -> None:
    with pytest.raises(UnsupportedFormat, match="format 2"):
        codec.loads(TopicRegistry, b'{"format":2,"topics":{}}', "commits/_topics.json")


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
