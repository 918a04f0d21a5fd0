"""Dagster as an Orchestrator: its home below KBQ's home, its queue, daemon and UI."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

import dagster as dg
from dagster._core.definitions.repository_definition import SINGLETON_REPOSITORY_NAME
from dagster._core.remote_origin import RemoteJobOrigin, RemoteRepositoryOrigin
from dagster._core.run_coordinator import SubmitRunContext
from dagster._core.workspace.load import location_origins_from_yaml_paths

from kbq_assets.adapters.processes.daemons import last_lines, replace_text
from kbq_assets.adapters.processes.loopback_ports import can_listen, holder_of, listener_of
from kbq_assets.adapters.processes.unix_sockets import require_sockets
from kbq_assets.core.errors import ConfigurationError, NotFound, Unavailable
from kbq_assets.defs.instance.database import DagsterDatabase
from kbq_assets.defs.instance.processes import GRACE_SECONDS, HomeLock, Processes, is_alive
from kbq_assets.ports.orchestrator import RunLine, RunOutcome

LOOPBACK = "127.0.0.1"
#: Modules of the daemon and the UI.
_DAEMON = "dagster._daemon"
_UI = "kbq_assets.defs.instance.webserver"
_POLL_SECONDS = 0.5
#: Seconds to wait for runs before their daemon is stopped, and for a UI to answer.
DRAIN_SECONDS = 600.0
READY_SECONDS = 180.0

#: Dagster's tags on a failed run: whether it will be retried, and the id of the retry.
_WILL_RETRY_TAG = "dagster/will_retry"
_RETRIED_AS_TAG = "dagster/auto_retry_run_id"
#: Seconds to wait for an announced retry. The daemon polls for failed runs every few seconds.
RETRY_SECONDS = 120.0
#: Seconds to wait for Dagster's decision about a retry. It comes after the run's status, later on a busy machine.
MARK_SECONDS = 30.0

#: Seconds between polls for runs whose worker is gone. It must be gone in two polls, because Dagster itself reports
#: most of these runs.
WATCH_SECONDS = 5.0

_LIVE = (dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING)


class DagsterOrchestrator:
    """An Orchestrator on the Dagster home ``<home>/dagster``.

    Its processes inherit ``environ``, and their workspace loads ``definitions``. The folder ``configuration`` has
    `dagster.yaml`, its variant for Postgres, and `workspace.yaml`. ``database`` stores runs and events.
    """

    def __init__(
        self,
        home: Path,
        environ: Mapping[str, str],
        definitions: Callable[[], dg.Definitions],
        configuration: Traversable | None = None,
        database: DagsterDatabase | None = None,
    ) -> None:
        self._definitions = definitions
        self._database = database or DagsterDatabase()
        self._configuration = configuration or files("kbq_assets.defs").joinpath("home")
        self._folder = (home / "dagster").resolve()
        self._processes = Processes(self._folder, home / "logs", {**environ, **self._database.environ()})
        self._lock = HomeLock(home / "run" / "dagster.lock")
        self._missed: frozenset[str] = frozenset()
        self._next_watch = 0.0

    @property
    def _workspace(self) -> str:
        return str(self._folder / "workspace.yaml")

    def submit(self, job: str) -> str:
        # This is `dagster job launch` without starting and stopping a code server (ADR 14): the daemon needs only the
        # job's origin to find it.
        self._prepare()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dg.BetaWarning)  # Dagster warns about its own arguments
            definition = self._definitions().resolve_job_def(job)
        [location] = location_origins_from_yaml_paths([self._workspace])
        origin = RemoteJobOrigin(RemoteRepositoryOrigin(location, SINGLETON_REPOSITORY_NAME), job)
        with self._instance() as instance:
            run = instance.create_run_for_job(definition, remote_job_origin=origin, tags=definition.run_tags)
            instance.run_coordinator.submit_run(SubmitRunContext(run, workspace=None))  # type: ignore[arg-type]
            return run.run_id

    @contextmanager
    def working(self) -> Iterator[None]:
        """Keep the daemon running for the block."""
        self._prepare()
        try:
            self._tend()
            yield
            if self._lock.is_held:
                self._drain()
        finally:
            self._stop()

    def follow(self, run_id: str) -> Iterator[RunLine]:
        """The log of a run as it grows. If its worker dies, the log of its retry follows."""
        with self._instance() as instance:
            following: str | None = run_id
            while following is not None:
                yield from self._follow_attempt(instance, following)
                following = self._next_attempt(instance, following)

    def _follow_attempt(self, instance: dg.DagsterInstance, run_id: str) -> Iterator[RunLine]:
        cursor: str | None = None
        while True:
            # Read the status before the log: a finished run has written its whole log.
            finished = _run(instance, run_id).is_finished
            records = instance.get_records_for_run(run_id, cursor=cursor, limit=500)
            yield from (_line(r.event_log_entry) for r in records.records if _is_shown(r.event_log_entry))
            cursor = records.cursor
            if finished and not records.has_more:
                return
            self._tend()
            time.sleep(_POLL_SECONDS)

    def _next_attempt(self, instance: dg.DagsterInstance, run_id: str) -> str | None:
        """The retry that the daemon starts for a run whose worker died; None if there is none."""
        begun = time.monotonic()
        run = _run(instance, run_id)
        while run.is_failure_or_canceled and _RETRIED_AS_TAG not in run.tags:
            patience = {"true": RETRY_SECONDS, "false": 0.0}.get(
                run.tags.get(_WILL_RETRY_TAG, ""), MARK_SECONDS
            )
            if time.monotonic() - begun >= patience or run.status == dg.DagsterRunStatus.CANCELED:
                return None
            self._tend()
            time.sleep(_POLL_SECONDS)
            run = _run(instance, run_id)
        return run.tags.get(_RETRIED_AS_TAG)

    def outcome(self, run_id: str) -> RunOutcome:
        with self._instance() as instance:
            run = _run(instance, run_id)
            while _RETRIED_AS_TAG in run.tags:
                run = _run(instance, run.tags[_RETRIED_AS_TAG])
            [record] = instance.get_run_records(dg.RunsFilter(run_ids=[run.run_id]))
            now = time.time()
            seconds = (record.end_time or now) - (record.start_time or record.end_time or now)
            return RunOutcome(run.run_id, run.is_success, run.status.value, seconds)

    def serve(self, port: int, on_ready: Callable[[str], None], *, read_only: bool = False) -> None:
        if not can_listen(port):
            raise _taken(port)
        self._prepare()
        try:
            self._wait_until_served(port, read_only)
            on_ready(f"http://{LOOPBACK}:{port}")
            while True:
                self._tend_ui(port, read_only)
                time.sleep(_POLL_SECONDS)
        finally:
            self._stop()

    def stop(self) -> None:
        """End the command that holds the home's lock, and everything that it leaves behind."""
        deadline = time.monotonic() + 6 * GRACE_SECONDS
        while not self._lock.try_acquire():
            holder = self._lock.holder()
            if time.monotonic() > deadline:
                raise Unavailable(f"process {holder} does not end", next_step=f"kill -9 {holder}")
            if holder:  # 0 would be our own process group
                with contextlib.suppress(ProcessLookupError):
                    os.kill(holder, signal.SIGTERM)
            time.sleep(_POLL_SECONDS)
        self._stop()

    def _prepare(self) -> None:
        """Write the shipped configuration into the home. Dagster's processes speak over sockets."""
        require_sockets()
        for name, source in (
            ("dagster.yaml", self._database.configuration),
            ("workspace.yaml", "workspace.yaml"),
        ):
            text = self._configuration.joinpath(source).read_text(encoding="utf-8")
            target = self._folder / name
            if not target.is_file() or target.read_text(encoding="utf-8") != text:
                replace_text(target, text)

    @contextmanager
    def _instance(self) -> Iterator[dg.DagsterInstance]:
        with self._database.open(self._folder) as instance:
            yield instance

    def _clear(self) -> None:
        """Stop the processes of a killed command, and end the runs that died with them."""
        self._processes.stop_strays()
        self._end_dead_runs()

    def _end_dead_runs(self) -> None:
        """Cancel runs in progress, because no process of this home is alive. Queued runs stay queued."""
        if not (self._folder / "dagster.yaml").is_file():
            return  # nothing was ever started here
        with self._instance() as instance:
            for run in instance.get_runs(dg.RunsFilter(statuses=list(_LIVE))):
                instance.report_run_canceled(run, "its processes were stopped; the next run continues there")

    def _end_orphans(self) -> None:
        """Fail runs whose worker is gone. Usually their code server does that, but it may have died first."""
        if time.monotonic() < self._next_watch:
            return
        self._next_watch = time.monotonic() + WATCH_SECONDS
        with self._instance() as instance:
            runs = instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED]))
            gone = {run.run_id: run for run in runs if _is_worker_gone(instance, run)}
            for run_id in gone.keys() & self._missed:
                instance.report_run_failed(
                    gone[run_id], "its worker is gone, and no other process reported it"
                )
        self._missed = frozenset(gone.keys() - self._missed)

    def _tend(self) -> None:
        """Restart a dead daemon, unless another command does."""
        if not self._lock.is_held and self._lock.try_acquire():
            self._clear()
        if self._lock.is_held:
            self._processes.ensure(_DAEMON, "run", "-w", self._workspace)
            with contextlib.suppress(Unavailable):  # keep running if the database does not answer
                self._end_orphans()

    def _tend_ui(self, port: int, read_only: bool) -> None:
        """Restart a dead UI and, unless it is read-only, a dead daemon."""
        if not read_only:
            self._tend()
        options = ["--read-only"] if read_only else []
        self._processes.ensure(_UI, "-h", LOOPBACK, "-p", str(port), "-w", self._workspace, *options)

    def _wait_until_served(self, port: int, read_only: bool) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while not _answers(port):
            if time.monotonic() > deadline:
                log = self._processes.log(_UI)
                raise Unavailable(
                    f"the UI does not answer after {READY_SECONDS:.0f} s; see {log}:\n{last_lines(log)}",
                    next_step="fix the cause and run kbq ui again",
                )
            self._tend_ui(port, read_only)
            time.sleep(_POLL_SECONDS)
        if (pid := listener_of(port)) is not None and not self._processes.has(pid):
            raise _taken(port)  # by another `kbq ui`, for example, that was started at the same moment

    def _drain(self) -> None:
        """Wait for the runs that the daemon has started. Queued runs stay queued."""
        deadline = time.monotonic() + DRAIN_SECONDS
        with self._instance() as instance:
            while instance.get_runs(dg.RunsFilter(statuses=list(_LIVE)), limit=1):
                if time.monotonic() > deadline:
                    return
                time.sleep(_POLL_SECONDS)

    def _stop(self) -> None:
        """Stop our processes. If we hold the home's lock, also stop all others of the home."""
        self._processes.stop()
        if self._lock.is_held:
            self._clear()
            self._lock.release()


def _run(instance: dg.DagsterInstance, run_id: str) -> dg.DagsterRun:
    run = instance.get_run_by_id(run_id)
    if run is None:
        raise NotFound(f"Dagster has no run {run_id}", next_step="see the runs page of `kbq ui`")
    return run


def _is_worker_gone(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Whether the process that reported its work on a run is gone. Before this report, a run has no worker."""
    records = instance.get_records_for_run(run.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT).records
    for entry in (record.event_log_entry for record in records):
        event = entry.dagster_event
        pid = event.engine_event_data.metadata.get("pid") if event is not None else None
        if pid is not None and str(pid.value).isdecimal():
            return not is_alive(int(str(pid.value)), entry.timestamp)
    return False


def _is_shown(entry: dg.EventLogEntry) -> bool:
    """Whether a log entry is a line of the run itself, or a failure."""
    return not entry.is_dagster_event or _is_failure(entry)


def _is_failure(entry: dg.EventLogEntry) -> bool:
    event = entry.dagster_event
    return event is not None and (event.is_failure or event.is_step_failure)


def _line(entry: dg.EventLogEntry) -> RunLine:
    event = entry.dagster_event
    if event is None:
        return RunLine(logging.getLevelName(int(entry.level)), entry.user_message)
    data = event.step_failure_data if event.is_step_failure else None
    cause = f": {data.error.to_string()}" if data is not None and data.error is not None else ""
    return RunLine("ERROR", f"{event.message or event.event_type_value}{cause}")


def _taken(port: int) -> ConfigurationError:
    return ConfigurationError(
        f"port {port}, wanted for the UI, is taken by {holder_of(port)}",
        next_step="end that program, or choose another: kbq ui --port PORT",
    )


def _answers(port: int) -> bool:
    with closing(socket.socket()) as connection:
        connection.settimeout(1)
        return connection.connect_ex((LOOPBACK, port)) == 0
