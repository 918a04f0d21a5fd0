"""A separate Postgres for a test: a new cluster on a free loopback port, with a password."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy

from kbq_assets_tests.fixtures.local_stack import free_ports

#: Where Debian puts them.
_VERSIONS = Path("/usr/lib/postgresql")


def programs() -> Path:
    """The folder of `initdb` and `postgres`. Skips where Postgres is not installed."""
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found else sorted(_VERSIONS.glob("*/bin"))
    if not folders:
        pytest.skip("no Postgres here: sudo apt-get install postgresql")
    return folders[-1]


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """The address of a running Postgres, gone after the block. It does not run as root: root becomes `postgres`."""
    folder, [port], password = (
        Path(tempfile.mkdtemp(prefix="kbq-postgres-")),
        free_ports(1),
        secrets.token_hex(8),
    )
    try:
        (folder / "password").write_text(password)
        user = "postgres" if os.geteuid() == 0 else None
        if user:
            for path in (folder, folder / "password"):
                shutil.chown(path, user)
        url = f"postgresql://kbq:{password}@127.0.0.1:{port}/postgres"
        with _running(programs(), folder, url, user):
            yield url
    finally:
        shutil.rmtree(folder)


@contextlib.contextmanager
def _running(bin_: Path, folder: Path, url: str, user: str | None) -> Iterator[None]:
    data, port = str(folder / "data"), str(sqlalchemy.make_url(url).port)
    login = ("-U", "kbq", "--auth=scram-sha-256", f"--pwfile={folder / 'password'}")
    made = (str(bin_ / "initdb"), "-D", data, *login, "--no-sync")
    subprocess.run(made, check=True, user=user, cwd=folder, stdout=subprocess.DEVNULL)
    place = ("-c", f"unix_socket_directories={folder}", "-h", "127.0.0.1", "-p", port)
    command = (str(bin_ / "postgres"), "-D", data, "-c", "fsync=off", *place)
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, user=user, cwd=folder, stdout=log, stderr=log)
    try:
        _wait_until_it_answers(url, server, folder / "log")
        yield
    finally:
        server.send_signal(signal.SIGINT)  # ends at once, even with connected clients
        server.wait(300)


def query(url: str, sql: str) -> list[tuple[object, ...]]:
    """Rows of a query."""
    engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg2:"))
    try:
        with engine.connect() as connection:
            return [tuple(row) for row in connection.execute(sqlalchemy.text(sql))]
    finally:
        engine.dispose()


def _wait_until_it_answers(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 300
    while True:
        assert server.poll() is None and time.monotonic() < deadline, log.read_text()
        with contextlib.suppress(sqlalchemy.exc.OperationalError):
            query(url, "SELECT 1")
            return
        time.sleep(0.2)
