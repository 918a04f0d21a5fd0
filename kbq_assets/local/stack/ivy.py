"""Fetches files with the Ivy that PySpark includes. It needs no Maven, and the user's settings and mirrors apply."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources, util
from pathlib import Path
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

from kbq_assets.adapters.java import JavaRuntime
from kbq_assets.core.errors import ConfigurationError, Unavailable
from kbq_assets.core.optional_packages import install_command
from kbq_assets.local.stack.artifact import Artifact
from kbq_assets.local.stack.truststore import trusted_authorities, write_truststore

RETRIEVED = "retrieved"
RETRIEVE_PATTERN = "[organisation]/[artifact]-[revision](-[classifier]).[ext]"
# A dead mirror sends nothing. On a slow line, the first byte of the largest file takes seconds.
STALL_SECONDS = 180
POLL_SECONDS = 0.2
# Part of Java's message about a certificate from an unknown authority.
UNKNOWN_AUTHORITY = "PKIX path"


@dataclass(frozen=True)
class Ivy:
    """Runs Ivy. ``cache`` keeps the fetched files; ``marker`` is an argument that identifies a running fetch."""

    java: JavaRuntime
    cache: Path
    marker: str
    console: Console
    settings: Path | None = None

    def fetch(self, artifacts: Sequence[Artifact], folder: Path) -> None:
        """Fetch ``artifacts`` into ``<folder>/retrieved``, each to its ``retrieved_path``, without verifying them.

        Raises Unavailable if one cannot be fetched.
        """
        (folder / "ivy.xml").write_text(_module(artifacts), encoding="utf-8")
        total, log = sum(artifact.size for artifact in artifacts), folder / "ivy.log"
        self.console.print(f"  fetching {len(artifacts)} files, {total / 1e6:.0f} MB")
        fetched = self._run(folder, log, total, ())
        if not fetched and UNKNOWN_AUTHORITY in log.read_text(encoding="utf-8", errors="replace"):
            self.console.print(
                "  this Java does not know the certificate authority: trusting Python's authorities"
            )
            trust = write_truststore(folder / "authorities.jks", trusted_authorities())
            fetched = self._run(folder, log, total, trust)
        if not fetched:
            raise Unavailable(
                f"could not fetch Kafka and the registry:\n{_problems(log)}",
                next_step="check the network, or name your mirror: kbq local up --ivy-settings FILE",
            )

    def _run(self, folder: Path, log: Path, total: int, java_options: Sequence[str]) -> bool:
        """Run Ivy with its output in ``log``. Returns whether it fetched everything."""
        command = self._command(folder, java_options)
        with log.open("wb") as output, _bar(self.console, total) as bar:
            ivy = subprocess.Popen(
                command, cwd=folder, stdout=output, stderr=output, stdin=subprocess.DEVNULL
            )
            try:
                _watch(ivy, self.cache, bar)
            finally:
                ivy.kill()
                ivy.wait()
        return ivy.returncode == 0

    def _command(self, folder: Path, java_options: Sequence[str]) -> list[str | Path]:
        return [
            self.java.executable,
            self.marker,
            *java_options,
            f"-Divy.default.ivy.user.dir={self.cache}",
            *("-jar", ivy_jar()),
            *("-settings", self.settings or _default_settings()),
            *("-cache", self.cache),
            *("-ivy", folder / "ivy.xml"),
            # Relative to the working folder: Ivy would treat brackets in a folder's name as part of the pattern.
            *("-retrieve", f"{RETRIEVED}/{RETRIEVE_PATTERN}"),
        ]


def ivy_jar() -> Path:
    """The path of the Ivy jar that PySpark includes. Raises ConfigurationError without PySpark."""
    pyspark = util.find_spec("pyspark")
    jars = sorted(Path(pyspark.origin).parent.glob("jars/ivy-*.jar")) if pyspark and pyspark.origin else []
    if not jars:
        raise ConfigurationError(
            "the stack's files are fetched by PySpark's Ivy, which is not installed",
            next_step=install_command("pyspark"),
        )
    return jars[-1]


def _default_settings() -> Path:
    with resources.as_file(resources.files(__package__) / "ivysettings.xml") as path:
        return path


@contextlib.contextmanager
def _bar(console: Console, total: int) -> Iterator[Progress]:
    columns = (TextColumn("  "), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeElapsedColumn())
    # Without a terminal the bar would print one empty line.
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        progress.add_task("", total=total)
        yield progress


def _watch(ivy: subprocess.Popen[bytes], cache: Path, bar: Progress) -> None:
    """Wait for Ivy, and show the bytes in its cache. Raises Unavailable if none arrive for too long."""
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
                next_step="check the network and run the command again: it continues where it stopped",
            )


def _size_of(folder: Path) -> int:
    """Bytes below ``folder``. Files may vanish meanwhile: Ivy renames its ``.part`` files."""
    size = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            size += path.stat().st_size
    return size


def _problems(log: Path) -> str:
    """The problems in Ivy's log: the causes if it reports any, otherwise the missing files."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    for telling in ("access error", "FAILED", "not found"):
        found = [line for line in lines if telling in line]
        if found:
            return "\n".join(found[:6])
    return "\n".join(lines[-6:])


def _module(artifacts: Iterable[Artifact]) -> str:
    dependencies = "\n".join(_dependency(artifact) for artifact in artifacts)
    return f"""<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
<info organisation="kbq" module="local-stack"/>
<configurations><conf name="default"/></configurations>
<dependencies defaultconf="default->default">
{dependencies}
</dependencies></ivy-module>
"""


def _dependency(artifact: Artifact) -> str:
    """The element that fetches only this file."""
    parts = (artifact.organisation, artifact.name, artifact.revision, artifact.extension)
    org, name, rev, ext = (quoteattr(part) for part in parts)
    classifier = f" m:classifier={quoteattr(artifact.classifier)}" if artifact.classifier else ""
    return (
        f'<dependency org={org} name={name} rev={rev} transitive="false">'
        f"<artifact name={name} type={ext} ext={ext}{classifier}/></dependency>"
    )
