"""Compiles a schema tree into a program for the validator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np

from kbq_assets.core.avro import tree as avro
from kbq_assets.core.avro.canonical import shared_records
from kbq_assets.core.avro.visitor import SchemaVisitor, visit
from kbq_assets.core.errors import UnstageableSchema
from kbq_assets.wire.records.program import ROUTED, WIDTH, CaptureKind, Op, Program, RoutedType
from kbq_assets.wire.records.reasons import Reason

Path: TypeAlias = tuple[str, ...]
Targets: TypeAlias = tuple[tuple[Path, int], ...]
"""Captures below a type: the field names on the path, and the capture's slot."""


_DAY = 86_400
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896  # 0001-01-01 and 9999-12-31: BigQuery's and Python's calendar
_FIRST_SECOND, _END_SECOND = _FIRST_DAY * _DAY, (_LAST_DAY + 1) * _DAY


def _seconds(per_second: int) -> tuple[int, int]:
    return _FIRST_SECOND * per_second, _END_SECOND * per_second - 1


_INT64 = (-(2**63), 2**63 - 1)
RANGES = {
    ("int", "date"): (_FIRST_DAY, _LAST_DAY),
    ("int", "time-millis"): (0, _DAY * 1000 - 1),
    ("long", "time-micros"): (0, _DAY * 1_000_000 - 1),
    ("long", "timestamp-millis"): _seconds(1000),
    ("long", "timestamp-micros"): _seconds(1_000_000),
    ("long", "local-timestamp-millis"): _seconds(1000),
    ("long", "local-timestamp-micros"): _seconds(1_000_000),
}
"""Values outside these ranges fail a load job (BigQuery) or the reader (Python), so one would spoil a whole file."""

_DATE_KINDS = {
    ("int", "date"): CaptureKind.DATE,
    ("long", "timestamp-millis"): CaptureKind.MILLIS,
    ("long", "timestamp-micros"): CaptureKind.MICROS,
    ("long", "timestamp-nanos"): CaptureKind.NANOS,
    ("long", "local-timestamp-millis"): CaptureKind.MILLIS,
    ("long", "local-timestamp-micros"): CaptureKind.MICROS,
    ("long", "local-timestamp-nanos"): CaptureKind.NANOS,
    ("long", ""): CaptureKind.LONG,
    ("int", ""): CaptureKind.LONG,
    ("string", ""): CaptureKind.TEXT,
}
_SIZES = {"null": 0, "float": 4, "double": 8}
_SIMPLE = {
    "boolean": Op.BOOLEAN,
    "int": Op.INT,
    "long": Op.LONG,
    "bytes": Op.BYTES,
    "string": Op.STRING,
}
_MAX_PRECISION = 1000  # digits; no warehouse reads longer decimals as numbers


def compile_program(
    root: avro.AvroType,
    captures: Sequence[str] = (),
    routes: Sequence[str] = (),
    whole: Sequence[str] = (),
    *,
    null_items: bool = True,
) -> Program:
    """The program that validates ``root`` and captures the fields at the given dotted paths, in one slot each.

    Paths lead through records and unions. ``captures`` are dates, timestamps, longs or strings; ``routes`` are strings,
    enums, booleans or plain integers; ``whole`` are fields of any type that takes bytes. A path that is not in the
    schema captures nothing. Without ``null_items``, a null in an array is bad. Raises UnstageableSchema if a captured
    field has another type.
    """
    targets = tuple((tuple(path.split(".")), slot) for slot, path in enumerate((*captures, *routes, *whole)))
    return _Compiler(root, len(captures), len(routes), null_items).program(targets)


class _Code:
    """The arrays of a program while it is compiled."""

    def __init__(self) -> None:
        self.code: list[int] = []
        self.places: list[str] = []
        self.jumps: list[int] = []
        self.ranges: list[tuple[int, int]] = []
        self.bounds: list[int] = []
        self.label = 0  # a jump target: instructions before it must not be merged with those after it

    def emit(self, op: Op, place: str, a: int = 0, b: int = 0) -> int:
        """Append an instruction; returns its address."""
        address = len(self.code)
        self.code += [op, a, b, 0]
        self.places.append(place)
        return address

    def here(self) -> int:
        """The address of the next instruction, marked as a jump target."""
        self.label = len(self.code)
        return self.label

    def skip(self, size: int, place: str) -> None:
        mergeable = len(self.code) > self.label and self.code[-WIDTH] == Op.SKIP
        if mergeable and self.code[-WIDTH + 1] + size < 2**31:
            self.code[-WIDTH + 1] += size
        elif size:
            self.emit(Op.SKIP, place, size)

    def range(self, bounds: tuple[int, int]) -> int:
        if bounds not in self.ranges:
            self.ranges.append(bounds)
        return 2 * self.ranges.index(bounds)

    def bound(self, precision: int) -> int:
        """Store ``10**precision - 1`` and ``10**precision - 2``, the largest magnitudes (see `decimal_fits`); returns
        their address."""
        largest = 10**precision - 1
        size = (largest.bit_length() + 7) // 8
        address = len(self.bounds)
        self.bounds += [size >> 8, size & 0xFF, *largest.to_bytes(size), *(largest - 1).to_bytes(size)]
        return address


class _Compiler(_Code):
    def __init__(self, root: avro.AvroType, first_route: int, routes: int, null_items: bool) -> None:
        super().__init__()
        self.null_items = null_items
        self.root = root
        self.first_route = first_route
        self.first_whole = first_route + routes
        self.routed: list[RoutedType] = []
        self.shared = shared_records(root)
        self.calls: list[tuple[int, avro.RecordType]] = []

    def program(self, targets: Targets) -> Program:
        if isinstance(self.root, avro.RecordType):
            self.fields(self.root, "", targets)
        else:
            self.node(self.root, "", targets)
        self.emit(Op.END, "")
        self.subroutines()
        return Program(
            np.array(self.code, np.int32),
            np.array(self.jumps or [0], np.int32),
            np.array(self.ranges or [_INT64], np.int64).reshape(-1),
            np.array(self.bounds or [0], np.uint8),
            tuple(self.places),
            len(targets),
            self.first_whole - self.first_route,
            tuple(self.routed),
        )

    def subroutines(self) -> None:
        addresses: dict[str, int] = {}
        for call, record in self.calls:  # grows while it runs: subroutines call subroutines
            if record.name not in addresses:
                addresses[record.name] = self.here()
                self.fields(record, record.name, ())
                self.emit(Op.RETURN, record.name)
            self.code[call + 1] = addresses[record.name]

    def node(self, node: avro.AvroType, place: str, targets: Targets = ()) -> None:
        slots = [slot for path, slot in targets if not path]
        if slots and slots[0] >= self.first_whole:
            self.whole(node, place, slots[0])
        elif slots and not isinstance(node, avro.Union):
            self.captured(node, place, slots)
        else:
            self.plain(node, place, targets)

    def captured(self, node: avro.AvroType, place: str, slots: Sequence[int]) -> None:
        if avro.is_null(node):
            return
        kinds = [
            self.date_kind(node, place) if slot < self.first_route else self.route_kind(node, place)
            for slot in slots
        ]
        for slot in slots:
            self.emit(Op.MARK, place, slot)
        self.plain(node, place, ())
        for slot, kind in zip(slots, kinds, strict=True):
            self.emit(Op.CLOSE, place, slot, kind)

    def whole(self, node: avro.AvroType, place: str, slot: int) -> None:
        if takes_no_bytes(node):
            return
        self.emit(Op.MARK, place, slot)
        self.plain(node, place, ())
        self.emit(Op.CLOSE, place, slot, CaptureKind.WHOLE)

    def date_kind(self, node: avro.AvroType, place: str) -> int:
        kind = _capture_kind(node)
        if kind is CaptureKind.NONE:
            raise UnstageableSchema(
                f"field {place!r} cannot give the event date: "
                "it is not a date, a timestamp, a long or a string",
                next_step="choose another event date field for this topic, or none to use the Kafka timestamp",
            )
        return int(kind)

    def route_kind(self, node: avro.AvroType, place: str) -> int:
        type_ = _routed_type(node)
        if type_ is None:
            raise _unroutable(place)
        if type_ not in self.routed:
            self.routed.append(type_)
        index = self.routed.index(type_)
        if index > _MOST_ROUTED:
            raise _unroutable(place)
        return ROUTED + index

    def plain(self, node: avro.AvroType, place: str, targets: Targets) -> None:
        if isinstance(node, avro.Array | avro.Map) and any(slot >= self.first_route for _, slot in targets):
            raise _unroutable(place)
        match node:
            case avro.Primitive():
                self.primitive(node, place)
            case avro.Fixed():
                self.fixed(node, place)
            case avro.Enum():
                self.emit(Op.ENUM, place, len(node.symbols))
            case avro.Array():
                self.array(node, place)
            case avro.Map():
                self.map(node, place)
            case avro.Union():
                self.union(node, place, targets)
            case avro.RecordType():
                self.record(node, place, targets)

    def primitive(self, node: avro.Primitive, place: str) -> None:
        bounds = RANGES.get((node.kind, str(node.attribute("logicalType"))))
        precision = _precision(node)
        if node.kind in _SIZES:
            self.skip(_SIZES[node.kind], place)
        elif node.kind == "bytes" and precision:
            self.emit(Op.DECIMAL_BYTES, place, self.bound(precision))
        elif bounds:
            self.emit(Op.INT_RANGE if node.kind == "int" else Op.LONG_RANGE, place, self.range(bounds))
        else:
            self.emit(_SIMPLE[node.kind], place)

    def fixed(self, node: avro.Fixed, place: str) -> None:
        if not node.size:
            raise avro.refusal(place, "Avro C++, and so BigQuery, cannot read a fixed type of size 0")
        precision = _precision(node)
        if precision:
            self.emit(Op.DECIMAL_FIXED, place, self.bound(precision), node.size)
        else:
            self.skip(node.size, place)

    def record(self, node: avro.RecordType, place: str, targets: Targets) -> None:
        # Inline a record on the path to a captured field, because a subroutine would capture at each of its uses.
        if node.name in self.shared and not targets:
            self.calls.append((len(self.code), node))
            self.emit(Op.CALL, place)
        else:
            self.fields(node, place, targets)

    def fields(self, node: avro.RecordType, place: str, targets: Targets) -> None:
        for name, field in node.fields.items():
            below = tuple((path[1:], slot) for path, slot in targets if path and path[0] == name)
            self.node(field.type, f"{place}.{name}" if place else name, below)

    def array(self, node: avro.Array, place: str) -> None:
        if takes_no_bytes(node.items):
            self.emit(Op.EMPTY_ITEMS, place)
        else:
            self.loop(place, [node.items], refuses_null=not self.null_items)

    def map(self, node: avro.Map, place: str) -> None:
        self.loop(place, [avro.Primitive((), "string"), node.values])

    def loop(self, place: str, item: Iterable[avro.AvroType], *, refuses_null: bool = False) -> None:
        begin = self.emit(Op.LOOP, place)
        body = self.here()
        for part in item:
            if refuses_null and isinstance(part, avro.Union):
                self.union(part, place, (), refuses_null=True)
            else:
                self.node(part, place)
        self.code[begin + 1] = self.here()
        self.emit(Op.NEXT, place, body)
        self.here()

    def union(self, node: avro.Union, place: str, targets: Targets, *, refuses_null: bool = False) -> None:
        nulls = [avro.is_null(branch) for branch in node.branches]
        if len(nulls) == 2 and nulls.count(True) == 1 and not refuses_null:
            null = nulls.index(True)
            begin = self.emit(Op.NULLABLE, place, 2 * null)
            self.label = len(self.code)
            self.node(node.branches[1 - null], place, targets)
            self.code[begin + 2] = self.here()
        else:
            self.jump_table(node, place, targets, refuses_null=refuses_null)

    def jump_table(self, node: avro.Union, place: str, targets: Targets, *, refuses_null: bool) -> None:
        first = len(self.jumps)
        self.jumps += [0] * len(node.branches)
        self.emit(Op.UNION, place, len(node.branches), first)
        exits = []
        for index, branch in enumerate(node.branches):
            self.jumps[first + index] = self.here()
            if refuses_null and avro.is_null(branch):
                self.emit(Op.REFUSE, place, int(Reason.NULL_ITEM))
            else:
                self.node(branch, place, targets)
            exits.append(self.emit(Op.JUMP, place))
        for jump in exits:
            self.code[jump + 1] = self.here()


def _capture_kind(node: avro.AvroType) -> CaptureKind:
    if not isinstance(node, avro.Primitive):
        return CaptureKind.NONE
    logical = str(node.attribute("logicalType") or "")
    if logical.startswith("time-"):
        return CaptureKind.NONE  # a time without a date
    exact = _DATE_KINDS.get((node.kind, logical))
    return exact if exact is not None else _DATE_KINDS.get((node.kind, ""), CaptureKind.NONE)


def _routed_type(node: avro.AvroType) -> RoutedType | None:
    """The type with which a field becomes part of a name; None for types that are not allowed there."""
    if isinstance(node, avro.Enum):
        return RoutedType("enum", node.symbols)
    if not isinstance(node, avro.Primitive) or node.kind not in ("string", "boolean", "int", "long"):
        return None
    is_number = node.kind in ("int", "long")
    return None if is_number and node.attribute("logicalType") else RoutedType(node.kind)


#: The limit follows from kinds having one byte.
_MOST_ROUTED = 255 - ROUTED


def _unroutable(place: str) -> UnstageableSchema:
    return UnstageableSchema(
        f"field {place!r} cannot be part of a table's name: it is not a string, enum, boolean or plain integer",
        next_step="use another field in table=, dataset= or the route's inputs",
    )


def _precision(node: avro.Primitive | avro.Fixed) -> int:
    """The precision of a decimal; 0 for other types, and for invalid decimals, which readers treat as plain bytes."""
    precision, scale = node.attribute("precision"), node.attribute("scale") or 0
    valid = (
        isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision <= _MAX_PRECISION
    )
    if node.attribute("logicalType") != "decimal" or not valid:
        return 0
    assert isinstance(precision, int)
    return precision


def takes_no_bytes(node: avro.AvroType) -> bool:
    """Whether all values of a type are encoded in zero bytes."""
    return visit(node, _TakesNoBytes())


class _TakesNoBytes(SchemaVisitor[bool]):
    def other(self, node: avro.AvroType, inside: Sequence[bool]) -> bool:
        return isinstance(node, avro.RecordType) and all(inside)

    def primitive(self, node: avro.Primitive) -> bool:
        return node.kind == "null"

    def fixed(self, node: avro.Fixed) -> bool:
        return False

    def inside_itself(self, node: avro.RecordType) -> bool:
        return True
