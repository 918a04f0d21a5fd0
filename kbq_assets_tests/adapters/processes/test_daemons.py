"""Daemons are found whatever has died, never confused with other processes, and always stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from kbq_assets.adapters.processes.daemons import (
    Daemon,
    find_daemon,
    last_lines,
    marked_processes,
    marker_of,
    read_record,
    record_path,
    start_daemon,
    stop_processes,
)

# A real interpreter keeps its arguments on the command line, as Java does.
SLEEPER = f"#!{sys.executable}\nimport time\ntime.sleep(600)\n"
STUBBORN = f"""#!{sys.executable}
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
time.sleep(600)
"""
START_AND_DIE = """
import os, signal, sys
from pathlib import Path
from kbq_assets.adapters.processes import daemons
daemons._write_record = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
home = Path(sys.argv[1])
daemons.start_daemon(daemons.Daemon("kafka", home, (sys.argv[2],), 1234))
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home whose daemons are gone after the test."""
    yield tmp_path / "home"
    for service in ("kafka", "registry"):
        stop_processes(marked_processes(marker_of(service, tmp_path / "home")), grace_seconds=0)


def daemon(home: Path, program: str = SLEEPER) -> Daemon:
    return Daemon("kafka", home, (str(executable(home, program)),), 1234)


def executable(home: Path, program: str) -> Path:
    home.mkdir(parents=True, exist_ok=True)
    path = home / "program"
    path.write_text(program)
    path.chmod(0o755)
    return path


def test_a_daemon_is_found_by_its_record_and_lives_in_a_session_of_its_own(home: Path) -> None:
    started = start_daemon(daemon(home))
    assert find_daemon("kafka", home) == started
    assert os.getsid(started.pid) == started.pid
    record = read_record("kafka", home)
    assert record is not None
    assert (record.pid, record.port) == (started.pid, 1234)


@pytest.mark.parametrize("damage", ["", "{", '{"pid": 1}', '{"pid": "x", "started_at": 0, "port": 1}', "[]"])
def test_a_damaged_record_is_fixed_from_the_command_line(home: Path, damage: str) -> None:
    started = start_daemon(daemon(home))
    record_path("kafka", home).write_text(damage)
    assert find_daemon("kafka", home) == started
    record = read_record("kafka", home)
    assert record is not None
    assert (record.pid, record.port) == (started.pid, 1234)


def test_a_daemon_whose_starter_was_killed_before_recording_it_is_found(home: Path) -> None:
    program = executable(home, SLEEPER)
    starter = subprocess.run([sys.executable, "-c", START_AND_DIE, home, program], check=False)
    assert starter.returncode == -signal.SIGKILL
    assert not record_path("kafka", home).exists()
    found = find_daemon("kafka", home)
    assert found is not None
    assert marker_of("kafka", home) in found.cmdline()


def test_a_recycled_pid_is_not_taken_for_the_daemon(home: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as stranger:
        created = psutil.Process(stranger.pid).create_time()
        record_path("kafka", home).parent.mkdir(parents=True)
        record = {"pid": stranger.pid, "started_at": created, "port": 1234}
        record_path("kafka", home).write_text(json.dumps(record))
        found = find_daemon("kafka", home)
        stranger.kill()
        assert found is None


def test_a_daemon_of_another_home_or_service_is_not_ours(home: Path, tmp_path: Path) -> None:
    start_daemon(daemon(home))
    assert find_daemon("registry", home) is None
    assert find_daemon("kafka", tmp_path / "hom") is None
    assert find_daemon("kafka", home.with_name("home2")) is None


def test_a_daemon_that_ended_is_not_found_though_nobody_waited_for_it(home: Path) -> None:
    started = start_daemon(daemon(home))
    started.kill()
    deadline = time.monotonic() + 120
    while find_daemon("kafka", home) is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert find_daemon("kafka", home) is None
    started.wait(timeout=120)


def test_stopping_is_polite_first(home: Path) -> None:
    started = start_daemon(daemon(home))
    assert stop_processes([started], grace_seconds=120) == []
    assert not started.is_running()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_daemon_listens_to_signals_that_its_starter_ignores(home: Path, number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        started = start_daemon(daemon(home))
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)
    started.send_signal(number)
    started.wait(timeout=120)


def test_a_daemon_deaf_to_sigterm_is_killed(home: Path) -> None:
    deaf = daemon(home, STUBBORN)
    started = start_daemon(deaf)
    while not last_lines(deaf.log_path):
        time.sleep(0.01)
    assert stop_processes([started], grace_seconds=0.2) == [started]
    assert not started.is_running()


def test_the_log_keeps_output_and_errors_and_its_end_can_be_shown(home: Path) -> None:
    noisy = daemon(home, "#!/bin/sh\nfor i in 1 2 3; do echo out$i; echo err$i >&2; done\n")
    start_daemon(noisy).wait(timeout=120)
    assert last_lines(noisy.log_path, 2).splitlines() == ["out3", "err3"]


def test_a_log_that_is_not_there_has_no_lines(tmp_path: Path) -> None:
    assert last_lines(tmp_path / "none.log") == ""
