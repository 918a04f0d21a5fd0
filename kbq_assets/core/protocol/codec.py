"""Converts frozen dataclasses to JSON documents and back: the format of every state object.

Field types allowed: int, str, bool, float, ``X | None``, ``tuple[X, ...]``, ``Mapping[str | int, X]``, TableReference
and `Stored` dataclasses of these. A `Stored` dataclass keeps unknown fields in ``extra``, so an older version preserves
whatever a newer one wrote (PROTOCOL, Objects). Fields equal to their default are omitted. ``stored_as`` declares a
field whose stored key differs from its name, ``INLINE`` a part whose fields are stored among its owner's.

Every object begins with its format number and a checksum of all its other bytes::

    {"format":3,"checksum":"<32 hex digits>", … }

The checksum is BLAKE2b with 128 bits. It is in the standard library, takes one percent of the time of the JSON, and
detects damage of any size; CRC-32 would miss one in 4 billion torn objects, and could not identify the content of an
immutable object. It covers the bytes as stored instead of a canonical form, so a read needs no second encoding. Older
versions refuse an object by its format number; later formats use the same beginning. Objects of format 1 have no
checksum. Format 3 adds the manifests of commits to 2, format 4 the order of tables to 3, format 5 the chosen tables of
a replay to 4, format 7 the number of a merge of backup files to 4, format 8 a replay of error rows, and format 9 the
warehouse of a replay to 5.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import json
import re
import threading
import types
import typing
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final, TypeVar, cast

from kbq_assets.core.errors import CorruptState, UnsupportedFormat
from kbq_assets.core.protocol.names import TableReference

T = TypeVar("T")
_SCALARS = frozenset({int, str, bool, float})
#: The format this version writes.
FORMAT: Final = 3
#: The format of an ordered table's state. An object returns such a format as its ``stored_format``.
ORDERED: Final = 4
#: The format of a replay limited to chosen tables.
CHOSEN: Final = 5
#: The format of a table's state whose job in flight reads merged files.
MERGED: Final = 6
#: The format of a backup's commit while its files are merged.
MERGING: Final = 7
#: The format of an error table's state until a replay of its rows in a lake has ended.
REPLAYING: Final = 8
#: The format of a replay for any warehouse but the first.
ELSEWHERE: Final = 9
#: The highest format that this version reads.
HIGHEST: Final = ELSEWHERE
#: The last format without a checksum.
_UNCHECKED: Final = 1
_CHECKSUM_BYTES: Final = 16
_BEGINNING: Final = re.compile(rb'\{"format":([0-9]+),"checksum":"([0-9a-f]{32})"')
#: The next step if an object is lost or damaged.
RESTORE: Final = (
    "restore its previous generation, by `gcloud storage ls -a` and `cp` or from a backup: "
    "docs/operations.md#a-state-object-is-lost-or-damaged"
)
_NOTHING: Final[Mapping[str, Any]] = {}


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A state object, or a part of one. ``extra`` keeps the fields that this version does not know."""

    extra: Mapping[str, Any] = field(default_factory=lambda: _NOTHING, hash=False, repr=False)


def dumps(value: Any) -> bytes:
    """Serialize a state object deterministically, with its ``format`` number and its checksum."""
    number = getattr(value, "stored_format", FORMAT)
    body = _as_json(encode(value)).encode()
    before, after = b'{"format":%d,"checksum":"' % number, b'"' + body.replace(b"{", b",", 1)
    if body == b"{}":
        after = b'"}'
    return before + _checksum(before, after) + after


def _checksum(before: bytes, after: bytes | memoryview) -> bytes:
    """The checksum of an object, from its bytes before and after the checksum's digits."""
    found = blake2b(before, digest_size=_CHECKSUM_BYTES)
    found.update(after)
    return found.hexdigest().encode()


def checksum_of(data: bytes) -> str:
    """The checksum stored in an object; "" if it has none."""
    beginning = _BEGINNING.match(data)
    return beginning[2].decode() if beginning else ""


def loads(cls: type[T], data: bytes, path: str, *, keep: bool = True) -> T:
    """Parse a state object; ``keep`` caches it. Raises CorruptState or UnsupportedFormat with ``path`` in the
    message."""
    try:
        return cast(T, _PARSED.get(cls, data) if keep else _parse(cls, data))
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise CorruptState(
            f"{path} cannot be read: {type(error).__name__}: {error}", next_step=RESTORE
        ) from error
    except UnsupportedFormat as error:
        raise UnsupportedFormat(
            f"{path} {error.message}", next_step="upgrade KBQ; nothing was changed"
        ) from None


def _parse(cls: Any, data: bytes) -> Any:
    beginning = _BEGINNING.match(data)
    if beginning:
        start, end = beginning.span(2)
        if _checksum(data[:start], memoryview(data)[end:]) != beginning[2]:
            raise ValueError("its checksum is wrong: the object is damaged")
    with no_collection:
        document = json.loads(data)
        version = document.pop("format")
        if type(version) is not int or version < _UNCHECKED:
            raise ValueError(f"its format is {version!r}")
        if version > HIGHEST:
            raise UnsupportedFormat(f"has format {version}, this KBQ reads up to {HIGHEST}")
        if (document.pop("checksum", None) is not None or version > _UNCHECKED) and not beginning:
            raise ValueError("its beginning is damaged")
        return decode(cls, document)


class _Parsed:
    """A cache of the latest parsed values by the bytes of their objects: a run reads the same heads several times. The
    values are frozen. They take about six times as much memory as the bytes.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._lock = threading.Lock()
        self._values: dict[tuple[Any, bytes], Any] = {}

    def get(self, cls: Any, data: bytes) -> Any:
        key = cls, data
        with self._lock:
            if key in self._values:
                value = self._values[key] = self._values.pop(key)
                return value
        value = _parse(cls, data)
        with self._lock:
            if key not in self._values:
                self._bytes += len(data)
                self._values[key] = value
            while self._bytes > self._most_bytes:
                oldest = next(iter(self._values))
                del self._values[oldest]
                self._bytes -= len(oldest[1])
        return value


#: Enough for the heads of 20,000 partitions with a pending file each.
_PARSED: Final = _Parsed(16 * 1024 * 1024)


#: Made once, because `json.dumps` would make an encoder per object.
_as_json: Final = json.JSONEncoder(separators=(",", ":"), sort_keys=True).encode


class _NoCollection:
    """Pauses the garbage collector's search for cycles. State has no cycles, and the search doubles the parsing time.
    Threads may overlap; the last one to leave resumes the search.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._was_on = False

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._was_on = gc.isenabled()
                gc.disable()
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside and self._was_on:
                gc.enable()


no_collection = _NoCollection()


def stored_as(key: str) -> dict[str, str]:
    """Metadata of a dataclass field whose stored ``key`` differs from its name. Fields may be renamed, stored keys
    never."""
    return {"key": key}


#: Metadata of a dataclass field that is stored inline: its own fields are stored among its owner's.
INLINE: Final = {"inline": True}


def _key(field: dataclasses.Field[Any]) -> str:
    return str(field.metadata.get("key", field.name))


def encode(value: Any) -> Any:
    """Return the JSON form of a value."""
    cls = value.__class__
    if cls in _SCALARS:  # most values
        return value
    return _encoder(cls)(value)


@functools.cache
def _encoder(cls: type) -> Callable[[Any], Any]:
    """The encoder of a class, looked up once because one cycle encodes a million values."""
    if issubclass(cls, TableReference):
        return str
    if dataclasses.is_dataclass(cls):
        return functools.partial(_encode_dataclass, _defaults(cls))
    if issubclass(cls, Mapping):
        return _encode_mapping
    if issubclass(cls, (tuple, list)):
        return _encode_items
    return lambda value: value


def _encode_mapping(value: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(key): item if item.__class__ in _SCALARS else encode(item) for key, item in value.items()}


def _encode_items(value: Iterable[Any]) -> list[Any]:
    return [item if item.__class__ in _SCALARS else encode(item) for item in value]


def decode(cls: type[T], document: Any) -> T:
    """Build ``cls`` from its JSON form. Raises ValueError, KeyError or TypeError."""
    return cast(T, _decoder(cast(Hashable, cls))(document))


def _encode_dataclass(fields: tuple[tuple[str, str, Any], ...], value: Any) -> dict[str, Any]:
    held = value.__dict__
    document = dict(held["extra"])
    for name, key, default in fields:
        item = held[name]
        if item is default or item == default:
            continue
        if item.__class__ in _SCALARS:
            document[key] = item
        elif key:
            document[key] = encode(item)
        else:
            document.update(encode(item))
    return document


@functools.cache
def _defaults(cls: Any) -> tuple[tuple[str, str, Any], ...]:
    def default(field: dataclasses.Field[Any]) -> Any:
        if field.default_factory is not dataclasses.MISSING:
            return field.default_factory()
        return field.default

    return tuple(
        (f.name, "" if f.metadata == INLINE else _key(f), default(f))
        for f in dataclasses.fields(cls)
        if f.name != "extra"
    )


@functools.cache
def _decoder(annotation: Any) -> Callable[[Any], Any]:
    if annotation is TableReference:
        return TableReference.parse
    if annotation in _SCALARS:
        return functools.partial(_checked, annotation)
    if annotation is Any:
        return lambda item: item
    if dataclasses.is_dataclass(annotation):
        return _DataclassDecoder(typing.cast("type", annotation))
    return _container_decoder(annotation)


def _container_decoder(annotation: Any) -> Callable[[Any], Any]:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (types.UnionType, typing.Union):
        inner = _decoder(next(a for a in arguments if a is not types.NoneType))
        return lambda item: None if item is None else inner(item)
    if origin is tuple:
        element = _decoder(arguments[0])
        return lambda items: tuple(map(element, items))
    if origin is not None and issubclass(origin, Mapping):
        key, element = arguments[0], _decoder(arguments[1])
        if key is str:  # as every key of a JSON document
            return lambda items: {k: element(v) for k, v in items.items()}
        return lambda items: {key(k): element(v) for k, v in items.items()}
    raise TypeError(f"the codec does not know {annotation}")


class _DataclassDecoder:
    """Builds one frozen dataclass from documents, field by field."""

    def __init__(self, cls: type) -> None:
        if hasattr(cls, "__post_init__"):
            raise TypeError(f"the codec would build {cls.__name__} without its checks")
        if not issubclass(cls, Stored):
            raise TypeError(f"the codec would lose unknown fields of {cls.__name__}")
        self._hints = typing.get_type_hints(cls)
        self._fields = [field for field in dataclasses.fields(cls) if field.name != "extra"]
        self._cls = cls
        inlined = {f.name: self._hints[f.name] for f in self._fields if f.metadata == INLINE}
        #: by stored key, the inlined part that has it
        self._part_of = {_key(f): name for name, part in inlined.items() for f in dataclasses.fields(part)}
        self._inlined = {name: _DataclassDecoder(part) for name, part in inlined.items()}
        self._defaults = {f.name: f.default for f in self._fields if f.default is not dataclasses.MISSING}
        self._defaults["extra"] = _NOTHING
        self._factories = [
            (f.name, f.default_factory) for f in self._fields if f.default_factory is not dataclasses.MISSING
        ]
        optional = {*self._defaults, *(name for name, _ in self._factories)}
        self._required = frozenset(_key(f) for f in self._fields if f.name not in optional)

    @functools.cached_property
    def _known(self) -> dict[str, tuple[str, type, Callable[[Any], Any]]]:
        """By stored key: the field, the class of items that need no decoding, and the decoder for all others."""
        # Lazily, because a dataclass may contain itself.
        return {
            _key(f): (f.name, kind if (kind := self._hints[f.name]) in _SCALARS else _Decoded, _decoder(kind))
            for f in self._fields
            if f.name not in self._inlined
        }

    def __call__(self, document: Any) -> Any:
        if not self._required <= document.keys():
            raise KeyError(", ".join(sorted(self._required - document.keys())))
        # Bypass the constructor: a frozen dataclass's makes a call per field, and one cycle reads a million fields.
        value: Any = object.__new__(self._cls)
        values = value.__dict__
        values.update(self._defaults)
        for name, new in self._factories:
            values[name] = new()
        unknown: dict[str, Any] = {}
        parts: dict[str, dict[str, Any]] = {}
        known = self._known
        for key, item in document.items():
            if (field := known.get(key)) is not None:
                name, kind, decoder = field
                values[name] = item if item.__class__ is kind else decoder(item)
            elif (part := self._part_of.get(key)) is not None:
                parts.setdefault(part, {})[key] = item
            else:
                unknown[key] = item
        for part, found in parts.items():
            values[part] = self._inlined[part](found)
        if unknown:
            values["extra"] = unknown
        return value


class _Decoded:
    """A class that no item has, so that every item is decoded."""


def _checked(cls: type, item: Any) -> Any:
    if not isinstance(item, cls) or (cls is int and isinstance(item, bool)):
        raise TypeError(f"{item!r} is not {cls.__name__}")
    return item
