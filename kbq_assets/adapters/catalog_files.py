"""Reads the catalog's folder: YAML and JSON documents, schemas, and the SQL files that documents name.

Each value of a document records its line. JSON is parsed as YAML, its superset, so that both report lines the same way.
Booleans follow YAML 1.2: `on`, `yes` and `no` stay text.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from kbq_assets.core.catalog import CatalogFiles, CatalogProblem, DocumentNode
from kbq_assets.core.catalog.nodes import Mistake
from kbq_assets.core.catalog.sql_files import with_sql_files
from kbq_assets.core.errors import ConfigurationError

_DOCUMENTS: Final = frozenset({".yaml", ".yml", ".json"})
_SCHEMAS: Final = "schemas"
_SQL: Final = ".sql"
#: libyaml if PyYAML includes it: 160 entries take 0.1 s instead of 1.5 s.
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
#: Limits of one document, far above any real entry. CI must be able to check any pull request.
_MOST_BYTES: Final = 4 * 1024 * 1024
_MOST_LEVELS: Final = 100
_MOST_VALUES: Final = 100_000
_MOST_DIGITS: Final = 100  # Python refuses thousands of digits; a longer number stays text
#: An escape sequence in JSON. A surrogate pair, which YAML does not support, matches as a whole.
_ESCAPE: Final = re.compile(r"\\(?:u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})|.)", re.IGNORECASE)


@dataclass
class CatalogFolder:
    """A catalog's folder. An unchanged file is not parsed again."""

    folder: Path
    _seen: dict[str, tuple[tuple[int, int], DocumentNode | CatalogProblem]] = field(
        default_factory=dict, init=False
    )

    def read(self) -> CatalogFiles:
        """All files, parsed. Raises ConfigurationError if there is no such folder."""
        if not self.folder.is_dir():
            raise ConfigurationError(
                f"{self.folder} is not a folder",
                next_step="set KBQ_SOURCE_TOPICS to a catalog's folder; `kbq status` shows the mistakes of a list",
            )
        documents: dict[str, DocumentNode] = {}
        problems: list[CatalogProblem] = []
        schemas: dict[str, str] = {}
        texts: dict[str, str] = {}
        for file in _files(self.folder):
            path = file.relative_to(self.folder).as_posix()
            try:
                if _SCHEMAS in file.parent.parts[len(self.folder.parts) :]:
                    schemas[path] = _text(file, path)
                elif file.suffix == _SQL:
                    texts[path] = _text(file, path)
                elif file.suffix in _DOCUMENTS:
                    documents[path] = self._document(file, path)
            except Mistake as mistake:
                problems.append(mistake.problem)
            except OSError as error:
                problems.append(CatalogProblem(path, 1, "", f"cannot be read: {error.strerror}"))
        documents, unnamed = with_sql_files(documents, texts)
        return CatalogFiles(documents, schemas, (*problems, *unnamed))

    def _document(self, file: Path, path: str) -> DocumentNode:
        stat = file.stat()
        version = (stat.st_mtime_ns, stat.st_size)
        seen = self._seen.get(path)
        if seen is None or seen[0] != version:
            _refuse_larger(stat.st_size, path)
            seen = self._seen[path] = (version, parse_document(_yaml(file), path))
        if isinstance(seen[1], CatalogProblem):
            raise Mistake(seen[1])
        return seen[1]


def _text(file: Path, path: str) -> str:
    _refuse_larger(file.stat().st_size, path)
    return file.read_text(encoding="utf-8", errors="replace")


def _yaml(file: Path) -> bytes | str:
    """A document's content. In JSON, surrogate pairs, with which tools write emoji, are replaced by YAML escapes."""
    found = file.read_bytes()
    try:
        return _ESCAPE.sub(_unpaired, found.decode("utf-8-sig")) if file.suffix == ".json" else found
    except UnicodeDecodeError:
        return found


def _unpaired(escape: re.Match[str]) -> str:
    if escape[1] is None:
        return escape[0]
    return f"\\U{0x10000 + (int(escape[1], 16) - 0xD800 << 10) + int(escape[2], 16) - 0xDC00:08X}"


def _refuse_larger(size: int, path: str) -> None:
    if size > _MOST_BYTES:
        raise Mistake(CatalogProblem(path, 1, "", f"larger than {_MOST_BYTES:,} bytes"))


def parse_document(text: bytes | str, path: str) -> DocumentNode | CatalogProblem:
    """A YAML or JSON document, or the problem that makes it invalid."""
    try:
        _refuse_large(text, path)
        root = yaml.compose(text, Loader=_LOADER)
        if root is None:
            return DocumentNode({}, path, 1)
        return _Document(path).node(root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        return CatalogProblem(path, mark.line + 1 if mark else 1, "", f"not YAML: {error.problem}")
    except (yaml.YAMLError, UnicodeError) as error:
        return CatalogProblem(path, 1, "", f"not YAML: {error}")
    except Mistake as mistake:
        return mistake.problem


def _refuse_large(text: bytes | str, path: str) -> None:
    """Limit size and depth before composing the document: libyaml composes recursively and would crash the process."""
    _refuse_larger(len(text), path)
    levels = 0
    for event in yaml.parse(text, Loader=_LOADER):
        levels += isinstance(event, yaml.CollectionStartEvent)
        levels -= isinstance(event, yaml.CollectionEndEvent)
        if levels > _MOST_LEVELS:
            raise _too_deep(path, event.start_mark.line + 1 if event.start_mark else 1)


def _too_deep(path: str, line: int) -> Mistake:
    return Mistake(CatalogProblem(path, line, "", f"nested deeper than {_MOST_LEVELS} levels, or in itself"))


class _Document:
    """Builds a document's values. Follows aliases, and counts a value each time it is used."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._values = 0

    def node(self, node: yaml.Node, line: int | None = None, level: int = 1) -> DocumentNode:
        """A value and its children. Raises Mistake if they are too many or nested too deep."""
        line = node.start_mark.line + 1 if line is None else line
        self._values += 1
        if level > _MOST_LEVELS:
            raise _too_deep(self._path, line)
        if self._values > _MOST_VALUES:
            message = f"more than {_MOST_VALUES:,} values, counting those of aliases"
            raise Mistake(CatalogProblem(self._path, line, "", message))
        if isinstance(node, yaml.MappingNode):
            return DocumentNode(dict(self._pairs(node, level)), self._path, line)
        if isinstance(node, yaml.SequenceNode):
            children = tuple(self.node(child, level=level + 1) for child in node.value)
            return DocumentNode(children, self._path, line)
        return DocumentNode(_scalar(node), self._path, line)

    def _pairs(self, node: yaml.MappingNode, level: int) -> Iterator[tuple[str, DocumentNode]]:
        seen: set[str] = set()
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise Mistake(CatalogProblem(self._path, line, "", "a key is a single word"))
            if key.value in seen:
                raise Mistake(CatalogProblem(self._path, line, "", f"{key.value!r} occurs twice"))
            seen.add(key.value)
            yield key.value, self.node(value, line, level + 1)


def _scalar(node: yaml.Node) -> str | int | float | bool | None:
    text = str(node.value)
    kind = node.tag.rpartition(":")[2]
    if kind == "null":
        return None
    if kind == "bool" and text.lower() in ("true", "false"):
        return text.lower() == "true"
    is_int = kind == "int" and text.lstrip("+-").isdecimal() and len(text) <= _MOST_DIGITS
    if is_int or kind == "float":
        with contextlib.suppress(ValueError):  # a tag may claim a type that the text does not have
            return int(text) if is_int else float(text)
    return text


def _files(folder: Path) -> Iterator[Path]:
    """All files, except hidden ones and those in hidden folders."""
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.is_file() and not hidden:
            yield path
