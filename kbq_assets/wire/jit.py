"""Compiles kernels: decorators, the location of numba's disk cache, and raw memory access.

Kernels release the GIL and are cached on disk, because the first compilation takes seconds, but loading from the cache
a fraction of a second. The cache is in the first writable one of these folders: ``NUMBA_CACHE_DIR``, the package's own
folder, the user's cache folder, a private folder among the temporary files. If none is writable, every process compiles
its own kernels.

The cache has a subfolder for each content of the wire layer's sources, because numba detects a changed module, but not
a changed callee in another module. In it is a subfolder for each location of the sources, named by a hash of the path.
Kernels that were compiled elsewhere come without the hash (`shippable`).
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
#: Without numba's runtime, references to arrays are not counted, which took two thirds of the validator's time. Callers
#: hold the arrays anyway.
_OPTIONS: dict[str, Any] = {"nogil": True, "_nrt": False}
#: Folders of cached kernels, by the name of their sources' folder.
_KEPT: dict[str, Path] = {}


def kernel(function: F) -> F:
    """Compile on first call, without the GIL, cached on disk. A kernel must not create or return arrays."""
    folder = _cache_folder()
    if folder is not None:
        _keep(folder, function.__code__.co_filename)
    others = _config.CACHE_DIR
    _config.CACHE_DIR = str(folder or others)  # numba reads it while decorating; it is global to the process
    try:
        compiled: Any = _njit(**_OPTIONS)(function)
        if folder is not None:
            compiled._cache = _KernelCache(function)
    finally:
        _config.CACHE_DIR = others
    made: F = compiled
    return made


class _KernelCache(_FunctionCache):  # type: ignore[misc]
    """Numba's disk cache of one function. Numba's own class first loads the compiler's whole registry, which takes two
    thirds of a worker's time for all kernels. Compiled code does not need it, and the compiler loads it when needed."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled function for a signature; None if the cache lacks it or cannot be read."""
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)


def inlined(function: F) -> F:
    """Mark a part of kernels for LLVM to inline into its callers."""
    compiled: F = _njit(**_OPTIONS, forceinline=True)(function)
    return compiled


def outlined(function: F) -> F:
    """Mark a rarely used part of kernels to be called, not inlined, which keeps the common path short."""
    compiled: F = _njit(**_OPTIONS)(function)
    return compiled


def shippable() -> dict[str, Path]:
    """Folders of the kernels compiled or loaded in this process, by their paths below `wire` in an archive for other
    hosts. They work on hosts with the same processor; others compile again."""
    return {f"__pycache__/{kept.parent.name}/{name}": kept for name, kept in _KEPT.items()}


def _keep(folder: Path, source: str) -> None:
    """Remember the cache folder of ``source``, and move kernels from an archive there."""
    kept = folder / _locator.get_suitable_cache_subpath(source)
    name = Path(source).parent.name
    if _KEPT.get(name) == kept:
        return
    _KEPT[name] = kept
    with suppress(OSError):  # none came with an archive, or another process was first
        (folder / name).rename(kept)


@cache
def _cache_folder() -> Path | None:
    """A writable folder for the compiled kernels of exactly these sources, or None."""
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
    """Whether a folder is writable and our own. Cached code is executed, so a folder that another user made, as in
    /tmp, is not safe."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return not hasattr(os, "getuid") or folder.stat().st_uid == os.getuid()
    except OSError:
        return False


def _copy_shipped(shipped: Path, folder: Path) -> None:
    """If the package's folder is read-only, copy the kernels of the install step from it."""
    if folder == shipped or not shipped.is_dir() or any(folder.iterdir()):
        return
    with suppress(OSError, shutil.Error):  # only slower without it: numba compiles missing kernels
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
def _load_item(typing_context: Any, array: Any, index: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = signature.args[0].dtype
        item = builder.load(
            _pointer(context, builder, signature.args[0], arguments, context.get_data_type(kind))
        )
        return context.cast(builder, item, kind, types.int64)

    return types.int64(array, types.int64), generate


@_primitive
def _load_word(typing_context: Any, array: Any, index: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = builder.load(_pointer(context, builder, signature.args[0], arguments, ir.IntType(64)))
        word.align = 1
        return word

    return types.uint64(array, types.int64), generate


@_primitive
def _prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(context, builder, signature.args[0], arguments, ir.IntType(8))
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, number, number, number])
        fetch = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], kind)
        to_read, to_all_caches, data = (ir.Constant(number, value) for value in (0, 3, 1))
        builder.call(fetch, [pointer, to_read, to_all_caches, data])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


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
"""Converts to int64 inside kernels. For the type checker, the result is a plain number."""

load_byte: Callable[[Any, int], int] = _load_byte
"""The byte at an index, without numba's handling of negative indexes."""

load_item: Callable[[Any, int], int] = _load_item
"""The item at an index of a contiguous array of integers, without numba's handling of negative indexes."""

load_word: Callable[[Any, int], Any] = _load_word
"""The eight bytes at an index, at any alignment, as uint64. Buffers are padded because of it."""

prefetch: Callable[[Any, int], None] = _prefetch
"""Start loading the byte at an index into the processor's caches. The index may lie outside of the array."""

trailing_zeros: Callable[[Any], int] = _trailing_zeros
"""The number of zero bits below the lowest one bit of a nonzero uint64."""

store_byte: Callable[[Any, int, int], None] = _store_byte
"""Store the lowest byte of a value: ``(array, index, value)``."""

store_word: Callable[[Any, int, Any], None] = _store_word
"""Store the eight bytes of a uint64, at any alignment: ``(array, index, value)``."""

copy_bytes: Callable[[Any, int, Any, int, int], None] = _copy_bytes
"""Copy between arrays that do not overlap: ``(target, to, source, start, size)``."""
