"""Compiles a schema's text to message types."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.message import DecodeError

from kbq_assets.core.errors import ConfigurationError, EncodingError


@dataclass(frozen=True)
class MessageTypes:
    """The message types of one schema."""

    file: FileDescriptor

    def at(self, indexes: Sequence[int]) -> Descriptor | None:
        """The type at a path of indexes, as in Confluent's format; None if there is none."""
        types = list(self.file.message_types_by_name.values())
        found: Descriptor | None = None
        for index in indexes:
            if not 0 <= index < len(types):
                return None
            found = types[index]
            types = list(found.nested_types)
        return found


def compile_types(schema: str, references: Mapping[str, str]) -> MessageTypes:
    """Compile a schema. ``references`` are the texts of its imports, by import path.

    Raises EncodingError if the schema or one of its imports is not Protobuf or has an unusable name,
    ConfigurationError if protoc is not installed.
    """
    main = _free_name(references)
    with tempfile.TemporaryDirectory() as folder:
        roots = [
            _root(Path(folder) / str(number), name, text)
            for number, (name, text) in enumerate({main: schema, **references}.items())
        ]
        compiled = _compiled(roots, main, Path(folder) / "compiled")
    pool = descriptor_pool.DescriptorPool()
    try:
        for file in descriptor_pb2.FileDescriptorSet.FromString(compiled).file:
            pool.Add(file)
        return MessageTypes(pool.FindFileByName(main))
    except (TypeError, KeyError, DecodeError) as error:
        raise EncodingError(f"the schema's types do not fit together: {error}") from error


def _free_name(references: Mapping[str, str]) -> str:
    """A file name for the schema that differs from its imports'."""
    candidates = ("schema.proto", *(f"schema-{number}.proto" for number in range(len(references))))
    return next(name for name in candidates if name not in references)


def _root(folder: Path, name: str, text: str) -> Path:
    """Write one file below its own folder: one import may be named `a`, and another `a/b.proto`."""
    try:
        path = (folder / name).resolve()
        if not path.is_relative_to(folder.resolve()):
            raise EncodingError(
                f"a schema imports {name!r}", next_step="use import paths below the registry's"
            )
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:  # a NUL, a lone surrogate, or a name too long for a file
        raise EncodingError(
            f"a schema imports {name[:100]!r}, which cannot be compiled: {error}",
            next_step="give the import another name",
        ) from error
    return folder


def _compiled(roots: Sequence[Path], main: str, target: Path) -> bytes:
    try:
        from grpc_tools import protoc
    except ImportError as error:
        raise ConfigurationError(
            "format=protobuf needs protoc",
            next_step="pip install 'kbq-assets[protobuf]', on Spark's workers too",
        ) from error
    compiler: Any = protoc
    with as_file(files("grpc_tools").joinpath("_proto")) as common:
        arguments = [
            *(f"-I{root}" for root in (*roots, common)),
            f"--descriptor_set_out={target}",
            "--include_imports",
            main,
        ]
        # protoc explains a syntax error on standard error, in the worker's log.
        if compiler.main(["protoc", *arguments]) != 0:
            raise EncodingError("the schema is not Protobuf", next_step="check it in the registry")
    return target.read_bytes()
