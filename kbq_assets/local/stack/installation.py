"""Installs the local stack with the Ivy that PySpark includes, and checks each file's sha256.

``artifacts.txt`` lists every file. Ivy fetches exactly these files, from the user's own mirrors if configured. Nothing
else is accepted. ``relock.py`` rewrites the list.
"""

from __future__ import annotations

import hashlib
import shutil
import tarfile
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from rich.console import Console

from kbq_assets.adapters.java import JavaRuntime
from kbq_assets.adapters.processes.daemons import kill_marked
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.local.stack.artifact import Artifact
from kbq_assets.local.stack.ivy import RETRIEVED, Ivy

INSTALL_MARKER = "-Dkbq.local.install="


def required_artifacts() -> tuple[Artifact, ...]:
    text = (resources.files(__package__) / "artifacts.txt").read_text(encoding="utf-8")
    return tuple(Artifact.parse(line) for line in text.splitlines() if line and not line.startswith("#"))


@dataclass(frozen=True)
class Installation:
    """One complete, verified set of programs: the folders of Kafka and of the registry."""

    folder: Path

    @property
    def kafka_classpath(self) -> str:
        """The argument of ``java -cp``."""
        return str(self.folder / "kafka" / "*")

    @property
    def registry_jar(self) -> Path:
        """The registry's runnable jar; its libraries are in the same folder."""
        return next((self.folder / "registry").glob("*-runner.jar"))


def find_installation(root: Path, artifacts: Iterable[Artifact]) -> Installation | None:
    """The complete installation of ``artifacts`` below ``root``, if any. The folder's name is their digest."""
    folder = root / _digest(artifacts)
    return Installation(folder) if folder.is_dir() else None


def install(
    root: Path,
    artifacts: tuple[Artifact, ...],
    java: JavaRuntime,
    console: Console,
    ivy_settings: Path | None = None,
) -> Installation:
    """Fetch, verify and unpack ``artifacts`` below ``root``. The caller holds the lock of ``root``.

    A single rename makes the complete folder appear. Remains of earlier attempts are deleted first, except Ivy's cache,
    which keeps the files fetched so far.

    Raises Unavailable if a file cannot be fetched, ConfigurationError if its content is wrong.
    """
    root.mkdir(parents=True, exist_ok=True)
    kill_marked(f"{INSTALL_MARKER}{root}")
    for stale in root.glob("partial-*"):
        shutil.rmtree(stale)
    partial, cache = Path(tempfile.mkdtemp(prefix="partial-", dir=root)), root / "ivy-cache"
    Ivy(java, cache, f"{INSTALL_MARKER}{root}", console, ivy_settings).fetch(artifacts, partial)
    console.print("  checking sha256 and unpacking")
    _verify(partial / RETRIEVED, artifacts, cache)
    _unpack(partial, artifacts)
    final = root / _digest(artifacts)
    partial.rename(final)
    shutil.rmtree(cache)
    return Installation(final)


def _digest(artifacts: Iterable[Artifact]) -> str:
    lines = "\n".join(artifact.format() for artifact in artifacts)
    return hashlib.sha256(lines.encode()).hexdigest()[:16]


def _verify(retrieved: Path, artifacts: Iterable[Artifact], cache: Path) -> None:
    wrong = [artifact.file_name for artifact in artifacts if not _is_expected(retrieved, artifact)]
    if wrong:
        # Otherwise Ivy would take the same files from its cache again, even if the repository's are fixed by then.
        shutil.rmtree(cache)
        raise ConfigurationError(
            f"unexpected content (sha256 differs, or file is missing): {', '.join(wrong)}",
            next_step="the repository or mirror serves other files: use another, or check artifacts.txt",
        )


def _is_expected(retrieved: Path, artifact: Artifact) -> bool:
    path = retrieved / artifact.retrieved_path
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == artifact.sha256


def _unpack(partial: Path, artifacts: Iterable[Artifact]) -> None:
    """Move the files into one folder per package, and unpack archives there."""
    for artifact in artifacts:
        source, folder = partial / RETRIEVED / artifact.retrieved_path, partial / artifact.package
        folder.mkdir(exist_ok=True)
        if artifact.extension == "tar.gz":
            with tarfile.open(source) as archive:
                # Python 3.11.0 to 3.11.3 have no filters; the archive's sha256 has been checked anyway.
                archive.extraction_filter = getattr(tarfile, "data_filter", None)
                archive.extractall(folder)
        else:
            source.rename(folder / artifact.file_name)
    shutil.rmtree(partial / RETRIEVED)
