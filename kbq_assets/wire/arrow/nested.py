"""The types that the kernel reads without Python objects: scalars, records, lists and unions, all optionally
nullable."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias

from kbq_assets.core.avro import tree as avro


class Kind(IntEnum):
    """The encoding of a value."""

    NULL = 0
    BOOLEAN = 1
    INT = 2
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    BYTES = 6
    STRING = 7
    FIXED = 8
    ENUM = 9
    #: a record, which has a step in the program only if it may be null
    STRUCT = 10
    #: an array, or a map, which is an array of keys and values; END is the end of its items
    LIST = 11
    END = 12
    #: a union of several types, followed by a table with a JUMP to each branch
    UNION = 13
    JUMP = 14


@dataclass(frozen=True)
class Node:
    """A value. ``null_branch`` is the index of null in its union, -1 if there is none. ``members`` are a record's
    fields, a list's items with the name "", or the other branches of a union of several types. ``slot`` is the kernel's
    slot for it, -1 for a record that is never null."""

    kind: Kind
    null_branch: int = -1
    size: int = 0
    symbols: tuple[str, ...] = ()
    members: tuple[tuple[str, Node], ...] = ()
    slot: int = -1

    @property
    def slots(self) -> int:
        """The number of slots of this node and its members."""
        return (self.slot >= 0) + sum(member.slots for _, member in self.members)

    @property
    def branches(self) -> list[int]:
        """The index of each member in a union of several types."""
        return [place + (0 <= self.null_branch <= place) for place in range(len(self.members))]

    @property
    def is_flat(self) -> bool:
        """Whether each record has exactly one value in each slot."""
        return all(node.slot < 0 or node.kind < Kind.STRUCT for node in self.walk())

    def walk(self) -> Iterator[Node]:
        """This node and all nodes inside."""
        yield self
        for _, member in self.members:
            yield from member.walk()


Step: TypeAlias = tuple[int, int, int, int, int]
"""Kind, branch of null, size (of a union, its number of branches), the step after it and its members, slot. For the end
of a list, its first step; for a jump, its target."""

#: A schema that reuses its records may have 2**100 values.
_MOST_SLOTS: Final = 10_000


class _Slots:
    """Assigns slot numbers in the order of the values."""

    def __init__(self) -> None:
        self.count = 0

    def take(self) -> int:
        self.count += 1
        return self.count - 1


def record_node(node: avro.AvroType) -> Node | None:
    """The node of a record, None if a value in it is a union of a single type, or if it has too many values."""
    return _node(node, _Slots(), -1)


def _node(node: avro.AvroType, slots: _Slots, null_branch: int) -> Node | None:
    if slots.count > _MOST_SLOTS:
        return None
    match node:
        case avro.Union():
            return _union(node, slots)
        case avro.RecordType():
            slot = slots.take() if null_branch >= 0 else -1
            fields = [(name, _node(each.type, slots, -1)) for name, each in node.fields.items()]
            return _with(Node(Kind.STRUCT, null_branch, slot=slot), fields)
        case avro.Array():
            return _list(null_branch, slots, lambda: _node(node.items, slots, -1))
        case avro.Map():
            return _list(null_branch, slots, lambda: _pair(node, slots))
    return _scalar(node, slots, null_branch)


def _union(node: avro.Union, slots: _Slots) -> Node | None:
    nulls = [place for place, branch in enumerate(node.branches) if avro.is_null(branch)]
    null = nulls[0] if nulls else -1
    others = [branch for branch in node.branches if not avro.is_null(branch)]
    if node.several:
        slot = slots.take()
        members = [(avro.member_name(branch), _node(branch, slots, -1)) for branch in others]
        return _with(Node(Kind.UNION, null, slot=slot), members)
    return _node(others[0], slots, null) if nulls and others else None


def _scalar(node: avro.AvroType, slots: _Slots, null_branch: int) -> Node:
    if isinstance(node, avro.Fixed):
        return Node(Kind.FIXED, null_branch, node.size, slot=slots.take())
    if isinstance(node, avro.Enum):
        return Node(Kind.ENUM, null_branch, len(node.symbols), node.symbols, slot=slots.take())
    assert isinstance(node, avro.Primitive)
    return Node(Kind[node.kind.upper()], null_branch, slot=slots.take())


def _list(null_branch: int, slots: _Slots, item: Callable[[], Node | None]) -> Node | None:
    slot = slots.take()
    return _with(Node(Kind.LIST, null_branch, slot=slot), [("", item())])


def _pair(node: avro.Map, slots: _Slots) -> Node | None:
    key = Node(Kind.STRING, slot=slots.take())
    return _with(Node(Kind.STRUCT), [("key", key), ("value", _node(node.values, slots, -1))])


def _with(node: Node, members: Sequence[tuple[str, Node | None]]) -> Node | None:
    found = tuple((name, member) for name, member in members if member is not None)
    if len(found) < len(members):
        return None
    return Node(node.kind, node.null_branch, node.size, node.symbols, found, node.slot)


def program_of(node: Node) -> list[Step]:
    """The steps that read one record."""
    steps: list[Step] = []
    _compile(node, steps)
    return steps


def _compile(node: Node, steps: list[Step]) -> None:
    first = len(steps)
    if node.kind is Kind.UNION:
        _compile_union(node, steps)
        return
    if node.slot >= 0:
        steps.append((node.kind, node.null_branch, node.size, 0, node.slot))
    for _, member in node.members:
        _compile(member, steps)
    if node.kind is Kind.LIST:
        steps.append((Kind.END, -1, 0, first, node.slot))
    if node.slot >= 0:
        steps[first] = (*steps[first][:3], len(steps), node.slot)


def _compile_union(node: Node, steps: list[Step]) -> None:
    branches = len(node.members) + (node.null_branch >= 0)
    steps.append((Kind.UNION, -1, branches, 0, node.slot))
    table = len(steps)
    steps += [_jump(0)] * branches
    ends = [] if node.null_branch < 0 else [table + node.null_branch]
    for branch, (_, member) in zip(node.branches, node.members, strict=True):
        steps[table + branch] = _jump(len(steps))
        _compile(member, steps)
        ends.append(len(steps))
        steps.append(_jump(0))
    for end in ends:
        steps[end] = _jump(len(steps))


def _jump(to: int) -> Step:
    return Kind.JUMP, -1, 0, to, -1
