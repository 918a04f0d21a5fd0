"""Installs the local Google servers once, into the folder of the local stack's programs.

fake-gcs-server is built by Go from its module; local-bigquery gets a Python environment of its own, since it needs
Python 3.13. Both appear by one rename, so that an interrupted installation is simply done again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from kbq_assets.adapters.local_stack.locks import exclusive

GCS_MODULE, GCS_VERSION = "github.com/fsouza/fake-gcs-server", "v1.56.1"
LOCK = Path(__file__).parent / "requirements-bigquery.lock"
EXTENSIONS = ("ducklake", "httpfs", "icu", "spatial")
Tell = Callable[[str], None]

_IMPORT_EXTENSIONS = (
    "import sys, duckdb_extensions\nfor name in sys.argv[1:]: duckdb_extensions.import_extension(name)"
)
_CAN_MAKE_ENVIRONMENTS = (
    "import sys, venv, ensurepip; print('yes' if (3, 13) <= sys.version_info < (3, 15) else '')"
)


class NotInstallable(Exception):
    """A tool that the installation needs is not on this machine; the message says which, and how to get it."""


@dataclass(frozen=True)
class Program:
    """A server as it is started: its command and its whole environment."""

    command: tuple[str, ...]
    environment: Mapping[str, str]


def fake_gcs_server(root: Path, tell: Tell) -> Program:
    """fake-gcs-server below ``root``, built if it is not there. Raises NotInstallable without Go."""
    folder = _once(root, f"fake-gcs-server-{GCS_VERSION}", lambda partial: _build_gcs(partial, tell))
    return Program((str(folder / "fake-gcs-server"),), {"PATH": os.defpath})


def local_bigquery(root: Path, tell: Tell) -> Program:
    """local-bigquery below ``root``, installed if it is not there. Raises NotInstallable without Python 3.13."""
    digest = hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]
    folder = _once(root, f"local-bigquery-{digest}", lambda partial: _install_bigquery(partial, tell))
    # Not the environment's own script: it names the folder in which it was installed.
    starts = "from local_bigquery.cli import main; main()"
    return Program(
        (str(folder / "bin" / "python"), "-c", starts),
        {"PATH": os.defpath, "HOME": str(folder / "home")},
    )


def find_python() -> Path:
    """A Python that local-bigquery runs on: 3.13 or 3.14. Raises NotInstallable."""
    for candidate in _pythons():
        if _prints(candidate, "-c", _CAN_MAKE_ENVIRONMENTS):
            return candidate
    raise NotInstallable(
        "the local BigQuery needs Python 3.13 or 3.14 beside KBQ's own: `pyenv install 3.13`, "
        "`uv python install 3.13` or `apt-get install python3.13-venv`; one that stands elsewhere is named by "
        "KBQ_TEST_PYTHON313=/path/to/python3.13"
    )


def find_go() -> Path:
    """Go of 1.21 or later, which fetches the toolchain that a module wants. Raises NotInstallable."""
    for found in (
        shutil.which("go"),
        "/usr/local/go/bin/go",
        *sorted(Path("/usr/lib").glob("go-1.*/bin/go")),
    ):
        # Older ones have no such variable and print an empty line for it.
        if found and _prints(Path(found), "env", "GOTOOLCHAIN"):
            return Path(found)
    raise NotInstallable(
        "the local Cloud Storage is built with Go 1.21 or later: `apt-get install golang-go` where it is new enough, "
        "or https://go.dev/doc/install"
    )


def _once(root: Path, name: str, install: Callable[[Path], None]) -> Path:
    """The folder ``name``, made by ``install`` in a folder beside it, by one of all processes."""
    final = root / name
    with exclusive(root / f"{name}.lock", Console(quiet=True), wait_seconds=900):
        if not final.is_dir():
            for stale in root.glob(f"partial-{name}-*"):
                shutil.rmtree(stale)
            partial = Path(tempfile.mkdtemp(prefix=f"partial-{name}-", dir=root))
            install(partial)
            partial.rename(final)
    return final


def _build_gcs(partial: Path, tell: Tell) -> None:
    go = find_go()
    tell(f"building fake-gcs-server {GCS_VERSION} (two minutes, the first time only)")
    environment = {**os.environ, "GOBIN": str(partial), "CGO_ENABLED": "0", "GOTOOLCHAIN": "auto"}
    _run([str(go), "install", f"{GCS_MODULE}@{GCS_VERSION}"], environment)


def _install_bigquery(partial: Path, tell: Tell) -> None:
    python = find_python()
    tell("installing local-bigquery (700 MB, a few minutes, the first time only)")
    _run([str(python), "-m", "venv", str(partial)], os.environ)
    own = str(partial / "bin" / "python")
    _run([own, "-m", "pip", "install", "-q", "--no-deps", "--require-hashes", "-r", str(LOCK)], os.environ)
    home = partial / "home"
    home.mkdir()
    _run([own, "-c", _IMPORT_EXTENSIONS, *EXTENSIONS], {**os.environ, "HOME": str(home)})


def _pythons() -> Iterator[Path]:
    if named := os.environ.get("KBQ_TEST_PYTHON313"):
        yield Path(named)
        return
    for name in ("python3.13", "python3.14", "python3"):
        if found := shutil.which(name):
            yield Path(found)
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from sorted(pyenv.glob("versions/3.1[34].*/bin/python3"))
    yield from sorted((Path.home() / ".local/share/uv/python").glob("cpython-3.1[34]*/bin/python3"))


def _prints(program: Path, *arguments: str) -> bool:
    """Whether ``program`` is there, ends well and says something. pyenv has shims for versions that are not there."""
    try:
        done = subprocess.run([str(program), *arguments], check=False, capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and bool(done.stdout.strip())


def _run(command: list[str], environment: Mapping[str, str]) -> None:
    done = subprocess.run(command, check=False, env=dict(environment), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
