"""The watches of state, broker and warehouse, each with its own thread, and the metrics from their readings.

Requests use the last readings and never call a dependency.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any, Final, Generic, TypeVar

from kbq_assets.core.errors import KbqError, Unavailable
from kbq_assets.core.extraction.planning import ExtractionPlan
from kbq_assets.core.extraction.stops import PartitionStop
from kbq_assets.core.loading.batches import LoadLimits
from kbq_assets.core.observation.arrivals import Arrivals
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.waits import park_commands
from kbq_assets.extras.metrics.express_metrics import kbe_families
from kbq_assets.extras.metrics.families import GAUGE, Family, Sample, labelled
from kbq_assets.extras.metrics.kbq_metrics import Measured, arrival_families, kbq_families
from kbq_assets.extras.metrics.observe import (
    BrokerReading,
    FileCount,
    StateReading,
    plan_of,
    read_broker,
    read_state,
)
from kbq_assets.pipelines.backup.status import BackupsStatus, read_backups
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.pipelines.loading.load import plan_of_view
from kbq_assets.pipelines.observation.documents import status_json
from kbq_assets.pipelines.observation.status import Status, status_of, stored_stops
from kbq_assets.ports.clock import Clock

T = TypeVar("T")
_LOGGER: Final = logging.getLogger("kbq.service")
#: While a poll takes longer than this, it counts as failed.
_PATIENCE_SECONDS: Final = 60.0
#: The pause after a slow poll, as a multiple of its duration, so polls take at most a tenth of the time.
_PAUSES: Final = 10
#: Seconds between polls of the warehouse. They only check whether it answers.
_WAREHOUSE_SECONDS: Final = 60.0
#: A job that does not exist. Looking it up is free.
_NO_JOB: Final = "kbq-is-it-there"
#: A lake stores jobs with their tables. Without a table, it would search all of them.
_NO_TABLE: Final = TableReference("kbq", "no_table")
DISTRIBUTION: Final = "kbq-assets"


@dataclass(frozen=True)
class Shown:
    """State and broker, combined."""

    state: StateReading
    status: Status
    families: tuple[Family, ...]


class Watches:
    """The watches of a deployment, and their readings."""

    def __init__(self, deployment: Deployment, arrivals: Callable[[], Arrivals] = Arrivals) -> None:
        self._deployment = deployment
        self._arrivals = arrivals
        clock, seconds = deployment.clock, float(deployment.settings.extras.service.look_seconds)
        self.broker = Watch("broker", self._read_broker, clock, seconds)
        self.warehouse = Watch("warehouse", self._read_warehouse, clock, max(seconds, _WAREHOUSE_SECONDS))
        self.backups = Watch("backups", self._read_backups, clock, seconds)
        self.files = Watch("files", self._read_arrivals, clock, seconds)
        self.store = Watch("store", self._read_store, clock, seconds)
        self._files: FileCount | None = None

    @property
    def watches(self) -> tuple[Watch[Any], ...]:
        """The watches, in the best order for one poll of each."""
        has_files = bool(self._deployment.settings.extras.files.location)
        files = (self.files,) if has_files else ()
        return (self.broker, self.warehouse, self.backups, *files, self.store)

    @property
    def _dependencies(self) -> Iterator[Watch[Any]]:
        """The watches to show. Backups are shown only if there are any."""
        for watch in self.watches:
            last = self.backups.last
            if watch is not self.backups or last.is_up is False or (last.value and last.value.topics):
                yield watch

    def poll(self) -> None:
        """Poll everything once, now."""
        for watch in self.watches:
            watch.poll()

    def start(self) -> None:
        for watch in self.watches:
            watch.start()

    def stop(self) -> None:
        for watch in self.watches:
            watch.stop()

    def families(self) -> list[Family]:
        """All metrics from the last readings."""
        shown = self.store.last.value
        arrivals = self.files.last.value or Arrivals()
        of_files = arrival_families(arrivals, self._deployment.clock.now_ms())
        return [*self._own(), *of_files, *(shown.families if shown else ())]

    def document(self) -> dict[str, object]:
        """The document of `kbq status`, with the parts that could be read and the age of the readings."""
        shown, broker = self.store.last.value, self.broker.last
        unknown = "" if broker.value is not None else broker.error or "not read yet"
        return {
            "problems": list(self._problems(shown)),
            "dependencies": {watch.name: _reading_json(watch.last) for watch in self._dependencies},
            "lag_known": shown is not None and not unknown,
            "status": status_json(shown.status, unknown) if shown else None,
        }

    def _read_broker(self) -> BrokerReading:
        deployment, shown = self._deployment, self.store.last.value
        positions = shown.state.positions if shown else {}
        return read_broker(
            deployment.offsets, deployment.sources.read(), positions, deployment.clock.now_ms()
        )

    def _read_warehouse(self) -> LoadLimits:
        """The warehouse's limits."""
        warehouse = self._deployment.warehouse
        warehouse.get_job(_NO_JOB, warehouse.project, warehouse.location, _NO_TABLE)
        return warehouse.limits

    def _read_backups(self) -> BackupsStatus:
        deployment = self._deployment
        return read_backups(deployment.sources.read(), deployment.offsets, deployment.backup_area)

    def _read_arrivals(self) -> Arrivals:
        found = self._arrivals()
        if found.unknown:
            raise Unavailable(found.unknown, next_step="kbq files status")
        return found

    def _read_store(self) -> Shown:
        deployment, broker = self._deployment, self.broker.last.value
        if self._files is None:
            self._files = FileCount(deployment.load_store, deployment.clock)
        state = read_state(deployment.load_cache, deployment.blocks, self._files.now())
        planned = (
            plan_of(state, broker, deployment.sources.read())
            if broker
            else ExtractionPlan(stops=stored_stops(state.view, deployment.sources.read()))
        )
        status = status_of(state.view, broker.offsets if broker else {}, planned, deployment.sources.restarts)
        status = replace(
            status,
            backups=self.backups.last.value or BackupsStatus(),
            arrivals=self.files.last.value or Arrivals(),
        )
        by_partition = deployment.settings.extras.service.lag_label == "partition"
        # Until the warehouse has answered once, its limits are unknown, and no load waits for them.
        limits = self.warehouse.last.value or LoadLimits(jobs_per_day=0, changes_per_day=0)
        sources = deployment.sources
        loads = plan_of_view(state.view, limits, state.now_ms, sources.restarts, sources.select)
        measured = Measured(state, status, loads, broker, limits.jobs_per_day, by_partition)
        return Shown(state, status, (*kbe_families(state), *kbq_families(measured)))

    def _own(self) -> Iterator[Family]:
        readings = {watch.name: watch.last for watch in self._dependencies}
        up = {name: float(r.is_up) for name, r in readings.items() if r.is_up is not None}
        ages = {name: r.age_seconds for name, r in readings.items() if r.age_seconds is not None}
        yield Family(
            "kbq_build_info",
            GAUGE,
            "The running version, as a label",
            (Sample(1, {"version": version(DISTRIBUTION)}),),
        )
        yield labelled("kbq_up", GAUGE, "1 if the dependency answered the last poll", "dependency", up)
        text = "Age of the dependency's values in seconds"
        yield labelled("kbq_reading_age_seconds", GAUGE, text, "dependency", ages)

    def _problems(self, shown: Shown | None) -> Iterator[dict[str, object]]:
        for watch in self.watches:
            if watch.last.is_up is False:
                yield _problem(watch.name, watch.last.error, ())
        if shown is None:
            if self.store.last.is_up is None:
                yield _problem(self.store.name, "not read yet: problems are unknown", ())
            return
        yield from map(_stopped, shown.status.stops)
        for prefix in shown.status.arrivals.problems:
            yield _problem(f"batches of files of {prefix.prefix}", prefix.message, prefix.commands)
        for each in map(_stopped, shown.status.backups.stops):
            yield {**each, "what": f"backup of {each['what']}"}
        for table in shown.status.tables:
            reason = table.message.partition(":")[0]
            is_parked = table.state == "parked"
            commands = park_commands(table.table, reason, table.batches.failed) if is_parked else ()
            if table.message:
                yield _problem(str(table.table), table.message, commands)


def _stopped(stop: PartitionStop) -> dict[str, object]:
    topic, partition = stop.topic_partition
    return _problem(topic if partition < 0 else str(stop.topic_partition), stop.message, stop.commands)


def _problem(what: str, message: str, commands: Sequence[str]) -> dict[str, object]:
    return {"what": what, "message": message, "commands": list(commands)}


def _reading_json(reading: LastReading[Any]) -> dict[str, object]:
    age = reading.age_seconds
    return {
        "up": reading.is_up,
        "age_seconds": None if age is None else round(age, 1),
        "error": reading.error,
    }


@dataclass(frozen=True)
class LastReading(Generic[T]):
    """The last good value and its age, whether the last poll succeeded, and its error.

    Before the first poll, ``is_up`` is None."""

    value: T | None
    age_seconds: float | None
    is_up: bool | None
    error: str = ""


class Watch(Generic[T]):
    """A dependency that is polled. `poll` polls once, in one thread at a time; `start` polls repeatedly in a thread."""

    def __init__(self, name: str, read: Callable[[], T], clock: Clock, seconds: float) -> None:
        self.name = name
        self._read = read
        self._clock = clock
        self._seconds = seconds
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name=f"kbq-{name}", daemon=True)
        self._one_at_a_time = threading.Lock()
        self._value: T | None = None
        self._good_at: float | None = None
        self._is_up: bool | None = None
        self._error = ""
        self._begun: float | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_seconds: float = 5.0) -> None:
        """End the thread. Waits for a running poll, and abandons it if it takes too long."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)

    def poll(self) -> None:
        """Poll once, now."""
        with self._one_at_a_time:
            self._begun = self._clock.monotonic()
            try:
                self._value = self._read()
            except Exception as error:
                self._fail(error)
            else:
                self._good_at, self._is_up, self._error = self._clock.monotonic(), True, ""
            finally:
                self._begun = None

    @property
    def last(self) -> LastReading[T]:
        """The last reading."""
        now, begun, good_at = self._clock.monotonic(), self._begun, self._good_at
        age = None if good_at is None else now - good_at
        if begun is not None and now - begun > _PATIENCE_SECONDS:
            return LastReading(self._value, age, False, f"no answer for {now - begun:.0f} s")
        return LastReading(self._value, age, self._is_up, self._error)

    def _go_on(self) -> None:
        pause = 0.0
        while not self._end.wait(pause):
            begun = self._clock.monotonic()
            self.poll()
            pause = max(self._seconds, _PAUSES * (self._clock.monotonic() - begun))

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, KbqError):
            _LOGGER.error("polling the %s failed", self.name, exc_info=error)
        # The text of a KbqError includes the next step, so /status shows it.
        self._is_up, self._error = False, f"{type(error).__name__}: {error}"
