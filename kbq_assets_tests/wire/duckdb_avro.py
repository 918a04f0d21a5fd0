"""DuckDB's own reader of Avro files, in an environment below ``.kbq/installed``, made at first use.

Its extension is a wheel of exactly DuckDB's version, and KBQ's DuckDB may be newer than the newest of them.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kbq_assets_tests.fixtures.local_stack import INSTALLED
from kbq_assets_tests.google.install import _once

_LOCK = Path(__file__).parent / "requirements-duckdb.lock"
_IMPORT = "import duckdb_extensions; duckdb_extensions.import_extension('avro')"
_READ = """
import json, sys, duckdb
connection = duckdb.connect()
connection.execute("SET enable_progress_bar = false")  # which `python -c` shows after two seconds
connection.execute("load avro")
for file in sys.argv[1:]:
    found = connection.execute("select * from read_avro(?) order by _kafka_offset", [file])
    columns = {each[0]: str(each[1]) for each in found.description}
    rows = [dict(zip(columns, row)) for row in found.fetchall()]
    print(json.dumps({"columns": columns, "rows": rows}, default=str))
"""


def read(files: Sequence[Path]) -> list[dict[str, Any]]:
    """Of each file ``columns`` and their types, ``rows`` by offset; what JSON has no type for is text."""
    folder = _installed()
    # It looks for its extensions below HOME.
    shown = _run(folder, {"HOME": str(folder)}, "-c", _READ, *map(str, files))
    return [json.loads(line) for line in shown.splitlines()]


def _installed() -> Path:
    digest = hashlib.sha256(_LOCK.read_bytes() + sys.version.encode()).hexdigest()[:16]
    return _once(INSTALLED, f"duckdb-avro-{digest}", _install)


def _install(folder: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = ("-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "--require-hashes")
    _run(folder, {}, *pip, "-r", str(_LOCK))
    _run(folder, {"HOME": str(folder)}, "-c", _IMPORT)


def _run(folder: Path, environ: Mapping[str, str], *arguments: str) -> str:
    command = [str(folder / "bin" / "python"), *arguments]
    done = subprocess.run(command, env={**os.environ, **environ}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
