"""`kbq serve` as a process: it runs without a broker, and a signal ends it cleanly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

KBQ = str(Path(sys.executable).parent / "kbq")


@pytest.fixture
def started(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    (tmp_path / "topics.txt").write_text("shop.orders.v1\n")
    environ = {
        "PATH": os.environ["PATH"],
        "KBQ_HOME": str(tmp_path),
        "KBQ_SOURCE_TOPICS": str(tmp_path / "topics.txt"),
        "KBQ_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:9",
    }
    with subprocess.Popen(
        [KBQ, "serve", "--port", "0"], env=environ, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.thorough)])
def test_a_signal_ends_the_service_in_order(started: subprocess.Popen[str], number: signal.Signals) -> None:
    assert started.stdout is not None
    url = started.stdout.readline().split()[2].rstrip(";")
    for page in ("healthcheck", "metrics", "status"):
        with urllib.request.urlopen(f"{url}/{page}", timeout=300) as response:
            assert response.status == 200
    started.send_signal(number)
    assert started.wait(300) == 0
    assert started.stdout.read().splitlines()[-1] == "stopped"


@pytest.mark.thorough
def test_a_port_that_is_taken_is_reported(started: subprocess.Popen[str], tmp_path: Path) -> None:
    assert started.stdout is not None
    port = started.stdout.readline().split()[2].rstrip(";").rpartition(":")[2]
    second = subprocess.run(
        [KBQ, "serve", "--port", port],
        check=False,
        env={"PATH": os.environ["PATH"], "KBQ_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert second.returncode == 1
    assert f"127.0.0.1:{port} cannot be listened on" in second.stderr
