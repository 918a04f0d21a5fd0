"""An archive of the classes that Spark's driver JVM loads, mapped into memory instead of read at every start.

Java's class data sharing (https://docs.oracle.com/en/java/javase/17/vm/class-data-sharing.html). An archive holds for
one Java and one set of jars; its name tells them, and Java checks again: where it does not fit, Java goes on
without it. It is written by the install step, ``python -m kbq_assets.worker.warm``.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyspark

from kbq_assets.adapters.java import JavaRuntime

_SECONDS = 180.0


def archive_options(java: JavaRuntime) -> list[str]:
    """Options of the JVM that use the archive; none where there is none."""
    name = archive_name(java)
    found = [folder / name for folder in _folders() if _is_trusted(folder / name)]
    return [f"-XX:SharedArchiveFile={found[0]}", "-Xshare:auto"] if found else []


def archive_name(java: JavaRuntime) -> str:
    """A name for what the archive depends on: the Java runtime, and PySpark's jars."""
    release = java.home / "release"
    parts = [str(java.version), pyspark.__version__, str(Path(pyspark.__file__).parent)]
    parts += [release.read_text()] if release.is_file() else []
    return f"spark-{hashlib.sha256(' '.join(parts).encode()).hexdigest()[:16]}.jsa"


def write_archive(java: JavaRuntime) -> Path | None:
    """Write the archive, 120 MB, by a session that does what every run does; 20 s. None where Java cannot.

    It appears under its name only when Java has ended well: of a file that was cut off Java dies.
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
            for old in folder.glob("spark-*.jsa"):
                old.unlink()
            return made.replace(kept)
    return None


def _folders() -> Iterator[Path]:
    """Where archives are: beside this module's compiled code, or where the user keeps caches."""
    yield Path(__file__).parent / "__pycache__"
    with suppress(RuntimeError):  # a container's user may have no home
        yield Path.home() / ".cache" / "kbq"


def _is_trusted(path: Path) -> bool:
    """Whether there is such a file, and nobody else wrote it: it is code."""
    with suppress(OSError):
        return path.stat().st_uid in {0, os.getuid()}
    return False
