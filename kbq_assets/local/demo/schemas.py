"""The demo's Avro schemas."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

Schema: TypeAlias = dict[str, Any]

_TIME: Final = {"type": "long", "logicalType": "timestamp-millis"}
_DATE: Final = {"type": "int", "logicalType": "date"}


def _nullable(name: str, type_: Any) -> Schema:
    return {"name": name, "type": ["null", type_], "default": None}


def _required(name: str, type_: Any) -> Schema:
    return {"name": name, "type": type_}


def _record(namespace: str, name: str, *fields: Schema) -> Schema:
    return {"type": "record", "name": name, "namespace": namespace, "fields": list(fields)}


FLIGHT: Final = _record(
    "nyc",
    "flight",
    _required("year", "int"),
    _required("month", "int"),
    _required("day", "int"),
    _nullable("dep_time", "int"),
    _required("sched_dep_time", "int"),
    _nullable("dep_delay", "int"),
    _nullable("arr_time", "int"),
    _required("sched_arr_time", "int"),
    _nullable("arr_delay", "int"),
    _required("carrier", "string"),
    _required("flight", "int"),
    _nullable("tailnum", "string"),
    _required("origin", {"type": "enum", "name": "origin", "symbols": ["EWR", "JFK", "LGA"]}),
    _required("dest", "string"),
    _nullable("air_time", "int"),
    _required("distance", "int"),
    _required("hour", "int"),
    _required("minute", "int"),
    _required("time_hour", _TIME),
)

WEATHER: Final = _record(
    "nyc",
    "weather",
    _required("origin", "string"),
    _required("time_hour", _TIME),
    _nullable("temp", "double"),
    _nullable("dewp", "double"),
    _nullable("humid", "double"),
    _nullable("wind_dir", "int"),
    _nullable("wind_speed", "double"),
    _nullable("wind_gust", "double"),
    _required("precip", "double"),
    _nullable("pressure", "double"),
    _required("visib", "double"),
)

PLANE: Final = _record(
    "nyc",
    "plane",
    _nullable("year", "int"),
    _required(
        "type",
        {"type": "enum", "name": "plane_type", "symbols": ["MULTI_ENGINE", "SINGLE_ENGINE", "ROTORCRAFT"]},
    ),
    _required("tailnum", "string"),
    _required("manufacturer", "string"),
    _required("model", "string"),
    _required("engines", "int"),
    _required("seats", "int"),
    _nullable("speed", "int"),
    _required("engine", "string"),
)

AIRLINE: Final = _record("nyc", "airlines", _required("carrier", "string"), _required("name", "string"))

AIRPORT: Final = _record(
    "nyc",
    "airports",
    _required("faa", "string"),
    _required("name", "string"),
    _required("position", _record("nyc", "position", _required("lat", "double"), _required("lon", "double"))),
    _required("alt", "int"),
    _required("tz", "int"),
    _required("dst", "string"),
    _nullable("tzone", "string"),
)

PENGUIN_V1: Final = _record(
    "palmer",
    "penguin",
    _required("species", "string"),
    _required("island", "string"),
    _nullable("bill_length_mm", "double"),
    _nullable("bill_depth_mm", "double"),
    _nullable("flipper_length_mm", "int"),
    _nullable("body_mass_g", "int"),
    _nullable("sex", "string"),
    _required("date_egg", _DATE),
)

#: The later version of the schema, with the study added.
PENGUIN_V2: Final = {**PENGUIN_V1, "fields": [*PENGUIN_V1["fields"], _nullable("study", "string")]}
