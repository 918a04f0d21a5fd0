"""The release before this one, and this one, take turns on one staging area and one warehouse.

The release before is the last tag, or, as long as there is none, a commit of the same stored format. A release of an
older format is the commit before the format was raised.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from kbq_assets.adapters.duckdb import DuckDbWarehouse
from kbq_assets.core.protocol.codec import FORMAT
from kbq_assets_tests.sizes import RELEASE_SCHEDULES

pytestmark = pytest.mark.slow

_REPOSITORY = Path(__file__).resolve().parents[2]
_CODEC = "kbq_assets/core/protocol/codec.py"
#: How far back the commit is that replaces a release, while there is no tag.
_BACK = 150
_RUNS = ("extract", "extract", "load", "load", "clean")


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=_REPOSITORY, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def last_release() -> str:
    """The last tag, or else an older commit in its place."""
    return git("describe", "--tags", "--abbrev=0") or git("rev-parse", "-q", "--verify", f"HEAD~{_BACK}")


def older_format() -> str:
    """The last commit that did not know this format."""
    raised = git("log", "--format=%H", f"-SFORMAT: Final = {FORMAT}", "--", _CODEC).splitlines()
    return git("rev-parse", "-q", "--verify", f"{raised[-1]}^") if raised else ""


class Release:
    """A process of one release."""

    def __init__(self, stdin: IO[str], stdout: IO[str]) -> None:
        self._stdin, self._stdout = stdin, stdout

    def run(self, home: Path, records: int, run: str) -> list[str]:
        """Why a run did not do all of its work."""
        self._stdin.write(json.dumps({"home": str(home), "records": records, "run": run}) + "\n")
        self._stdin.flush()
        line = self._stdout.readline()
        assert line, "the release's process has ended"
        found: list[str] = json.loads(line)["problems"]
        return found


@contextmanager
def release(tree: Path) -> Iterator[Release]:
    """The release whose sources are in a folder."""
    command = [sys.executable, str(Path(__file__).with_name("worker.py"))]
    environ = {**os.environ, "PYTHONPATH": str(tree)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=tree, env=environ, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        yield Release(process.stdin, process.stdout)
        process.stdin.close()


@contextmanager
def former(commit: str, folder: Path) -> Iterator[Release]:
    """The release of a commit, in its own folder."""
    if not commit:
        pytest.skip("the history of this repository has no former release")
    folder.mkdir()
    with subprocess.Popen(["git", "archive", commit], cwd=_REPOSITORY, stdout=subprocess.PIPE) as archive:
        subprocess.run(["tar", "xf", "-", "-C", folder], stdin=archive.stdout, check=True)
    with release(folder) as found:
        yield found


def contents(home: Path) -> dict[str, str]:
    """Every object of a staging area."""
    staging = home / "staging"
    return {
        str(path.relative_to(staging)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(staging.rglob("*"))
        if path.is_file()
    }


def loaded(home: Path) -> list[tuple[int, int]]:
    """Partition and offset of every row."""
    with DuckDbWarehouse(home / "warehouse.duckdb").connect_readonly() as connection:
        query = "SELECT _kafka_partition, _kafka_offset FROM shop.orders ORDER BY ALL"
        return connection.execute(query).fetchall()


def test_releases_that_take_turns_load_every_record_once(tmp_path: Path) -> None:
    with former(last_release(), tmp_path / "former") as before, release(_REPOSITORY) as now:
        for seed in range(RELEASE_SCHEDULES):
            chance, home, records = random.Random(seed), tmp_path / str(seed), 2
            home.mkdir()
            for _ in range(6):
                records += chance.randint(0, 5)
                turn = chance.choice((before, now))
                assert turn.run(home, records, chance.choice(_RUNS)) == [], f"seed {seed}"
            last = chance.choice((before, now))
            for run in ("extract", "load", "clean", "load"):
                assert last.run(home, records, run) == [], f"seed {seed}"
            assert loaded(home) == sorted((n % 2, n // 2) for n in range(records)), f"seed {seed}"


def test_a_release_of_an_older_format_refuses_newer_objects_and_writes_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with former(older_format(), tmp_path / "former") as before, release(_REPOSITORY) as now:
        for run in ("extract", "load"):  # what it left is upgraded in place
            assert before.run(home, 6, run) == []
        for run in ("extract", "load", "extract"):
            assert now.run(home, 10, run) == []
        written, rows = contents(home), loaded(home)
        for run in ("extract", "load"):
            assert f"has format {FORMAT}" in " ".join(before.run(home, 14, run)), run
            assert (contents(home), loaded(home)) == (written, rows), run
        for run in ("extract", "load"):
            assert now.run(home, 14, run) == []
    assert loaded(home) == sorted((n % 2, n // 2) for n in range(14))
