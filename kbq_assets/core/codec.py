"""Frozen dataclasses to JSON documents and back: the shape of every state object.

Field types allowed: int, str, bool, float, ``X | None``, ``tuple[X, ...]``, ``Mapping[str | int, X]``, TableReference
and dataclasses of these. A dataclass with a field ``extra: Mapping[str, Any]`` keeps fields it does not know, so that
an older version passes on what a newer one wrote (PROTOCOL, Objects). Fields equal to their default are left out.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar, cast

from kbq_assets.core.errors import CorruptState, UnsupportedFormat
from kbq_assets.core.names import TableReference

T = TypeVar("T")
#: The format this version writes, and the highest it reads.
FORMAT = 1


def dumps(value: Any) -> bytes:
    """Serialise a state object, with its ``format`` number, deterministically."""
    document = {"format": FORMAT, **encode(value)}
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()


def loads(cls: type[T], data: bytes, path: str) -> T:
    """Parse a state object. Raises CorruptState or UnsupportedFormat, naming ``path``."""
    try:
        return cast(T, _parse(cast(Hashable, cls), data))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise CorruptState(
            f"{path} cannot be read: {type(error).__name__}: {error}",
            next_step="restore the object from a backup or an earlier version; KBQ never treats it as empty",
        ) from error
    except UnsupportedFormat as error:
        raise UnsupportedFormat(
            f"{path} {error.message}", next_step="upgrade KBQ; nothing was changed"
        ) from None


@functools.lru_cache(maxsize=256)
def _parse(cls: Any, data: bytes) -> Any:
    """Values are frozen, so one may be shared: loops read the same few objects again and again."""
    document = json.loads(data)
    version = document.pop("format")
    if not isinstance(version, int) or version > FORMAT:
        raise UnsupportedFormat(f"has format {version}, this KBQ reads up to {FORMAT}")
    return decode(cls, document)


def encode(value: Any) -> Any:
    """Return the JSON form of a value."""
    if isinstance(value, TableReference):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _encode_dataclass(value)
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [encode(item) for item in value]
    return value


def decode(cls: type[T], document: Any) -> T:
    """Build ``cls`` from its JSON form. Raises ValueError, KeyError or TypeError."""
    return cast(T, _decoder(cast(Hashable, cls))(document))


def _encode_dataclass(value: Any) -> dict[str, Any]:
    document = dict(getattr(value, "extra", {}))
    for name, default in _defaults(cast(Hashable, type(value))):
        item = getattr(value, name)
        if item != default:
            document[name] = encode(item)
    return document


@functools.cache
def _defaults(cls: Any) -> tuple[tuple[str, Any], ...]:
    def default(field: dataclasses.Field[Any]) -> Any:
        if field.default_factory is not dataclasses.MISSING:
            return field.default_factory()
        return field.default

    return tuple((f.name, default(f)) for f in dataclasses.fields(cls) if f.name != "extra")


@functools.cache
def _decoder(annotation: Any) -> Callable[[Any], Any]:
    if annotation is TableReference:
        return TableReference.parse
    if annotation in (int, str, bool, float):
        return functools.partial(_checked, annotation)
    if annotation is Any:
        return lambda item: item
    if dataclasses.is_dataclass(annotation):
        return _dataclass_decoder(typing.cast("type", annotation))
    return _container_decoder(annotation)


def _container_decoder(annotation: Any) -> Callable[[Any], Any]:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (types.UnionType, typing.Union):
        inner = _decoder(next(a for a in arguments if a is not types.NoneType))
        return lambda item: None if item is None else inner(item)
    if origin is tuple:
        element = _decoder(arguments[0])
        return lambda items: tuple(element(item) for item in items)
    if origin is not None and issubclass(origin, Mapping):
        key, element = arguments[0], _decoder(arguments[1])
        return lambda items: {key(k): element(v) for k, v in items.items()}
    raise TypeError(f"the codec does not know {annotation}")


def _dataclass_decoder(cls: type) -> Callable[[Any], Any]:
    hints = typing.get_type_hints(cls)
    decoders = {f.name: _decoder(hints[f.name]) for f in dataclasses.fields(cls) if f.name != "extra"}
    keeps_extra = "extra" in hints

    def build(document: Any) -> Any:
        known = {name: decoders[name](item) for name, item in document.items() if name in decoders}
        if keeps_extra:
            known["extra"] = {name: item for name, item in document.items() if name not in decoders}
        return cls(**known)

    return build


def _checked(cls: type, item: Any) -> Any:
    if not isinstance(item, cls) or (cls is int and isinstance(item, bool)):
        raise TypeError(f"{item!r} is not {cls.__name__}")
    return item
