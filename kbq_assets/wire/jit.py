"""Compiling kernels: one decorator, one place for numba's disk cache, and raw memory access.

Kernels release the GIL and are cached on disk: the first compilation takes seconds, loading from the cache a
fraction of one. The cache's folder is, in this order: ``NUMBA_CACHE_DIR``, the package's own folder, the
user's cache folder, a private folder among the temporary files; if none is writable, every process compiles
its own kernels. It has a folder per content of the wire layer's sources: numba notices a changed module, but not a
changed callee in another module. That has a folder per location of the sources, named by a hash of its path; kernels
that were compiled elsewhere come without the hash (`shippable`).
"""

from __future__ import annotations

import getpass
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import caching
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., Any])

_config: Any = numba.config
_njit: Any = numba.njit
_locator: Any = caching._CacheLocator
_FunctionCache: Any = caching.FunctionCache
#: Without numba's runtime nothing counts references to arrays, which took two thirds of the validator's time: callers
#: hold the arrays anyway.
_OPTIONS: dict[str, Any] = {"nogil": True, "_nrt": False}
#: The folders of cached kernels, by the name of their sources' folder.
_KEPT: dict[str, Path] = {}


def kernel(function: F) -> F:
    """Compile on first call, without the GIL, cached on disk. A kernel neither makes nor returns arrays."""
    folder = _cache_folder()
    if folder is not None:
        _keep(folder, function.__code__.co_filename)
    others = _config.CACHE_DIR
    _config.CACHE_DIR = str(folder or others)  # read while decorating; it belongs to the whole process
    try:
        compiled: Any = _njit(**_OPTIONS)(function)
        if folder is not None:
            compiled._cache = _KernelCache(function)
    finally:
        _config.CACHE_DIR = others
    made: F = compiled
    return made


class _KernelCache(_FunctionCache):  # type: ignore[misc]
    """Numba's disk cache of one function. Numba's own first loads all that the compiler knows: two thirds of the time
    that a worker takes for all kernels. Compiled code needs none of it, and the compiler loads it on its own."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled function for a signature; None if the cache does not have it, or cannot be read."""
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)


def inlined(function: F) -> F:
    """A part of kernels: LLVM inlines it into its callers."""
    compiled: F = _njit(**_OPTIONS, forceinline=True)(function)
    return compiled


def outlined(function: F) -> F:
    """A rare part of kernels: a call, to keep the common path short."""
    compiled: F = _njit(**_OPTIONS)(function)
    return compiled


def shippable() -> dict[str, Path]:
    """Folders of kernels that were compiled or loaded here, by their names below `wire`, in an archive that is unpacked
    in another place. They fit hosts with the same processor; others compile anew."""
    return {f"__pycache__/{kept.parent.name}/{name}": kept for name, kept in _KEPT.items()}


def _keep(folder: Path, source: str) -> None:
    """Remember the cache folder of ``source``; move kernels from an archive there."""
    kept = folder / _locator.get_suitable_cache_subpath(source)
    name = Path(source).parent.name
    if _KEPT.get(name) == kept:
        return
    _KEPT[name] = kept
    with suppress(OSError):  # there are none, or another process was first
        (folder / name).rename(kept)


@cache
def _cache_folder() -> Path | None:
    """A writable folder for the compiled kernels of these very sources, or None."""
    here = Path(__file__).parent
    version = hashlib.sha256()
    try:
        for source in sorted(here.rglob("*.py")):
            version.update(source.read_bytes())
    except OSError:
        return None  # inside a zip
    name = f"kbq-wire-{version.hexdigest()[:12]}"
    shipped = here / "__pycache__" / name
    for folder in _candidates(shipped, name):
        if _is_private_and_writable(folder):
            _copy_shipped(shipped, folder)
            return folder
    return None


def _candidates(shipped: Path, name: str) -> list[Path]:
    if _config.CACHE_DIR:
        return [Path(_config.CACHE_DIR) / name]
    candidates = [shipped]
    with suppress(RuntimeError, KeyError, OSError):  # a container's user may have no name or no home
        candidates.append(Path.home() / ".cache" / name)
        candidates.append(Path(tempfile.gettempdir()) / f"{name}-{getpass.getuser()}")
    return candidates


def _is_private_and_writable(folder: Path) -> bool:
    """Cached code is executed: a folder that another user made, as in /tmp, is not trustworthy."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return not hasattr(os, "getuid") or folder.stat().st_uid == os.getuid()
    except OSError:
        return False


def _copy_shipped(shipped: Path, folder: Path) -> None:
    """Start from the kernels of the install step if the package's folder is read-only."""
    if folder == shipped or not shipped.is_dir() or any(folder.iterdir()):
        return
    with suppress(
        OSError, shutil.Error
    ):  # without it slower, not wrong: numba compiles what it does not find
        shutil.copytree(shipped, folder, dirs_exist_ok=True)


def _primitive(definition: Callable[..., Any]) -> Callable[..., Any]:
    made: Callable[..., Any] = intrinsic(definition)
    return made


def _pointer(context: Any, builder: Any, array_type: Any, place: Any, value_type: Any) -> Any:
    array, index = place
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), value_type.as_pointer())


@_primitive
def _load_byte(typing_context: Any, array: Any, index: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(context, builder, signature.args[0], arguments, ir.IntType(8))
        return builder.zext(builder.load(pointer), ir.IntType(64))

    return types.int64(array, types.int64), generate


@_primitive
def _load_word(typing_context: Any, array: Any, index: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = builder.load(_pointer(context, builder, signature.args[0], arguments, ir.IntType(64)))
        word.align = 1
        return word

    return types.uint64(array, types.int64), generate


@_primitive
def _trailing_zeros(typing_context: Any, word: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate


@_primitive
def _store_byte(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(context, builder, signature.args[0], arguments[:2], ir.IntType(8))
        builder.store(builder.trunc(arguments[2], ir.IntType(8)), pointer)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64), generate


@_primitive
def _store_word(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(context, builder, signature.args[0], arguments[:2], ir.IntType(64))
        builder.store(arguments[2], pointer, align=1)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.uint64), generate


@_primitive
def _copy_bytes(typing_context: Any, target: Any, to: Any, source: Any, start: Any, size: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, to, source, start, size = arguments
        byte = ir.IntType(8)
        destination = _pointer(context, builder, signature.args[0], (target, to), byte)
        origin = _pointer(context, builder, signature.args[2], (source, start), byte)
        pointer, word = byte.as_pointer(), ir.IntType(64)
        memcpy = builder.module.declare_intrinsic("llvm.memcpy", [pointer, pointer, word])
        builder.call(memcpy, [destination, origin, size, ir.Constant(ir.IntType(1), 0)])
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64, types.int64), generate


int64: Any = np.int64
"""The conversion inside kernels; to the type checker its result is a plain number."""

load_byte: Callable[[Any, int], int] = _load_byte
"""The byte at an index, without numba's handling of negative indexes."""

load_word: Callable[[Any, int], Any] = _load_word
"""The eight bytes at an index, at any alignment, as uint64: why buffers are padded."""

trailing_zeros: Callable[[Any], int] = _trailing_zeros
"""The zero bits below the lowest one bit of a uint64 that is not 0."""

store_byte: Callable[[Any, int, int], None] = _store_byte
"""Store the lowest byte of a value: ``(array, index, value)``."""

store_word: Callable[[Any, int, Any], None] = _store_word
"""Store the eight bytes of a uint64, at any alignment: ``(array, index, value)``."""

copy_bytes: Callable[[Any, int, Any, int, int], None] = _copy_bytes
"""Copy between arrays that do not overlap: ``(target, to, source, start, size)``."""
