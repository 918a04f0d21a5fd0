"""An archive of the classes that Spark's driver loads. Java maps it instead of reading the jars at every start.

This is Java's class data sharing (https://docs.oracle.com/en/java/javase/17/vm/class-data-sharing.html). An archive
matches one Java and one set of jars. Its name identifies both, and Java checks again: if the archive does not match,
Java starts without it. The installation writes it with ``python -m kbq_assets.worker.warm``. ADR 13 has measurements.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyspark

from kbq_assets.adapters.java import JavaRuntime

#: Twenty seconds suffice on an idle machine. A busy machine should get the archive too.
_SECONDS = 600.0


#: Map the archive at its original address. At another address, Java would relocate, and so copy, most of its pages.
_AS_WRITTEN: Final = ("-XX:+UnlockDiagnosticVMOptions", "-XX:ArchiveRelocationMode=0")


def archive_options(java: JavaRuntime) -> list[str]:
    """JVM options to use the archive; empty if there is no archive."""
    found = _found(archive_name(java))
    return [f"-XX:SharedArchiveFile={found}", "-Xshare:auto", *_AS_WRITTEN] if found else []


def kept_command(java: JavaRuntime) -> list[str] | None:
    """The options and class path of the JVM that wrote the archive, as Spark's scripts chose them, without KBQ's own
    options. None if there is no archive."""
    found = _found(command_file(Path(archive_name(java))).name)
    return list(json.loads(found.read_text())) if found else None


def command_file(archive: Path) -> Path:
    """The file next to an archive that stores its `kept_command`."""
    return archive.with_suffix(".json")


def archive_name(java: JavaRuntime) -> str:
    """The archive's file name: a digest of the Java runtime and of PySpark's version and folder."""
    release = java.home / "release"
    parts = [str(java.version), pyspark.__version__, str(Path(pyspark.__file__).parent)]
    parts += [release.read_text()] if release.is_file() else []
    return f"spark-{hashlib.sha256(' '.join(parts).encode()).hexdigest()[:16]}.jsa"


def write_archive(java: JavaRuntime) -> Path | None:
    """Write the archive (120 MB, 20 s) from a session that does the same as every run. Returns None if Java cannot.

    The archive gets its name only after Java has succeeded, because Java crashes on a truncated archive.
    """
    for folder in _folders():
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                return _written(java, Path(scratch), folder)
    return None


def _written(java: JavaRuntime, scratch: Path, folder: Path) -> Path | None:
    made, kept = scratch / "spark.jsa", folder / archive_name(java)
    command = [sys.executable, "-m", "kbq_assets.adapters.spark.rehearsal", str(made), str(scratch)]
    with suppress(subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False)
        if done.returncode == 0 and made.is_file():
            for old in folder.glob("spark-*.js*"):
                old.unlink()
            command_file(made).replace(command_file(kept))
            return made.replace(kept)
    return None


def _found(name: str) -> Path | None:
    return next((folder / name for folder in _folders() if _is_trusted(folder / name)), None)


def _folders() -> Iterator[Path]:
    """Folders for archives: the one of this module's compiled code, then the user's cache."""
    yield Path(__file__).parent / "__pycache__"
    with suppress(RuntimeError):  # a container's user may have no home
        yield Path.home() / ".cache" / "kbq"


def _is_trusted(path: Path) -> bool:
    """Whether the file exists and belongs to root or this user. The check matters because the archive is code."""
    with suppress(OSError):
        return path.stat().st_uid in {0, os.getuid()}
    return False
