"""The catalogue's folder: YAML and JSON documents whose values know their lines, and schema files.

JSON is read as YAML, of which it is a part, so that both tell lines alike. Only what YAML 1.2 calls a boolean is one:
`on`, `yes` and `no` stay texts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from kbq_assets.core.catalog import CatalogFiles, CatalogProblem, DocumentNode
from kbq_assets.core.catalog.nodes import Mistake
from kbq_assets.core.errors import ConfigurationError

_DOCUMENTS: Final = frozenset({".yaml", ".yml", ".json"})
_SCHEMAS: Final = "schemas"
#: libyaml where PyYAML has it: 160 entries take 0.1 s instead of 1.5.
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass
class CatalogFolder:
    """A catalogue's folder. A file that has not changed is not parsed again."""

    folder: Path
    _seen: dict[str, tuple[tuple[int, int], DocumentNode | CatalogProblem]] = field(
        default_factory=dict, init=False
    )

    def read(self) -> CatalogFiles:
        """Read it. Raises ConfigurationError when there is no such folder."""
        if not self.folder.is_dir():
            raise ConfigurationError(f"{self.folder} is no folder", next_step="set KBQ_SOURCE_TOPICS")
        documents: dict[str, DocumentNode] = {}
        problems: list[CatalogProblem] = []
        schemas: dict[str, str] = {}
        for file in _files(self.folder):
            path = file.relative_to(self.folder).as_posix()
            if _SCHEMAS in file.parent.parts[len(self.folder.parts) :]:
                schemas[path] = file.read_text(encoding="utf-8", errors="replace")
            elif file.suffix in _DOCUMENTS:
                found = self._document(file, path)
                if isinstance(found, CatalogProblem):
                    problems.append(found)
                else:
                    documents[path] = found
        return CatalogFiles(documents, schemas, tuple(problems))

    def _document(self, file: Path, path: str) -> DocumentNode | CatalogProblem:
        stat = file.stat()
        version = (stat.st_mtime_ns, stat.st_size)
        seen = self._seen.get(path)
        if seen is None or seen[0] != version:
            seen = self._seen[path] = (version, parse_document(file.read_bytes(), path))
        return seen[1]


def parse_document(text: bytes | str, path: str) -> DocumentNode | CatalogProblem:
    """A YAML or JSON document, or why it is none."""
    try:
        root = yaml.compose(text, Loader=_LOADER)
        if root is None:
            return DocumentNode({}, path, 1)
        return _node(root, path)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        return CatalogProblem(path, mark.line + 1 if mark else 1, "", f"not YAML: {error.problem}")
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        return CatalogProblem(path, 1, "", f"not YAML: {error}")
    except Mistake as mistake:
        return mistake.problem


def _node(node: yaml.Node, path: str, line: int | None = None) -> DocumentNode:
    line = node.start_mark.line + 1 if line is None else line
    if isinstance(node, yaml.MappingNode):
        return DocumentNode(dict(_pairs(node, path)), path, line)
    if isinstance(node, yaml.SequenceNode):
        return DocumentNode(tuple(_node(child, path) for child in node.value), path, line)
    return DocumentNode(_scalar(node), path, line)


def _pairs(node: yaml.MappingNode, path: str) -> Iterator[tuple[str, DocumentNode]]:
    seen: set[str] = set()
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise Mistake(CatalogProblem(path, line, "", "a key is a single word"))
        if key.value in seen:
            raise Mistake(CatalogProblem(path, line, "", f"{key.value!r} is there twice"))
        seen.add(key.value)
        yield key.value, _node(value, path, line)


def _scalar(node: yaml.Node) -> str | int | float | bool | None:
    text = str(node.value)
    kind = node.tag.rpartition(":")[2]
    if kind == "null":
        return None
    if kind == "bool" and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if kind == "int" and text.lstrip("+-").isdecimal():
        return int(text)
    if kind == "float":
        try:
            return float(text)
        except ValueError:
            return text
    return text


def _files(folder: Path) -> Iterator[Path]:
    """All files, without hidden ones and those in hidden folders."""
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.is_file() and not hidden:
            yield path
