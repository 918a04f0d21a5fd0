"""The demo's Avro schemas."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

Schema: TypeAlias = dict[str, Any]


def _field(text: str) -> Schema:
    """A field from ``name type``. A type with a question mark is nullable, with null as its default."""
    name, type_ = text.split()
    if type_.endswith("?"):
        return {"name": name, "type": ["null", type_.removesuffix("?")], "default": None}
    return {"name": name, "type": _TYPES.get(type_, type_)}


def _record(namespace: str, name: str, fields: str) -> Schema:
    found = [_field(text) for text in fields.split(",")]
    return {"type": "record", "name": name, "namespace": namespace, "fields": found}


#: Types other than Avro's primitive types.
_TYPES: Final[dict[str, Schema]] = {
    "date": {"type": "int", "logicalType": "date"},
    "time": {"type": "long", "logicalType": "timestamp-millis"},
    "origin": {"type": "enum", "name": "origin", "symbols": ["EWR", "JFK", "LGA"]},
    "plane_type": {
        "type": "enum", "name": "plane_type", "symbols": ["MULTI_ENGINE", "SINGLE_ENGINE", "ROTORCRAFT"],
    },
}  # fmt: skip
_TYPES["position"] = _record("nyc", "position", "lat double, lon double")

FLIGHT: Final = _record(
    "nyc",
    "flight",
    "year int, month int, day int, dep_time int?, sched_dep_time int, dep_delay int?, arr_time int?,"
    " sched_arr_time int, arr_delay int?, carrier string, flight int, tailnum string?, origin origin, dest string,"
    " air_time int?, distance int, hour int, minute int, time_hour time",
)
WEATHER: Final = _record(
    "nyc",
    "weather",
    "origin string, time_hour time, temp double?, dewp double?, humid double?, wind_dir int?, wind_speed double?,"
    " wind_gust double?, precip double, pressure double?, visib double",
)
PLANE: Final = _record(
    "nyc",
    "plane",
    "year int?, type plane_type, tailnum string, manufacturer string, model string, engines int, seats int,"
    " speed int?, engine string",
)
AIRLINE: Final = _record("nyc", "airlines", "carrier string, name string")
AIRPORT: Final = _record(
    "nyc",
    "airports",
    "faa string, name string, position position, alt int, tz int, dst string, tzone string?",
)
PENGUIN_V1: Final = _record(
    "palmer",
    "penguin",
    "species string, island string, bill_length_mm double?, bill_depth_mm double?, flipper_length_mm int?,"
    " body_mass_g int?, sex string?, date_egg date",
)
#: The later version of the schema, which adds the study.
PENGUIN_V2: Final = {**PENGUIN_V1, "fields": [*PENGUIN_V1["fields"], _field("study string?")]}
