"""Steps to rewrite an Avro record. Each step skips a value and appends the bytes that replace it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from kbq_assets.wire.chunk import decode_long, encode_long
from kbq_assets.wire.privacy.values import Replace
from kbq_assets.wire.records.skip import Skip

#: Skips a value and appends its replacement; returns the position after the value.
Rewrite: TypeAlias = Callable[[bytes, int, list[bytes]], int]


def copy(skip: Skip) -> Rewrite:
    """Keep values unchanged."""

    def rewrite(data: bytes, position: int, out: list[bytes]) -> int:
        end = skip(data, position)
        out.append(data[position:end])
        return end

    return rewrite


def drop(skip: Skip) -> Rewrite:
    """Leave values out."""
    return lambda data, position, out: skip(data, position)


def constant(skip: Skip, value: bytes) -> Rewrite:
    """Replace values by ``value``."""
    return replaced(skip, lambda data: value)


def replaced(skip: Skip, replace: Replace) -> Rewrite:
    """Replace values by the result of ``replace`` for their bytes."""

    def rewrite(data: bytes, position: int, out: list[bytes]) -> int:
        end = skip(data, position)
        out.append(replace(data[position:end]))
        return end

    return rewrite


def sequence(steps: list[Rewrite]) -> Rewrite:
    """Apply steps to consecutive values."""

    def rewrite(data: bytes, position: int, out: list[bytes]) -> int:
        for step in steps:
            position = step(data, position, out)
        return position

    return rewrite


def branches(steps: list[Rewrite]) -> Rewrite:
    """Apply the step of a union's branch to its value, and keep the index."""

    def rewrite(data: bytes, position: int, out: list[bytes]) -> int:
        index, position = decode_long(data, position)
        out.append(encode_long(index))
        return steps[index](data, position, out)

    return rewrite


def blocks(item: Rewrite) -> Rewrite:
    """Apply a step to the items of an array."""

    def rewrite(data: bytes, position: int, out: list[bytes]) -> int:
        while True:
            count, position = decode_long(data, position)
            if count < 0:  # the block's size in bytes follows, and changes
                count = -count
                _, position = decode_long(data, position)
            out.append(encode_long(count))
            if count == 0:
                return position
            for _ in range(count):
                position = item(data, position, out)

    return rewrite
