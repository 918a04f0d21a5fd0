"""Dagster's real queue, daemon and processes: a killed run blocks nothing and is cleaned up."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import psutil
import pytest

import kbq_assets.defs
from kbq_assets.core.errors import ConfigurationError, NotFound
from kbq_assets.defs.instance.database import DagsterDatabase
from kbq_assets.defs.instance.orchestrator import DagsterOrchestrator
from kbq_assets.defs.instance.processes import HomeLock, Processes, is_alive, rotate
from kbq_assets_tests.defs import served
from kbq_assets_tests.fixtures.local_stack import REPOSITORY, free_ports

pytestmark = pytest.mark.slow

WORKSPACE = f"""
load_from:
  - python_module:
      module_name: kbq_assets_tests.defs.served
      attribute: defs
      location_name: kbq
      working_directory: {REPOSITORY}
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A KBQ home with the product's dagster.yaml, whose processes are ended after the test."""
    configuration = tmp_path / "configuration"
    configuration.mkdir()
    shutil.copy(Path(kbq_assets.defs.__file__).parent / "home" / "dagster.yaml", configuration)
    (configuration / "workspace.yaml").write_text(WORKSPACE)
    yield tmp_path
    orchestrator_of(tmp_path).stop()
    assert processes_of(tmp_path) == []


def orchestrator_of(home: Path) -> DagsterOrchestrator:
    return DagsterOrchestrator(home, os.environ, lambda: served.defs, home / "configuration")


def processes_of(home: Path) -> list[psutil.Process]:
    return Processes(home / "dagster", home / "logs", {}).found()


def run_through(orchestrator: DagsterOrchestrator, run_id: str) -> list[str]:
    return [f"{line.level} {line.message}" for line in orchestrator.follow(run_id)]


def ask(url: str, query: str, **headers: str) -> Any:
    """A UI's answer to a GraphQL query."""
    body = json.dumps({"query": query}).encode()
    request = urllib.request.Request(f"{url}/graphql", body, {"Content-Type": "application/json", **headers})
    with urllib.request.urlopen(request, timeout=600) as reply:
        return json.load(reply)["data"]


def arguments_of(process: psutil.Process) -> list[str]:
    """A process's command line; nothing where it has ended meanwhile."""
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


def wait_for(condition: Callable[[], object], seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.3)


def statuses(home: Path) -> list[str]:
    with dg.DagsterInstance.from_config(str(home / "dagster")) as instance:
        return [run.status.value for run in instance.get_runs()]


def test_a_queued_job_runs_and_its_log_is_followed_to_its_end(home: Path) -> None:
    orchestrator = orchestrator_of(home)
    said, failed = orchestrator.submit("says"), orchestrator.submit("fails")
    assert orchestrator.outcome(said).status == "QUEUED"
    with orchestrator.working():
        assert run_through(orchestrator, said) == ["INFO hello"]
        log = run_through(orchestrator, failed)
    assert orchestrator.outcome(said).succeeded
    assert not orchestrator.outcome(failed).succeeded
    assert any("on purpose" in line for line in log)
    assert processes_of(home) == []


def test_a_killed_worker_does_not_block_the_next_run(home: Path) -> None:
    orchestrator = orchestrator_of(home)
    killed, next_run = orchestrator.submit("dies"), orchestrator.submit("says")
    with orchestrator.working():
        run_through(orchestrator, killed)
        begun = time.monotonic()
        run_through(orchestrator, next_run)
        # Some 10 s on idle cores; three minutes and more where only Dagster's limit for starting frees the slot.
        assert time.monotonic() - begun < 150
    assert not orchestrator.outcome(killed).succeeded
    assert orchestrator.outcome(next_run).succeeded


def test_a_run_whose_worker_died_is_tried_again_and_followed(home: Path) -> None:
    orchestrator = orchestrator_of(home)
    run_id = orchestrator.submit("dies_once")
    with orchestrator.working():
        assert "INFO alive" in run_through(orchestrator, run_id)
    assert orchestrator.outcome(run_id).succeeded
    assert orchestrator.outcome(run_id).run_id != run_id


def test_a_killed_daemon_is_started_again(home: Path) -> None:
    orchestrator = orchestrator_of(home)
    with orchestrator.working():
        wait_for(lambda: processes_of(home))
        for process in processes_of(home):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        assert "INFO hello" in run_through(orchestrator, orchestrator.submit("says"))


@pytest.fixture
def killed_command(home: Path) -> Path:
    """A home whose command was killed with -9 during a run. Everything that it started continues."""
    code = (
        "import sys, time\nfrom pathlib import Path\n"
        "from kbq_assets_tests.defs.instance.test_orchestrator import orchestrator_of\n"
        "orchestrator = orchestrator_of(Path(sys.argv[1]))\n"
        "run = orchestrator.submit('waits')\n"
        "with orchestrator.working():\n"
        "    for line in orchestrator.follow(run): print(line.message, flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code, str(home)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    ) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == "waiting\n"
        command.send_signal(signal.SIGKILL)
    assert command.returncode == -signal.SIGKILL
    return home


def test_what_a_killed_command_left_is_cleared_by_the_next(killed_command: Path) -> None:
    left = processes_of(killed_command)
    assert left
    orchestrator = orchestrator_of(killed_command)
    said = orchestrator.submit("says")
    with orchestrator.working():
        assert not set(left) & set(processes_of(killed_command))
        run_through(orchestrator, said)
    assert orchestrator.outcome(said).succeeded
    assert "CANCELED" in statuses(killed_command)


def test_stop_clears_what_a_killed_command_left(killed_command: Path) -> None:
    assert processes_of(killed_command)
    orchestrator_of(killed_command).stop()
    assert processes_of(killed_command) == []
    assert statuses(killed_command) == ["CANCELED"]


def test_another_commands_daemon_is_used_and_left_alone(home: Path) -> None:
    holder = HomeLock(home / "run" / "dagster.lock")
    assert holder.try_acquire()
    with orchestrator_of(home).working():
        assert processes_of(home) == []
    holder.release()


def test_work_is_taken_over_when_the_other_command_ends(home: Path) -> None:
    holder = HomeLock(home / "run" / "dagster.lock")
    assert holder.try_acquire()
    orchestrator = orchestrator_of(home)
    run_id = orchestrator.submit("says")
    with orchestrator.working():
        holder.release()
        assert run_through(orchestrator, run_id) == ["INFO hello"]
    assert processes_of(home) == []
    assert holder.try_acquire(), "whoever took over gives it back"
    holder.release()


def test_a_taken_port_is_refused_by_name(home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"port {port}.*is taken"):
            orchestrator_of(home).serve(port, print)
    assert processes_of(home) == []


class TakesThePort(DagsterDatabase):
    """Another program that listens as soon as the command has seen that the port is free."""

    listener = socket.socket()

    @property
    def configuration(self) -> str:
        self.listener.listen()
        return super().configuration


def test_the_ui_of_another_command_is_not_taken_for_our_own(home: Path) -> None:
    database = TakesThePort()
    with database.listener as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        orchestrator = DagsterOrchestrator(
            home, os.environ, lambda: served.defs, home / "configuration", database
        )
        with pytest.raises(ConfigurationError, match=f"port {port}.*is taken"):
            orchestrator.serve(port, pytest.fail)
    assert processes_of(home) == []


def test_the_ui_is_served_until_interrupted(home: Path) -> None:
    [port] = free_ports(1)
    urls: list[str] = []

    def interrupt(url: str) -> None:
        urls.append(url)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        orchestrator_of(home).serve(port, interrupt)
    assert urls == [f"http://127.0.0.1:{port}"]
    assert processes_of(home) == []


def test_a_read_only_ui_shows_and_starts_nothing(home: Path) -> None:
    [port] = free_ports(1)
    seen: list[object] = []

    def look(url: str) -> None:
        seen.append(ask(url, "{ permissions { permission value } }"))
        ask(url, "{ version }", Host="localhost:3000")
        for host in ("rebound.example", "rebound.example:80", "127.0.0.1.rebound.example"):
            with pytest.raises(urllib.error.HTTPError, match="400"):
                ask(url, "{ version }", Host=host)
        seen.extend("dagster._daemon" in arguments_of(process) for process in processes_of(home))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        orchestrator_of(home).serve(port, look, read_only=True)
    permissions, *daemons = seen
    assert isinstance(permissions, dict)
    assert {p["permission"] for p in permissions["permissions"] if p["value"]} == set()
    assert daemons
    assert not any(daemons)


def test_a_run_that_nobody_submitted_is_not_found(home: Path) -> None:
    orchestrator = orchestrator_of(home)
    orchestrator.submit("says")
    with pytest.raises(NotFound):
        orchestrator.outcome("no-such-run")


def test_a_lock_has_one_holder_who_is_named(tmp_path: Path) -> None:
    first, second = HomeLock(tmp_path / "lock"), HomeLock(tmp_path / "lock")
    assert first.try_acquire()
    assert first.try_acquire()
    assert not second.try_acquire()
    assert second.holder() == os.getpid()
    first.release()
    assert second.try_acquire()
    second.release()


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["-m", "dagster._daemon", "run", "-w", "{}/workspace.yaml"], True),
        (["-m", "kbq_assets.defs.instance.webserver", "-w", "{}/workspace.yaml"], True),
        (["-m", "dagster", "api", "grpc", '{{"base_dir": "{}"}}'], True),
        (["-m", "dagster", "api", "grpc", "{}-of-another"], False),
        (["-m", "http.server", "{}/workspace.yaml"], False),
        (["dagster", "{}/workspace.yaml"], False),
    ],
)
def test_processes_of_a_home_are_known_by_their_command_line(
    tmp_path: Path, arguments: list[str], found: bool
) -> None:
    folder = tmp_path / "dagster"
    filled = [argument.format(folder) for argument in arguments]
    with sleeping(*filled) as pid:
        assert (pid in [p.pid for p in processes_of(tmp_path)]) == found


@contextlib.contextmanager
def sleeping(*arguments: str, **environ: str) -> Iterator[int]:
    """The id of a process that sleeps, once it shows its arguments: while a program begins it has none."""
    command = [sys.executable, "-c", "import time; time.sleep(3600)", *arguments]
    with subprocess.Popen(command, env={**os.environ, **environ}) as process:
        try:
            wait_for(lambda: arguments_of(psutil.Process(process.pid)) == command)
            yield process.pid
        finally:
            process.kill()


@pytest.mark.parametrize(("place", "found"), [("dagster", True), ("another", False)])
def test_a_run_worker_is_known_by_its_environment(tmp_path: Path, place: str, found: bool) -> None:
    with sleeping("--multiprocessing-fork", DAGSTER_HOME=str(tmp_path / place)) as pid:
        assert (pid in [p.pid for p in processes_of(tmp_path)]) == found


def test_a_stray_that_is_just_starting_another_leaves_none(tmp_path: Path) -> None:
    named = ["-m", "dagster", f"{tmp_path / 'dagster'}/workspace.yaml"]
    another = [sys.executable, "-c", "import time; time.sleep(3600)", *named]
    code = (
        "import signal, subprocess, sys, time\n"
        f"signal.signal(signal.SIGTERM, lambda *_: sys.exit(bool(subprocess.Popen({another!r}).poll())))\n"
        "print('ready', flush=True)\n"
        "time.sleep(3600)\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", code, *named]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as stray:
        assert stray.stdout is not None
        assert stray.stdout.readline() == "ready\n"
        Processes(tmp_path / "dagster", tmp_path / "logs", {}).stop_strays()
    assert stray.returncode == 0
    assert processes_of(tmp_path) == []


def test_a_process_lives_until_it_has_ended_and_no_other_takes_its_id() -> None:
    with sleeping() as pid:
        now = time.time()
        assert is_alive(pid, now)
        assert not is_alive(pid, now - 3600), "one that began later is another"
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not is_alive(pid, now))
    assert not is_alive(pid, now)


def test_a_large_log_is_begun_anew_by_those_who_write_it(tmp_path: Path) -> None:
    log = tmp_path / "daemon.log"
    with log.open("ab", buffering=0) as writer:
        writer.write(b"old")
        rotate(log, size=3)
        assert not log.with_name("daemon.log.1").exists()
        writer.write(b"er")
        rotate(log, size=3)
        writer.write(b"new")
    assert log.read_bytes() == b"new"
    assert log.with_name("daemon.log.1").read_bytes() == b"older"
