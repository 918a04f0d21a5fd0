"""Every stored class with any values: keys from a newer release are preserved at any depth (PROTOCOL, Objects)."""

from __future__ import annotations

import dataclasses
import importlib
import json
import pkgutil
import types
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kbq_assets.core
from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol.codec import Stored
from kbq_assets.core.protocol.names import TableReference

_UNKNOWN = st.fixed_dictionaries({"of_tomorrow": st.one_of(st.integers(), st.text(), st.just({"a": [1]}))})


def _all(cls: type[Stored]) -> Iterator[type[Stored]]:
    for each in cls.__subclasses__():
        yield each
        yield from _all(each)


def stored_classes() -> list[type[Stored]]:
    """Every class of the core that is stored."""
    for module in pkgutil.walk_packages(kbq_assets.core.__path__, "kbq_assets.core."):
        importlib.import_module(module.name)
    return sorted(
        {each for each in _all(Stored) if each.__module__.startswith("kbq_assets.")},
        key=lambda each: (each.__module__, each.__qualname__),
    )


CLASSES = stored_classes()


@cache
def values(annotation: Any, depth: int = 3) -> st.SearchStrategy[Any]:
    """Values of a field's type; below some depth, nothing that may be left out."""
    if annotation in (int, bool, str, float):
        return st.from_type(annotation) if annotation is not float else st.floats(allow_nan=False)
    if annotation is TableReference:
        return st.builds(TableReference, st.just("d"), st.sampled_from(["a", "b"]))
    if annotation is Any:
        return st.none() | st.integers() | st.text()
    if dataclasses.is_dataclass(annotation):
        return _objects(typing.cast("type[Stored]", annotation), depth)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (types.UnionType, typing.Union):
        inner = next(a for a in arguments if a is not types.NoneType)
        return st.none() if depth == 0 else st.none() | values(inner, depth)
    if origin is tuple:
        return st.just(()) if depth == 0 else st.lists(values(arguments[0], depth - 1), max_size=2).map(tuple)
    assert issubclass(origin, Mapping), annotation
    if depth == 0:
        return st.just({})
    return st.dictionaries(values(arguments[0]), values(arguments[1], depth - 1), max_size=2)


def _objects(cls: type[Stored], depth: int) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(cls)
    given_ = {
        field.name: _inlined(hints[field.name], depth)
        if field.metadata == codec.INLINE
        # a class may contain itself
        else values(hints[field.name], max(0, depth - 1))
        for field in dataclasses.fields(cls)
        if field.name != "extra"
    }
    return st.builds(cls, **given_, extra=_UNKNOWN)


def _inlined(cls: type[Stored], depth: int) -> st.SearchStrategy[Any]:
    """A part among its owner's fields: unknown ones are the owner's."""
    return _objects(cls, depth).map(lambda value: dataclasses.replace(value, extra={}))


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_any_value_and_what_is_unknown_within_it_survives(cls: type[Stored]) -> None:
    @settings(max_examples=5, deadline=None, database=None)
    @given(_objects(cls, 3))
    def survives(value: Stored) -> None:
        assert codec.decode(cls, json.loads(json.dumps(codec.encode(value)))) == value

    survives()


def test_all_stored_classes_are_tried() -> None:
    assert len(CLASSES) > 40
