"""Compiles a schema's text or its serialized descriptor to message types."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.message import DecodeError

from kbq_assets.core.errors import ConfigurationError, EncodingError

#: Folders of files that a schema may import without a reference, with their import paths. Google's well-known types
#: come with protoc, google/type with Google's clients, Confluent's types with KBQ.
_BUILT_IN: Final = (
    ("", "grpc_tools", "_proto"),
    ("google/type=", "google", "type"),
    ("", "kbq_assets.adapters.protobuf", "builtin"),
)
#: Number of compiled schemas that a process caches.
_MOST_KEPT: Final = 32
_SECONDS: Final = 20
_MOST_SHOWN: Final = 300
#: Lines that protoc logs without an error, and the numbered folder of a temporary file.
_LOGGED: Final = re.compile(r"WARNING: |[WI]\d{4} |.*: warning: ")
_FOLDER: Final = re.compile(r"^\d+/")


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
    """The message types of a schema. ``references`` has the texts of its imports, by import path. Each text may be
    source or a serialized FileDescriptorProto in base64, as Confluent's Python client registers it.

    Raises EncodingError if the schema or an import is not Protobuf or has an unusable name, ConfigurationError if
    protoc is not installed.
    """
    return _compile(schema, tuple(references.items()))


@lru_cache(_MOST_KEPT)
def _compile(schema: str, imports: tuple[tuple[str, str], ...]) -> MessageTypes:
    references = dict(imports)
    main = _free_name(references)
    given = descriptor_pb2.FileDescriptorSet()
    with tempfile.TemporaryDirectory() as folder:
        roots = []
        for number, (name, text) in enumerate({main: schema, **references}.items()):
            path = _placed(Path(folder) / str(number), name)
            if (descriptor := _descriptor(name, text)) is None:
                roots.append(_written(path, Path(folder) / str(number), name, text))
            else:
                given.file.append(descriptor)
        compiled = _compiled(roots, given, main, Path(folder))
    pool = descriptor_pool.DescriptorPool()
    try:
        for file in descriptor_pb2.FileDescriptorSet.FromString(compiled).file:
            pool.Add(file)
        return MessageTypes(pool.FindFileByName(main))
    except (TypeError, KeyError, DecodeError) as error:
        raise EncodingError(f"the schema's types contradict each other: {error}") from error


def _free_name(references: Mapping[str, str]) -> str:
    """A file name for the schema that none of its imports has."""
    candidates = ("schema.proto", *(f"schema-{number}.proto" for number in range(len(references))))
    return next(name for name in candidates if name not in references)


def _descriptor(name: str, text: str) -> descriptor_pb2.FileDescriptorProto | None:
    """The descriptor in a base64 text, with the name of its import; None if the text is source."""
    try:
        found = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text.strip(), validate=True))
    except (ValueError, DecodeError):
        return None
    if not found.ListFields():
        return None
    found.name = name
    return found


def _placed(folder: Path, name: str) -> Path:
    try:
        path = (folder / name).resolve()
    except (OSError, ValueError) as error:  # a NUL
        raise _unusable(name, error) from error
    if not path.is_relative_to(folder.resolve()):
        raise EncodingError(
            f"a schema imports {name!r}, which is not a valid import path",
            next_step="use relative import paths",
        )
    return path


def _written(path: Path, folder: Path, name: str, text: str) -> Path:
    """Write one file into its own folder, because one import may be named `a` and another `a/b.proto`."""
    try:
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:  # a lone surrogate, or a name too long for a file
        raise _unusable(name, error) from error
    return folder


def _unusable(name: str, error: Exception) -> EncodingError:
    return EncodingError(
        f"a schema imports {name[:100]!r}, which cannot be compiled: {error}",
        next_step="give the import another name",
    )


def _compiled(
    roots: Sequence[Path], given: descriptor_pb2.FileDescriptorSet, main: str, folder: Path
) -> bytes:
    try:
        from grpc_tools import protoc
    except ImportError as error:
        raise ConfigurationError(
            "format=protobuf needs protoc",
            next_step="pip install 'kbq-assets[protobuf]', also on the workers if a Spark cluster runs the tasks",
        ) from error
    compiler: Any = protoc
    target, descriptors = folder / "compiled", folder / "given"
    with ExitStack() as stack:
        arguments = [
            *(f"-I{root}" for root in roots),
            *_built_in(stack),
            f"--descriptor_set_out={target}",
            "--include_imports",
            main,
        ]
        if given.file:
            descriptors.write_bytes(given.SerializeToString())
            arguments.append(f"--descriptor_set_in={descriptors}")
        # protoc trusts descriptors and aborts the process for some of them, so it reads them in a separate process.
        if given.file or compiler.main(["protoc", *arguments]) != 0:
            _compile_apart(arguments, folder)
    return target.read_bytes()


def _built_in(stack: ExitStack) -> list[str]:
    found = []
    for prefix, package, name in _BUILT_IN:
        folder = files(package).joinpath(name)
        if folder.is_dir():  # without Google's clients, protoc rejects imports of google/type
            found.append(f"-I{prefix}{stack.enter_context(as_file(folder))}")
    return found


def _compile_apart(arguments: Sequence[str], folder: Path) -> None:
    """Run protoc in a separate process, which captures its errors. Raises EncodingError with the first one."""
    command = [sys.executable, "-m", "grpc_tools.protoc", *arguments]
    try:
        run = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise _not_protobuf(f"protoc did not end within {_SECONDS} seconds") from None
    if run.returncode < 0:
        raise _not_protobuf(f"protoc ended by signal {-run.returncode}")
    if run.returncode:
        lines = run.stderr.decode(errors="replace").replace(f"{folder}/", "").splitlines()
        found = next((line for line in lines if not _LOGGED.match(line)), "protoc gives no reason")
        raise _not_protobuf(_FOLDER.sub("", found)[:_MOST_SHOWN])


def _not_protobuf(why: str) -> EncodingError:
    return EncodingError(f"the schema is not Protobuf: {why}", next_step="check it in the registry")
