"""The shapes of requests that KBQ may send to BigQuery while it loads: any undeclared field fails the test.

A shape is JSON whose leaves are exact values, regular expressions for strings, or ranges of numbers. A missing or
undeclared field is reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from kbq_assets.core.loading.completeness import HOUR_SCHEMA
from kbq_assets.core.loading.tables import columns_of
from kbq_assets.core.protocol.names import COMPLETENESS_TABLE
from kbq_assets_tests.contracts.warehouse import SCHEMA
from kbq_assets_tests.google.faults import Request
from kbq_assets_tests.google.servers import PROJECT

Shape: TypeAlias = Any
_PATH = rf"/bigquery/v2/projects/{PROJECT}"
_NAME = r"[A-Za-z0-9_-]+"
_IN_TABLE = rf"{_PATH}/datasets/{_NAME}/tables"
_TYPES = {"INT64": "INTEGER", "FLOAT64": "FLOAT", "BOOL": "BOOLEAN", "STRUCT": "RECORD"}
_JOB_ID = re.compile(r"kbq-[0-9a-f]{16}-[1-9][0-9]*")
_HOURS_ID = re.compile(r"kbq-[0-9a-f]{16}-completeness-[1-9][0-9]*")
_PROBE_ID = re.compile(r"kbq-probe-[0-9a-f]{32}")
_PROBE_TABLE = re.compile(r"_kbq_probe_[0-9a-f]{32}")
_ANY_TABLE = re.compile(_NAME)
_US = {"location": "US"}
_OURS = {"kbq": "v1"}
_LABELS = {**_OURS, "topic": "t"}
#: A table names the staging area that feeds it (L12).
_TABLE_LABELS = {**_LABELS, "kbq_staging": re.compile(r"[0-9a-f]{16}")}


@dataclass(frozen=True)
class Several:
    """A list with at least one item, all of this shape."""

    of: Shape


@dataclass(frozen=True)
class Either:
    """One of these shapes."""

    shapes: tuple[Shape, ...]


@dataclass(frozen=True)
class Said:
    """A request: its path, its query's parameters, its document."""

    path: str
    query: Mapping[str, Shape] = field(default_factory=dict)
    json: Shape = None


def _fields(schema: str = SCHEMA) -> list[dict[str, Shape]]:
    return [
        {"name": column.name, "type": _TYPES.get(column.type, column.type), "mode": column.mode}
        for column in columns_of(schema)
    ]


def _described(fields: list[dict[str, Shape]]) -> list[dict[str, Shape]]:
    """KBQ's own columns tell what they are."""
    ours = re.compile("_kafka_.*|_kbq_.*|event_date")
    return [
        each | {"description": re.compile(".+")} if ours.fullmatch(each["name"]) else each for each in fields
    ]


def _load(job_id: Shape, table: Shape, timeout: str) -> Shape:
    return {
        "jobReference": {"projectId": PROJECT, "jobId": job_id, **_US},
        "configuration": {
            "jobTimeoutMs": timeout,
            "labels": _LABELS,
            "load": {
                "sourceUris": Several(re.compile(r"gs://[^/]+/.+/staging/1-[^/]+/t\.0\.[^/]+\.avro")),
                "destinationTable": _table(table),
                "sourceFormat": "AVRO",
                "writeDisposition": "WRITE_APPEND",
                "createDisposition": "CREATE_NEVER",
                "useAvroLogicalTypes": True,
                "decimalTargetTypes": ["NUMERIC", "BIGNUMERIC", "STRING"],
            },
        },
    }


def _table(name: Shape) -> Shape:
    return {"projectId": PROJECT, "datasetId": re.compile(_NAME), "tableId": name}


def _parameter(name: str, kind: str, value: str) -> Shape:
    return {"name": name, "parameterType": {"type": kind}, "parameterValue": {"value": value}}


def _replacement() -> Shape:
    """The load of `_kbq_completeness`: all of its rows, in place of those before."""
    shape = _load(_HOURS_ID, COMPLETENESS_TABLE, "21600000")
    load = shape["configuration"]["load"] | {
        "sourceUris": [re.compile(r"gs://[^/]+/.+/completeness/[^/]+/[^/]+\.avro")],
        "writeDisposition": "WRITE_TRUNCATE",
    }
    return shape | {"configuration": shape["configuration"] | {"load": load, "labels": _OURS}}


_BURN = {
    "jobReference": {"projectId": PROJECT, "jobId": _JOB_ID, **_US},
    "configuration": {"labels": {"kbq": "burned"}, "query": {"query": "SELECT 1", "useLegacySql": False}},
}
_NEW_TABLE = {
    "tableReference": _table(_ANY_TABLE),
    "schema": {"fields": _described(_fields())},
    "timePartitioning": {"type": "DAY", "field": "event_date"},
    "requirePartitionFilter": False,
    "labels": _TABLE_LABELS,
}
#: Created elsewhere, without details of its columns.
_BARE_TABLE = _NEW_TABLE | {"schema": {"fields": _fields()}, "labels": _LABELS}
_HOURS_TABLE = {
    "tableReference": _table(COMPLETENESS_TABLE),
    "schema": {"fields": _fields(HOUR_SCHEMA)},
    "labels": _OURS,
}
_SCRATCH = {
    **{name: value for name, value in _BARE_TABLE.items() if name != "requirePartitionFilter"},
    "tableReference": _table(_PROBE_TABLE),
    "labels": {},
    "expirationTime": re.compile(r"[0-9]{13}"),
}
_POSITIONS = {
    "query": re.compile(
        rf"SELECT _kafka_offset, COUNT\(\*\) FROM `{PROJECT}\.{_NAME}\.{_NAME}` WHERE _kafka_topic = @topic"
        r" AND _kafka_partition = @partition AND _kbq_epoch = @epoch GROUP BY 1 ORDER BY 1"
    ),
    "useLegacySql": False,
    "parameterMode": "NAMED",
    "queryParameters": [
        _parameter("topic", "STRING", "t"),
        _parameter("partition", "INT64", "0"),
        _parameter("epoch", "INT64", "1"),
    ],
    "labels": {"kbq": "read"},
    "location": "US",
    "timeoutMs": range(1, 60_001),
    "requestId": re.compile(r"[0-9a-f-]{36}"),
    "formatOptions": {"useInt64Timestamp": True},
}
#: All that a load says. Reading a table or a job has no document.
SHAPES: Mapping[str, Said] = {
    "jobs.insert": Said(
        rf"{_PATH}/jobs",
        json=Either(
            (
                _load(_JOB_ID, _ANY_TABLE, "21600000"),
                _load(_PROBE_ID, _PROBE_TABLE, "1800000"),
                _replacement(),
                _BURN,
            )
        ),
    ),
    "jobs.get": Said(rf"{_PATH}/jobs/kbq-{_NAME}", {"projection": "full", **_US}),
    "jobs.cancel": Said(rf"{_PATH}/jobs/kbq-{_NAME}/cancel", {"projection": "full", **_US}),
    "jobs.query": Said(rf"{_PATH}/queries", json=_POSITIONS),
    "datasets.get": Said(rf"{_PATH}/datasets/{_NAME}"),
    "tables.get": Said(rf"{_IN_TABLE}/{_NAME}"),
    "tables.insert": Said(_IN_TABLE, json=Either((_NEW_TABLE, _BARE_TABLE, _HOURS_TABLE, _SCRATCH))),
    "tables.delete": Said(rf"{_IN_TABLE}/{_PROBE_TABLE.pattern}"),
}


def objections(requests: Iterable[Request]) -> list[str]:
    """What the requests say that is not declared, or fail to say."""
    return [f"{r.method or r.verb + ' ' + r.path}: {said}" for r in requests for said in _of_request(r)]


def differences(shape: Shape, value: Any, at: str = "") -> list[str]:
    """Where a value is not of a shape."""
    if isinstance(shape, Either):
        found = [differences(each, value, at) for each in shape.shapes]
        return [] if [] in found else min(found, key=len)
    if isinstance(shape, Several):
        return _in_list([shape.of] * max(1, len(value)), value, at)
    if isinstance(shape, dict):
        return list(_in_object(shape, value, at))
    if isinstance(shape, list):
        return _in_list(shape, value, at)
    return [] if _fits(shape, value) else [f"{at} is {value!r}, not {_told(shape)}"]


def _of_request(request: Request) -> Iterator[str]:
    said = SHAPES.get(request.method)
    if said is None:
        yield "nobody declared it"
        return
    if not re.fullmatch(said.path, request.path):
        yield f"path {request.path}"
    yield from differences({**said.query, "prettyPrint": "false"}, request.query, "parameter")
    if said.json is None:
        if request.json or request.body_size:
            yield f"a document: {request.json}"
    else:
        yield from differences(said.json, request.json)


def _in_object(shape: Mapping[str, Shape], value: Any, at: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{at} is {value!r}, not an object"
        return
    for name in sorted(shape.keys() | value.keys()):
        place = f"{at}.{name}" if at else name
        if name not in value:
            yield f"{place} is missing"
        elif name not in shape:
            yield f"{place} is not declared: {value[name]!r}"
        else:
            yield from differences(shape[name], value[name], place)


def _in_list(shape: list[Shape], value: Any, at: str) -> list[str]:
    if not isinstance(value, list) or len(shape) != len(value):
        return [f"{at} is {value!r}, not {len(shape)} items"]
    pairs = enumerate(zip(shape, value, strict=True))
    return [said for number, (one, item) in pairs for said in differences(one, item, f"{at}[{number}]")]


def _fits(shape: Shape, value: Any) -> bool:
    if isinstance(shape, re.Pattern):
        return isinstance(value, str) and shape.fullmatch(value) is not None
    if isinstance(shape, range):
        return type(value) is int and value in shape
    return type(shape) is type(value) and bool(shape == value)


def _told(shape: Shape) -> str:
    return shape.pattern if isinstance(shape, re.Pattern) else repr(shape)
