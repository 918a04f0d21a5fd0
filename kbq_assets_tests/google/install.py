"""Installs the local Google servers once, into the folder of the local stack's programs.

fake-gcs-server is built by Go from its module. local-bigquery gets its own Python environment, since it needs
Python 3.13 (tools.py finds both). Each appears with one rename, so an interrupted installation is simply repeated.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from kbq_assets.adapters.processes.locks import exclusive
from kbq_assets_tests.google.tools import (
    PYTHON_ARTIFACT,
    fetch_go,
    fetch_python,
    fetched_python,
    find_go,
    find_python,
    run,
)

GCS_MODULE, GCS_VERSION = "github.com/fsouza/fake-gcs-server", "v1.56.1"
LOCK = Path(__file__).parent / "requirements-bigquery.lock"
EXTENSIONS = ("ducklake", "httpfs", "icu", "spatial")
Tell = Callable[[str], None]

_IMPORT_EXTENSIONS = (
    "import sys, duckdb_extensions\nfor name in sys.argv[1:]: duckdb_extensions.import_extension(name)"
)


# Not the environment's own script: it names the folder in which it was installed. It changes three things:
# - Projects are DuckDB files, not DuckLakes: DuckLake reads its whole catalog again after each commit (four times the
#   CPU time).
# - Only the results of the last queries stay: the server keeps all as tables, and each request lists them. A query took
#   67 ms of CPU time at first, and 125 ms after 1,200 others.
# - DuckDB uses one thread, and does not search for packages that are not installed at each statement: 43 ms, not 63.
_SERVE_BIGQUERY = """
import functools
import sys
from collections import deque
from importlib.util import find_spec

import pyarrow
from local_bigquery.catalog import tables
from local_bigquery.cli import main
from local_bigquery.engine import database
from local_bigquery.jobs import query

results, execute = deque(), query._execute

def execute_and_forget(*arguments):
    found = execute(*arguments)
    destination = found[2]
    if destination and destination.datasetId == tables.RESULTS:
        results.append((destination.projectId, destination.tableId))
    while len(results) > 100:
        project, job = results.popleft()
        database.execute(f"DROP TABLE IF EXISTS {tables.name(project, tables.RESULTS, job)}")
    return found

query._execute = execute_and_forget

pyarrow.array([1])  # it looks for pandas once; a module that is None would confuse it later
for name in ("pandas", "polars", "pyarrow", "numpy", "torch", "tensorflow", "IPython", "ipywidgets", "fsspec"):
    if find_spec(name) is None:
        sys.modules[name] = None

connect = database._connect

@functools.cache
def connect_with_one_thread():
    connection = connect()
    connection.execute("SET threads = 1")
    return connection

database._connect = connect_with_one_thread
def attach(connection, project):
    path = database.settings.data_dir / f"{project}.ducklake"
    connection.execute(f"ATTACH IF NOT EXISTS '{path}' AS {database.quote(project)}")
    database._attached.add(project)

database._attach = attach
main()
"""


@dataclass(frozen=True)
class Program:
    """A server as it is started: its command and its whole environment."""

    command: tuple[str, ...]
    environment: Mapping[str, str]


def fake_gcs_server(root: Path, tell: Tell) -> Program:
    """fake-gcs-server below ``root``, built if it is not there. Raises NotInstallable."""
    folder = _once(root, f"fake-gcs-server-{GCS_VERSION}", lambda partial: _build_gcs(partial, tell))
    return Program((str(folder / "fake-gcs-server"),), {"PATH": os.defpath})


def local_bigquery(root: Path, tell: Tell) -> Program:
    """local-bigquery below ``root``, installed if it is not there. Raises NotInstallable."""
    digest = hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]
    folder = _once(root, f"local-bigquery-{digest}", lambda partial: _install_bigquery(root, partial, tell))
    return Program(
        (str(folder / "bin" / "python"), "-c", _SERVE_BIGQUERY),
        {"PATH": os.defpath, "HOME": str(folder / "home")},
    )


def _once(root: Path, name: str, install: Callable[[Path], None]) -> Path:
    """The folder ``name``, made by ``install`` in a folder next to it, by one of all processes."""
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
    tell(f"building fake-gcs-server {GCS_VERSION} (two minutes, the first time only)")
    built_by_go(partial, GCS_MODULE, GCS_VERSION)


def built_by_go(folder: Path, module: str, version: str) -> Path:
    """A program that Go builds from its module into a folder. Raises NotInstallable."""
    toolchain = folder / "toolchain"
    go = find_go() or fetch_go(toolchain)
    environment = {**os.environ, "GOBIN": str(folder), "CGO_ENABLED": "0", "GOTOOLCHAIN": "auto"}
    run([str(go), "install", f"{module}@{version}"], environment)
    shutil.rmtree(toolchain, ignore_errors=True)
    return folder / module.rpartition("/")[2]


def _install_bigquery(root: Path, partial: Path, tell: Tell) -> None:
    tell("installing local-bigquery (800 MB, a few minutes, the first time only)")
    python = find_python() or fetched_python(_once(root, f"python-{PYTHON_ARTIFACT.revision}", fetch_python))
    run([str(python), "-m", "venv", str(partial)], os.environ)
    own = str(partial / "bin" / "python")
    run([own, "-m", "pip", "install", "-q", "--no-deps", "--require-hashes", "-r", str(LOCK)], os.environ)
    home = partial / "home"
    home.mkdir()
    run([own, "-c", _IMPORT_EXTENSIONS, *EXTENSIONS], {**os.environ, "HOME": str(home)})
