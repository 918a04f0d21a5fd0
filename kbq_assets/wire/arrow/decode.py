"""Decodes blocks of Avro records to Arrow, in the types of a table's columns.

A compiled kernel (`kernel`) reads large batches. fastavro reads all others, and those that the kernel does not accept:
a whole block per call, as an Avro array.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import fastavro
import pyarrow as pa

from kbq_assets.core.avro import tree as avro
from kbq_assets.core.loading.tables import Column
from kbq_assets.wire.arrow.avro_types import value_of
from kbq_assets.wire.arrow.container import Block
from kbq_assets.wire.arrow.convert import arranged, nothing
from kbq_assets.wire.arrow.errors import BadFile
from kbq_assets.wire.arrow.nested import record_node
from kbq_assets.wire.arrow.types import is_known

#: Bytes from which on the kernel is worth its start: about 0.5 s to import numba, and once 5 s to compile.
_FLAT_BYTES: Final = 1 << 20
#: Bytes from which on a started kernel is faster.
_STARTED_BYTES: Final = 32 << 10
#: Most records to decode at once: by fastavro, and by the kernel if they have lists. For flat records, most values (17
#: bytes each) in the kernel.
_RECORDS, _LISTS, _FLAT_VALUES = 10_000, 20_000, 1_000_000


#: Bytes of Avro to have as Python objects at once, which take tens of times as much memory.
_OBJECT_BYTES: Final = 1 << 20


@dataclass
class _Past:
    """Bytes that this process has decoded so far, because many small batches are worth the kernel's start too."""

    bytes: int = 0


_PAST: Final = _Past()


class Decoder:
    """Decodes records of one writer schema into the columns of one table.

    The schema must fit the columns (`plan_table_change` finds nothing to change). Batches of at least ``flat_bytes`` go
    to the kernel if the schema allows it.
    """

    def __init__(self, schema: str, columns: Sequence[Column], *, flat_bytes: int = _FLAT_BYTES) -> None:
        node = avro.parse(avro.load_schema(schema))
        self._root = value_of(node)
        self._node = record_node(node)
        self._flat_bytes = flat_bytes
        self._fields = {name.lower(): (name, value) for name, value in self._root.members.items()}
        self._columns = [column for column in columns if self._fills(column)]
        self._schema = fastavro.parse_schema({"type": "array", "items": self._root.avro})

    @cached_property
    def batch_records(self) -> int:
        """The number of records to decode at once. The Python objects of a record take some kilobytes."""
        if self._node is None:
            return _RECORDS
        return max(_RECORDS, _FLAT_VALUES // max(self._node.slots, 1)) if self._node.is_flat else _LISTS

    def table(self, blocks: Sequence[Block]) -> pa.Table:
        """The records of some blocks as a table. Raises BadFile, TooManyValues."""
        if (arrays := self._by_kernel(blocks)) is not None:
            return self._arranged(arrays.__getitem__, blocks)
        parts = [self._arranged(self._by_fastavro(part), part) for part in _parts(blocks)]
        return pa.concat_tables(parts)

    def records(self, block: Block) -> list[dict[str, Any]]:
        """The records of a block, with raw values. Raises BadFile if they do not fill it exactly."""
        if not block.count and not block.data:
            return []  # an array ends at an empty block
        stream = io.BytesIO(_zigzag(block.count) + block.data + b"\0")
        try:
            found = fastavro.schemaless_reader(stream, self._schema, None)
        except (EOFError, ValueError, IndexError, OverflowError, StopIteration, TypeError) as error:
            raise BadFile(f"a record cannot be decoded: {type(error).__name__} {error}") from error
        if stream.read(1) or len(found) != block.count:  # type: ignore[arg-type]
            raise BadFile("a block has bytes that belong to no record")
        return found  # type: ignore[return-value]

    def _fills(self, column: Column) -> bool:
        """Whether the load sets a column. Other columns get their default, as in BigQuery."""
        return column.name.lower() in self._fields or (column.mode == "REPEATED" and is_known(column))

    def _by_kernel(self, blocks: Sequence[Block]) -> Mapping[str, pa.Array] | None:
        """The raw values of each field, None if fastavro must read them."""
        size = sum(len(block.data) for block in blocks)
        if self._node is None or not self._is_worth_the_kernel(size):
            return None
        from kbq_assets.wire.arrow.kernel import read_records

        return read_records(blocks, self._node)

    def _by_fastavro(self, blocks: Sequence[Block]) -> Callable[[str], pa.Array]:
        """A function that returns a field's raw values."""
        records = [record for block in blocks for record in self.records(block)]
        members = self._root.members
        return lambda name: pa.array([record[name] for record in records], members[name].raw)

    def _arranged(self, raw: Callable[[str], pa.Array], blocks: Sequence[Block]) -> pa.Table:
        length = sum(block.count for block in blocks)
        arrays = [self._array(column, raw, length) for column in self._columns]
        return pa.Table.from_arrays(arrays, names=[column.name for column in self._columns])

    def _is_worth_the_kernel(self, size: int) -> bool:
        _PAST.bytes += size
        has_started = _PAST.bytes >= self._flat_bytes
        return size >= (min(_STARTED_BYTES, self._flat_bytes) if has_started else self._flat_bytes)

    def _array(self, column: Column, raw: Callable[[str], pa.Array], length: int) -> pa.Array:
        name, value = self._fields.get(column.name.lower(), ("", None))
        if value is None:
            return nothing(length, column)
        try:
            return arranged(raw(name), value, column)
        except (ValueError, OverflowError, TypeError) as error:  # pa.ArrowInvalid is a ValueError
            raise BadFile(f"column {column.name}: {error}") from error


def _parts(blocks: Sequence[Block]) -> Iterator[list[Block]]:
    """Groups of blocks, at least one each, whose records fit into memory as Python objects."""
    taken: list[Block] = []
    size = 0
    for block in blocks:
        if taken and size + len(block.data) > _OBJECT_BYTES:
            yield taken
            taken, size = [], 0
        taken.append(block)
        size += len(block.data)
    yield taken


def _zigzag(number: int) -> bytes:
    """A count as an Avro long."""
    value, out = number << 1, bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
