"""From a schema's text to message types."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import Descriptor, FileDescriptor

from kbq_assets.core.errors import ConfigurationError, EncodingError

_MAIN = "schema.proto"


@dataclass(frozen=True)
class MessageTypes:
    """The message types of one schema."""

    file: FileDescriptor

    def at(self, indexes: Sequence[int]) -> Descriptor | None:
        """The type at a path of indexes, as Confluent's format names it; None where there is none."""
        types = list(self.file.message_types_by_name.values())
        found: Descriptor | None = None
        for index in indexes:
            if not 0 <= index < len(types):
                return None
            found = types[index]
            types = list(found.nested_types)
        return found


def compile_types(schema: str, references: Mapping[str, str]) -> MessageTypes:
    """Compile a schema; ``references`` are the texts of what it imports, by import path. Raises EncodingError for one
    that is none, ConfigurationError where protoc is not installed."""
    with tempfile.TemporaryDirectory() as folder:
        _write(Path(folder), {**references, _MAIN: schema})
        compiled = descriptor_pb2.FileDescriptorSet.FromString(_compiled(Path(folder)))
    pool = descriptor_pool.DescriptorPool()
    for file in compiled.file:
        pool.Add(file)
    return MessageTypes(pool.FindFileByName(_MAIN))


def _write(folder: Path, texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        path = (folder / name).resolve()
        if not path.is_relative_to(folder.resolve()):
            raise EncodingError(f"a schema imports {name!r}", next_step="import paths below the registry's")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _compiled(folder: Path) -> bytes:
    try:
        from grpc_tools import protoc
    except ImportError as error:
        raise ConfigurationError(
            "format=protobuf needs protoc",
            next_step="pip install 'kbq-assets[protobuf]', on Spark's workers too",
        ) from error
    target = folder / ".compiled"
    compiler: Any = protoc
    with as_file(files("grpc_tools").joinpath("_proto")) as common:
        arguments = [
            f"-I{folder}",
            f"-I{common}",
            f"--descriptor_set_out={target}",
            "--include_imports",
            _MAIN,
        ]
        # It tells what is wrong on standard error, which is the worker's log.
        if compiler.main(["protoc", *arguments]) != 0:
            raise EncodingError("the schema is no Protobuf", next_step="look at it in the registry")
    return target.read_bytes()
