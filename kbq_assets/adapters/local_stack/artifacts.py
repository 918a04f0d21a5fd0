"""What the local stack consists of, and how it gets here: by the Ivy inside PySpark, checked by sha256.

``artifacts.txt`` names every file in full. Ivy fetches exactly these (its users' own settings and mirrors can
be given); nothing else is accepted. ``relock.py`` writes the list anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import resources, util
from pathlib import Path
from typing import Self
from xml.sax.saxutils import quoteattr

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)

from kbq_assets.adapters.local_stack.daemons import kill_marked
from kbq_assets.adapters.local_stack.java import JavaRuntime
from kbq_assets.core.errors import ConfigurationError, Unavailable

RETRIEVE_PATTERN = "[organisation]/[artifact]-[revision](-[classifier]).[ext]"
CACHE = "ivy-cache"
INSTALL_MARKER = "-Dkbq.local.install="
# Silence is what a dead mirror looks like; the largest file takes seconds on a slow line's first byte.
STALL_SECONDS = 180
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Artifact:
    """A file of a Maven repository, such as ``org.apache.kafka:kafka_2.13:4.3.1:jar``; ``size`` in bytes."""

    package: str
    organisation: str
    name: str
    revision: str
    extension: str
    classifier: str
    size: int
    sha256: str

    @classmethod
    def parse(cls, line: str) -> Self:
        """Read ``<package> <organisation>:<name>:<revision>:<extension>[:<classifier>] <size> <sha256>``."""
        package, coordinates, size, sha256 = line.split()
        organisation, name, revision, extension, *classifier = coordinates.split(":")
        return cls(package, organisation, name, revision, extension, "".join(classifier), int(size), sha256)

    def format(self) -> str:
        """The line that ``parse`` reads."""
        parts = [self.organisation, self.name, self.revision, self.extension, self.classifier]
        return f"{self.package} {':'.join(part for part in parts if part)} {self.size} {self.sha256}"

    @property
    def file_name(self) -> str:
        """Example: ``apicurio-registry-app-3.0.9-all.tar.gz``."""
        classifier = f"-{self.classifier}" if self.classifier else ""
        return f"{self.name}-{self.revision}{classifier}.{self.extension}"

    @property
    def retrieved_path(self) -> str:
        """Where ``RETRIEVE_PATTERN`` puts the file."""
        return f"{self.organisation}/{self.file_name}"

    def to_ivy(self) -> str:
        """The ``<dependency>`` element that fetches this file and no other."""
        org, name, rev, ext = (
            quoteattr(text) for text in (self.organisation, self.name, self.revision, self.extension)
        )
        classifier = f" m:classifier={quoteattr(self.classifier)}" if self.classifier else ""
        return (
            f'<dependency org={org} name={name} rev={rev} transitive="false">'
            f"<artifact name={name} type={ext} ext={ext}{classifier}/></dependency>"
        )


def required_artifacts() -> tuple[Artifact, ...]:
    """The committed list."""
    text = _own_file("artifacts.txt").read_text(encoding="utf-8")
    return tuple(Artifact.parse(line) for line in text.splitlines() if line and not line.startswith("#"))


@dataclass(frozen=True)
class Installation:
    """The folders of one complete, verified set of programs: ``jars`` of Kafka, and the registry's."""

    folder: Path

    @property
    def kafka_classpath(self) -> str:
        """For ``java -cp``."""
        return str(self.folder / "kafka" / "*")

    @property
    def registry_jar(self) -> Path:
        """The registry's runnable jar, which finds its libraries beside itself."""
        return next((self.folder / "registry").glob("*-runner.jar"))


def find_installation(root: Path, artifacts: Iterable[Artifact]) -> Installation | None:
    """The complete installation of ``artifacts`` below ``root``; the folder's name is their digest."""
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

    The folder appears whole, by one rename; what an earlier attempt left behind is swept first, except Ivy's
    cache, which saves the files that had already arrived.

    Raises Unavailable when a file cannot be fetched, ConfigurationError when one is not what was expected.
    """
    root.mkdir(parents=True, exist_ok=True)
    kill_marked(f"{INSTALL_MARKER}{root}")
    for stale in root.glob("partial-*"):
        shutil.rmtree(stale)
    partial = Path(tempfile.mkdtemp(prefix="partial-", dir=root))
    _fetch(partial, artifacts, java, console, root, ivy_settings)
    console.print("  checking sha256 and unpacking")
    _verify(partial / "retrieved", artifacts, root / CACHE)
    _unpack(partial, artifacts)
    final = root / _digest(artifacts)
    partial.rename(final)
    shutil.rmtree(root / CACHE)
    return Installation(final)


def ivy_jar() -> Path:
    """The Ivy that PySpark ships. Raises ConfigurationError without PySpark."""
    pyspark = util.find_spec("pyspark")
    folder = Path(pyspark.origin).parent / "jars" if pyspark and pyspark.origin else Path("pyspark/jars")
    jars = sorted(folder.glob("ivy-*.jar"))
    if not jars:
        raise ConfigurationError(f"no ivy-*.jar in {folder}", next_step="pip install pyspark==4.3.0")
    return jars[-1]


def _digest(artifacts: Iterable[Artifact]) -> str:
    lines = "\n".join(artifact.format() for artifact in artifacts)
    return hashlib.sha256(lines.encode()).hexdigest()[:16]


def _own_file(name: str) -> Path:
    with resources.as_file(resources.files(__package__) / name) as path:
        return path


def _fetch(
    partial: Path,
    artifacts: tuple[Artifact, ...],
    java: JavaRuntime,
    console: Console,
    root: Path,
    ivy_settings: Path | None,
) -> None:
    module = partial / "ivy.xml"
    module.write_text(_ivy_module(artifacts), encoding="utf-8")
    cache, log = root / CACHE, partial / "ivy.log"
    arguments: list[str | Path] = [
        java.executable,
        f"{INSTALL_MARKER}{root}",
        f"-Divy.default.ivy.user.dir={cache}",
        *("-jar", ivy_jar()),
        *("-settings", ivy_settings or _own_file("ivysettings.xml")),
        *("-cache", cache),
        *("-ivy", module),
        *("-retrieve", f"{partial / 'retrieved'}/{RETRIEVE_PATTERN}"),
    ]
    total = sum(artifact.size for artifact in artifacts)
    console.print(f"  fetching {len(artifacts)} files, {total / 1e6:.0f} MB")
    with log.open("wb") as output, _bar(console, total) as advance_to:
        ivy = subprocess.Popen(arguments, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
        try:
            _watch(ivy, cache, advance_to)
        finally:
            ivy.kill()
            ivy.wait()
    if ivy.returncode != 0:
        raise Unavailable(
            f"could not fetch Kafka and the registry:\n{_ivy_problems(log)}",
            next_step="check the network, or name an Ivy settings file with your mirror (--ivy-settings)",
        )


@contextlib.contextmanager
def _bar(console: Console, total: int) -> Iterator[Progress]:
    columns = (TextColumn("  "), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeElapsedColumn())
    # Off a terminal the bar would print one empty line.
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        progress.add_task("", total=total)
        yield progress


def _watch(ivy: subprocess.Popen[bytes], cache: Path, bar: Progress) -> None:
    """Wait for Ivy, showing the bytes in its cache; Unavailable when they stop growing for too long."""
    arrived, since = 0, time.monotonic()
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            ivy.wait(timeout=POLL_SECONDS)
            return
        size = _size_of(cache)
        if size != arrived:
            arrived, since = size, time.monotonic()
            bar.update(bar.task_ids[0], completed=size)
        elif time.monotonic() - since > STALL_SECONDS:
            raise Unavailable(
                f"nothing arrived for {STALL_SECONDS} s while fetching Kafka and the registry",
                next_step="check the network and run the command again: it goes on where it was",
            )


def _size_of(folder: Path) -> int:
    """Bytes below ``folder``; files may vanish meanwhile (Ivy renames its ``.part`` files)."""
    size = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            size += path.stat().st_size
    return size


def _ivy_problems(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    telling = [line.strip() for line in lines if "FAILED" in line or "not found" in line or "problem" in line]
    return "\n".join((telling or lines)[-12:])


def _ivy_module(artifacts: Iterable[Artifact]) -> str:
    dependencies = "\n".join(artifact.to_ivy() for artifact in artifacts)
    return f"""<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
<info organisation="kbq" module="local-stack"/>
<configurations><conf name="default"/></configurations>
<dependencies defaultconf="default->default">
{dependencies}
</dependencies></ivy-module>
"""


def _verify(retrieved: Path, artifacts: Iterable[Artifact], cache: Path) -> None:
    wrong = [artifact.file_name for artifact in artifacts if not _is_expected(retrieved, artifact)]
    if wrong:
        # Ivy would serve the same files from its cache again, whatever the repository has by then.
        shutil.rmtree(cache)
        raise ConfigurationError(
            f"not the files that were expected (sha256 differs or missing): {', '.join(wrong)}",
            next_step="the repository or mirror serves other files: use another, or see artifacts.txt",
        )


def _is_expected(retrieved: Path, artifact: Artifact) -> bool:
    path = retrieved / artifact.retrieved_path
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == artifact.sha256


def _unpack(partial: Path, artifacts: Iterable[Artifact]) -> None:
    """Sort the files into one folder per package; archives are unpacked there."""
    for artifact in artifacts:
        source, folder = partial / "retrieved" / artifact.retrieved_path, partial / artifact.package
        folder.mkdir(exist_ok=True)
        if artifact.extension == "tar.gz":
            with tarfile.open(source) as archive:
                # Python 3.11.0 to 3.11.3 have no filters; the archive's sha256 is known anyway.
                archive.extraction_filter = getattr(tarfile, "data_filter", None)
                archive.extractall(folder)
        else:
            source.rename(folder / artifact.file_name)
    shutil.rmtree(partial / "retrieved")
