"""A job's files on this machine. Files from a bucket are downloaded to a temporary folder first."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit
from urllib.request import url2pathname

from kbq_assets.core.errors import NotFound
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.wire.arrow.errors import BadFile, DamagedSource, MissingSource


class LocalFiles:
    """Maps URIs to local paths. Downloads are deleted at the end."""

    def __init__(self, source: ObjectStore, sizes: Mapping[str, int]) -> None:
        self._source = source
        self._sizes = sizes
        self._root = source.uri("x").removesuffix("x")
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._known: dict[str, Path] = {}

    def __enter__(self) -> LocalFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def path(self, uri: str) -> Path:
        """The path of a file on this machine; its size is as the job lists it. Raises LoadError, Unavailable."""
        if uri not in self._known:
            self._known[uri] = self._local(uri)
        return self._known[uri]

    def named(self, text: str) -> str:
        """A message with the paths of downloads replaced by their URIs."""
        for uri, path in sorted(self._known.items(), key=lambda each: -len(str(each[1]))):
            if self._folder is not None and path.is_relative_to(self._folder.name):
                text = text.replace(str(path), uri)
        return text

    def _local(self, uri: str) -> Path:
        parts = urlsplit(uri)
        found = Path(url2pathname(parts.path)) if parts.scheme == "file" else self._copy(uri)
        if found.is_symlink() and not found.is_file():
            raise BadFile(f"{uri} is a link to a folder or to nothing, but KBQ follows only links to files")
        try:
            size = found.stat().st_size
        except FileNotFoundError as error:
            raise MissingSource(f"{uri} does not exist") from error
        if size != self._sizes[uri]:
            raise DamagedSource(f"{uri} has {size:,} bytes instead of {self._sizes[uri]:,}")
        return found

    def _copy(self, uri: str) -> Path:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="kbq-files-")
        own = Path(self._folder.name, f"{len(self._known)}{Path(urlsplit(uri).path).suffix}")
        try:
            with self._source.open_read(uri.removeprefix(self._root)) as stream, own.open("wb") as copy:
                shutil.copyfileobj(stream, copy, 1 << 20)
        except NotFound as error:
            raise MissingSource(f"{uri} does not exist") from error
        return own
