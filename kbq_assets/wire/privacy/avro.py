"""Avro records without their personal data: spans are copied as they are, decided fields replaced.

A rewriter is made per writer schema: functions over bytes, one per type on the way to a decided field; everything
else is skipped and copied. It expects valid records: validate first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from kbq_assets.core.avro import tree as avro
from kbq_assets.core.errors import UnstageableSchema
from kbq_assets.core.topics.personal import HEADERS, KEY, Decision, Pseudonyms, fields_of, undecided
from kbq_assets.wire.chunk import decode_long, encode_bytes, encode_long
from kbq_assets.wire.privacy.values import Replace, generalise, impossible, text_of, truncate
from kbq_assets.wire.records.skip import Skip, skip_of

#: Moves past a value and writes what becomes of it.
Rewrite: TypeAlias = Callable[[bytes, int, list[bytes]], int]


@dataclass(frozen=True)
class Rewriter:
    """``schema`` is that of the rewritten records, as JSON values."""

    schema: Any
    _rewrite: Rewrite

    def __call__(self, body: bytes) -> bytes:
        """A record without its personal data."""
        out: list[bytes] = []
        self._rewrite(body, 0, out)
        return b"".join(out)


def check_decided(schema: Any, decisions: Iterable[Decision]) -> None:
    """Raise UnstageableSchema where a field is tagged as highly personal and nothing is decided about it, and for what
    is no schema."""
    avro.parse(schema)
    refuse_undecided(_tagged(schema), decisions)


def refuse_undecided(tagged: Iterable[str], decisions: Iterable[Decision]) -> None:
    """The same for the paths of tagged fields."""
    missing = undecided(tagged, decisions)
    if missing:
        raise UnstageableSchema(
            f"nothing is decided about fields that are tagged as personal data: {', '.join(missing)}",
            next_step="decide about each with the option pii: drop, null, pseudonym, truncate, generalise or keep",
        )


def check_declared(schema: Any, decisions: Iterable[Decision]) -> None:
    """Raise UnstageableSchema for a decision about a field that the schema does not have: it may be misspelt.

    Not for records: fields come and go with their schema ids, and what is not there needs no decision.
    """
    for path in undeclared(schema, decisions):
        raise UnstageableSchema(
            f"pii decides about the field {path!r}, which the schema does not have",
            next_step="mend it; a defaults.yaml decides about fields of other schemas",
        )


def undeclared(schema: Any, decisions: Iterable[Decision]) -> list[str]:
    """The fields that are decided about and that a schema does not have. Raises UnstageableSchema for what is none."""
    root = avro.parse(schema)
    return [path for path in fields_of(decisions) if not _leads(root, path.split("."))]


def _leads(node: avro.AvroType, names: Sequence[str]) -> bool:
    if not names:
        return True
    if isinstance(node, avro.RecordType):
        return names[0] in node.fields and _leads(node.fields[names[0]], names[1:])
    return isinstance(node, avro.Array | avro.Union) and any(
        _leads(inner, names) for inner in avro.children(node)
    )


def rewriter(schema: Any, decisions: Iterable[Decision], pseudonyms: Pseudonyms | None) -> Rewriter:
    """The rewriter of a writer schema. A decision about a field that is not there is nothing to do. Raises
    UnstageableSchema for a field to whose type an action cannot be done."""
    root = avro.parse(schema)
    if not isinstance(root, avro.RecordType) or avro.recursive_record(root) is not None:
        raise UnstageableSchema(
            "personal data is decided about in records that do not contain themselves",
            next_step="change the schema",
        )
    targets: dict[str, Any] = {}
    for decision in decisions:
        if decision.path not in (KEY, HEADERS) and decision.action != "keep":
            _place(targets, decision)
    made = _Maker(pseudonyms)
    form, rewrite = made.record(root, targets, "")
    _note(form, schema, "", _definitions(schema))
    return Rewriter(form, rewrite)


def _note(form: Any, schema: Any, namespace: str, named: _Named) -> None:
    """What a schema says of fields goes with them: descriptions, and the tags that columns are protected by."""
    pairs = zip(_records(form, "", {}), _records(schema, namespace, named), strict=True)
    for (made, _), (said, inner) in pairs:
        fields = {each["name"]: each for each in said["fields"]}
        for each in made["fields"]:
            source = fields[each["name"]]
            each.update({key: source[key] for key in ("doc", "pii") if key in source})
            if source["name"] in _tags(source["type"], source["name"], inner, named, frozenset()):
                each["pii"] = "HIGH"  # by its type, which is written anew
            _note(each["type"], source["type"], inner, named)


def _place(targets: dict[str, Any], decision: Decision) -> None:
    *above, last = decision.path.split(".")
    for name in above:
        targets = targets.setdefault(name, {})
    targets[last] = decision


class _Maker:
    """Builds the schema and the functions of one writer schema."""

    def __init__(self, pseudonyms: Pseudonyms | None) -> None:
        self._pseudonyms = pseudonyms
        self._names: set[str] = set()

    def record(self, node: avro.RecordType, targets: Mapping[str, Any], place: str) -> tuple[Any, Rewrite]:
        """A record, some of whose fields are decided about."""
        name = self._unique(node.name)
        fields, steps = [], []
        for key, child in node.fields.items():
            form, step = self._child(child, targets.get(key), f"{place}.{key}".lstrip("."))
            steps.append(step)
            fields += [] if form is None else [{"name": key, "type": form}]
        if not fields:
            raise UnstageableSchema(
                f"pii drops every field of {place or node.name}",
                next_step="drop it as a whole, or give its fields null",
            )
        return {"type": "record", "name": name, "fields": fields}, _sequence(steps)

    def _child(self, node: avro.AvroType, target: Any, place: str) -> tuple[Any, Rewrite]:
        if target is None:
            return self.form(node), _copy(skip_of(node))
        if isinstance(target, Decision):
            if target.action == "drop":
                return None, _drop(skip_of(node))
            return self._decided(node, target, place)
        return self._through(node, target, place)

    def _through(self, node: avro.AvroType, targets: Mapping[str, Any], place: str) -> tuple[Any, Rewrite]:
        """A type on the way to a decided field."""
        if isinstance(node, avro.RecordType):
            return self.record(node, targets, place)
        if isinstance(node, avro.Array):
            form, rewrite = self._through(node.items, targets, place)
            return {"type": "array", "items": form}, _blocks(rewrite)
        if isinstance(node, avro.Union):
            made = [
                (self.form(b), _copy(skip_of(b))) if _is_null(b) else self._through(b, targets, place)
                for b in node.branches
            ]
            return [form for form, _ in made], _branches([rewrite for _, rewrite in made])
        raise impossible(place, "has no fields")

    def _decided(self, node: avro.AvroType, decision: Decision, place: str) -> tuple[Any, Rewrite]:
        if decision.action == "null":
            return self._emptied(node)
        if isinstance(node, avro.Array):
            form, rewrite = self._decided(node.items, decision, place)
            return {"type": "array", "items": form}, _blocks(rewrite)
        if isinstance(node, avro.Union):
            return self._decided_union(node, decision, place)
        form, replace = self._leaf(node, decision, place)
        return form, _replaced(skip_of(node), replace)

    def _decided_union(self, node: avro.Union, decision: Decision, place: str) -> tuple[Any, Rewrite]:
        others = [branch for branch in node.branches if not _is_null(branch)]
        if len(others) != 1:
            raise impossible(place, "is a union of several types")
        form, rewrite = self._decided(others[0], decision, place)
        forms = ["null" if _is_null(branch) else form for branch in node.branches]
        steps = [_copy(skip_of(branch)) if _is_null(branch) else rewrite for branch in node.branches]
        return forms, _branches(steps)

    def _emptied(self, node: avro.AvroType) -> tuple[Any, Rewrite]:
        form = self.form(node)
        if isinstance(node, avro.Array | avro.Map):
            return form, _constant(skip_of(node), b"\x00")
        if isinstance(node, avro.Union):
            nulls = [index for index, branch in enumerate(node.branches) if _is_null(branch)]
            if nulls:
                return form, _constant(skip_of(node), encode_long(nulls[0]))
            return ["null", *form], _constant(skip_of(node), b"\x00")
        return ["null", form], _constant(skip_of(node), b"\x00")

    def _leaf(self, node: avro.AvroType, decision: Decision, place: str) -> tuple[Any, Replace]:
        if decision.action == "pseudonym":
            return "string", self._pseudonym(node, decision, place)
        if decision.action == "truncate":
            return self.form(node), truncate(node, int(decision.argument), place)
        return self.form(node), generalise(node, decision.argument, place)

    def _pseudonym(self, node: avro.AvroType, decision: Decision, place: str) -> Replace:
        text = text_of(node, place)
        pseudonyms, context = self._pseudonyms, decision.context
        if pseudonyms is None:
            raise UnstageableSchema(
                f"field {place!r} is to be a pseudonym, and there is no key", next_step="set KBQ_PII_KEYS"
            )
        return lambda data: encode_bytes(pseudonyms.of(context, text(data)).encode())

    def form(self, node: avro.AvroType) -> Any:
        """The schema of a type that stays, its named types under names of their own."""
        logical = dict(node.logical)
        match node:
            case avro.Primitive():
                return {"type": node.kind, **logical} if logical else node.kind
            case avro.Array():
                return {"type": "array", "items": self.form(node.items)}
            case avro.Map():
                return {"type": "map", "values": self.form(node.values)}
            case avro.Union():
                return [self.form(branch) for branch in node.branches]
            case avro.Fixed():
                return {"type": "fixed", "name": self._unique(node.name), "size": node.size, **logical}
            case avro.Enum():
                return {
                    "type": "enum",
                    "name": self._unique(node.name),
                    "symbols": list(node.symbols),
                    **logical,
                }
            case avro.RecordType():
                name = self._unique(node.name)
                fields = [{"name": key, "type": self.form(child)} for key, child in node.fields.items()]
                return {"type": "record", "name": name, "fields": fields}
        raise AssertionError(node)

    def _unique(self, name: str) -> str:
        """A type that stands at two places is written twice: only one of them may be decided about."""
        found, number = name, 2
        while found in self._names:
            found, number = f"{name}_{number}", number + 1
        self._names.add(found)
        return found


# Schemas as they are written: the tree of types forgets what they say of fields and types. They are valid.

#: Named types by their full names, which core/avro/tree.py resolves references to.
_Named: TypeAlias = Mapping[str, Mapping[str, Any]]
_RECORDS: Final = frozenset({"record", "error"})
_NAMED: Final = _RECORDS | {"enum", "fixed"}
_HOLDERS: Final = {"array": "items", "map": "values"}


def _definitions(schema: Any) -> _Named:
    found: dict[str, Mapping[str, Any]] = {}

    def visit(type_: Any, namespace: str) -> None:
        for inner in type_ if isinstance(type_, list) else _inside(type_):
            visit(inner, namespace)
        if _is_named(type_):
            name = _full_name(type_, namespace)
            found[name] = type_
            for each in _fields(type_):
                visit(each["type"], _namespace(name))

    visit(schema, "")
    return found


def _inside(type_: Any) -> list[Any]:
    """What a type is made of that has no fields: items, values, or itself in another coat."""
    if not isinstance(type_, Mapping) or _is_named(type_):
        return []
    kind = type_["type"]
    return [type_[_HOLDERS[kind]] if isinstance(kind, str) and kind in _HOLDERS else kind]


def _is_named(type_: Any) -> bool:
    return isinstance(type_, Mapping) and isinstance(type_["type"], str) and type_["type"] in _NAMED


def _fields(type_: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The fields of a named type."""
    return type_["fields"] if type_["type"] in _RECORDS else ()


def _full_name(type_: Mapping[str, Any], namespace: str) -> str:
    return avro.full_name(type_["name"], type_.get("namespace", namespace) or "")


def _namespace(full_name: str) -> str:
    return full_name.rpartition(".")[0]


def _referred(type_: Any, namespace: str, named: _Named) -> str:
    """The full name of the type that a name stands for, "" for what is none."""
    if not isinstance(type_, str) or type_ in avro.PRIMITIVES:
        return ""
    name = avro.full_name(type_, namespace)
    return name if name in named else ""


def _records(type_: Any, namespace: str, named: _Named) -> Iterator[tuple[Mapping[str, Any], str]]:
    """The records that values of a type are, or hold, with the namespace of what is in them."""
    if name := _referred(type_, namespace, named):
        yield from _records(named[name], _namespace(name), named)
    elif _is_named(type_):
        if type_["type"] in _RECORDS:
            yield type_, _namespace(_full_name(type_, namespace))
    else:
        for inner in type_ if isinstance(type_, list) else _inside(type_):
            yield from _records(inner, namespace, named)


def _tagged(schema: Any) -> list[str]:
    """Paths of fields that are tagged, or whose type is."""
    return list(dict.fromkeys(_tags(schema, "", "", _definitions(schema), frozenset())))


def _tags(type_: Any, place: str, namespace: str, named: _Named, inside: frozenset[str]) -> Iterator[str]:
    """A reference has the tags of its type; ``inside`` are the types that the place is in."""
    if name := _referred(type_, namespace, named):
        if name not in inside:
            yield from _tags(named[name], place, _namespace(name), named, inside)
        return
    if isinstance(type_, Mapping) and place and _is_high(type_):
        yield place
    if _is_named(type_):
        name = _full_name(type_, namespace)
        for each in _fields(type_):
            path = f"{place}.{each['name']}".lstrip(".")
            if _is_high(each):
                yield path
            yield from _tags(each["type"], path, _namespace(name), named, inside | {name})
    for inner in type_ if isinstance(type_, list) else _inside(type_):
        yield from _tags(inner, place, namespace, named, inside)


def _is_high(said: Mapping[str, Any]) -> bool:
    return str(said.get("pii", "")).upper() == "HIGH"


def _is_null(node: avro.AvroType) -> bool:
    return isinstance(node, avro.Primitive) and node.kind == "null"


# Writing


def _copy(skip: Skip) -> Rewrite:
    def rewrite(data: bytes, position: int, out: list[bytes]) -> int:
        end = skip(data, position)
        out.append(data[position:end])
        return end

    return rewrite


def _drop(skip: Skip) -> Rewrite:
    return lambda data, position, out: skip(data, position)


def _constant(skip: Skip, value: bytes) -> Rewrite:
    return _replaced(skip, lambda data: value)


def _replaced(skip: Skip, replace: Replace) -> Rewrite:
    def rewrite(data: bytes, position: int, out: list[bytes]) -> int:
        end = skip(data, position)
        out.append(replace(data[position:end]))
        return end

    return rewrite


def _sequence(steps: list[Rewrite]) -> Rewrite:
    def rewrite(data: bytes, position: int, out: list[bytes]) -> int:
        for step in steps:
            position = step(data, position, out)
        return position

    return rewrite


def _branches(steps: list[Rewrite]) -> Rewrite:
    def rewrite(data: bytes, position: int, out: list[bytes]) -> int:
        index, position = decode_long(data, position)
        out.append(encode_long(index))
        return steps[index](data, position, out)

    return rewrite


def _blocks(item: Rewrite) -> Rewrite:
    def rewrite(data: bytes, position: int, out: list[bytes]) -> int:
        while True:
            count, position = decode_long(data, position)
            if count < 0:  # its size in bytes follows, which would be another one now
                count = -count
                _, position = decode_long(data, position)
            out.append(encode_long(count))
            if count == 0:
                return position
            for _ in range(count):
                position = item(data, position, out)

    return rewrite
