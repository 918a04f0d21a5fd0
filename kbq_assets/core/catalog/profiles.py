"""Profiles in `catalog.yaml` (the defaults of a typology or throughput), and short forms of keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from kbq_assets.core.catalog.fields import ENTRY, TYPOLOGIES
from kbq_assets.core.catalog.nodes import CatalogProblem, DocumentNode, Mistake, inherit
from kbq_assets.core.catalog.validation import check_fields
from kbq_assets.core.spelling import meant

#: Sections that may be a single value, with the key that this value sets.
_SHORT: Final[Mapping[str, str]] = {"ownership": "team", "pii": "level"}
#: For each key of `flush`, the key of `extraction` and the default, which is the one of Leboncoin's archive.
_FLUSH: Final[Mapping[str, tuple[str, int | bool]]] = {
    "records": ("min_records", 500_000),
    "bytes": ("min_bytes", 0),
    "seconds": ("max_wait_seconds", 1_200),
    "hours": ("close_hours", True),
}


@dataclass(frozen=True)
class Profiles:
    """Partial entries by name. An entry's own values and its defaults override them."""

    typologies: Mapping[str, DocumentNode] = field(default_factory=dict)
    throughputs: Mapping[str, DocumentNode] = field(default_factory=dict)

    def under(self, document: DocumentNode) -> list[DocumentNode]:
        """The profiles that a document names, lowest priority first."""
        typology = self.typologies.get(_text(document, "typology"))
        named = inherit(typology, document)
        throughput = self.throughputs.get(_text(named, "throughput"))
        return [profile for profile in (typology, throughput) if profile is not None]

    def check(self, document: DocumentNode) -> Iterator[CatalogProblem]:
        known = (*self.typologies, *(name for name in TYPOLOGIES if name not in self.typologies))
        yield from _check_name(document, "typology", known)
        yield from _check_name(document, "throughput", (*self.throughputs,))


def parse_profiles(root: DocumentNode) -> tuple[Profiles, list[CatalogProblem]]:
    """The profiles in `catalog.yaml`, and the mistakes in them."""
    problems: list[CatalogProblem] = []
    found: dict[str, dict[str, DocumentNode]] = {}
    for key in ("typologies", "throughputs"):
        found[key] = {name: spelled_out(node) for name, node in root.fields_at(key).items()}
        for name, node in found[key].items():
            problems += check_fields(node, ENTRY, f"{key}.{name}")
            own = node.find(key.replace("ies", "y").rstrip("s"))
            if own is not None:
                where = f"{key}.{name}"
                problems.append(own.problem(where, "a profile cannot name its own kind"))
    return Profiles(found["typologies"], found["throughputs"]), problems


def spelled_out(document: DocumentNode) -> DocumentNode:
    """The document with short forms expanded to sections: ``ownership: sales`` becomes ``ownership: {team: sales}``."""
    if not isinstance(document.value, Mapping):
        return document
    keys = {
        key: _section(node, _SHORT[key]) if key in _SHORT else node for key, node in document.value.items()
    }
    return DocumentNode(keys, document.path, document.line)


def translate_flush(document: DocumentNode) -> DocumentNode:
    """A merged entry with the limits of `flush` translated to keys of `extraction`. Raises Mistake if both sections set
    one, or if there is nothing to wait for."""
    flush = document.find("flush")
    if flush is None or not isinstance(flush.value, Mapping):
        return document

    section = document.find("extraction") or flush
    keys = {} if section is flush else dict(section.fields)
    for bound, (key, default) in _FLUSH.items():
        if key in keys:
            hint = f"remove one of them; extraction: {{{key}: null}} removes an inherited one"
            raise Mistake(keys[key].problem(f"extraction.{key}", f"is also set by flush.{bound}", hint))
        keys[key] = flush.find(bound) or DocumentNode(default, flush.path, flush.line)
    if not keys["min_records"].value and not keys["min_bytes"].value:
        message = "sets neither records nor bytes to wait for"
        raise Mistake(flush.problem("flush", message, "remove flush if nothing should wait"))
    rest = {key: node for key, node in document.fields.items() if key != "flush"}
    extraction = DocumentNode(keys, section.path, section.line)
    return DocumentNode({**rest, "extraction": extraction}, document.path, document.line)


def _section(node: DocumentNode, key: str) -> DocumentNode:
    if isinstance(node.value, str):
        return DocumentNode({key: node}, node.path, node.line)
    return node


def _text(document: DocumentNode, key: str) -> str:
    node = document.find(key)
    return node.value if node is not None and isinstance(node.value, str) else ""


def _check_name(document: DocumentNode, key: str, known: tuple[str, ...]) -> Iterator[CatalogProblem]:
    node, name = document.find(key), _text(document, key)
    if node is None or name in known:
        return
    plural = {"typology": "typologies", "throughput": "throughputs"}[key]
    hint = meant(name, known) or f"describe it in catalog.yaml: {plural}: {{{name}: {{kafka: …}}}}"
    yield node.problem(key, f"{name!r} is not a {key}", hint)
