"""Runs and decisions: `FileBatches` applies and shows pending batches, and records operators' decisions."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from types import MappingProxyType
from typing import Final

from kbq_assets.core.errors import (
    ConflictError,
    Defect,
    KbqError,
    NotFound,
    Refused,
    TransientError,
    UnknownOutcome,
)
from kbq_assets.core.filebatches import table_batches
from kbq_assets.core.filebatches.config import SourceDefaults, is_ordered
from kbq_assets.core.filebatches.planning import BatchState, PlannedBatch
from kbq_assets.core.filebatches.table_batches import FileDecision, FileTableState, SettledBatch
from kbq_assets.pipelines.filebatches.backlog_views import BacklogViews
from kbq_assets.pipelines.filebatches.ports import FilePorts
from kbq_assets.pipelines.filebatches.prefix_run import PrefixRun, PrefixStep
from kbq_assets.pipelines.filebatches.states import FileStates
from kbq_assets.pipelines.filebatches.view import FilesView, PrefixView, plan_prefix, read_files_view

#: States of batches that wait for an operator.
NEEDS_PERSON: Final = frozenset(
    {BatchState.FAILED, BatchState.BLOCKED, BatchState.REUPLOADED, BatchState.LATE}
)
#: Most successive views with only conflicts.
_MOST_CONFLICTS: Final = 5
_LOGGER: Final = logging.getLogger("kbq.files")


class _Came(Enum):
    """An event that requires another view."""

    PROGRESS = auto()
    CONFLICT = auto()  # another writer was faster, or an outcome is unknown


@dataclass(frozen=True)
class PrefixReport:
    """The result of a run or status for a table prefix: batches that are not applied, and those ``done`` in the run.
    ``error``: why it could not continue; ``transient``: whether the next run may."""

    prefix: str
    batches: Sequence[PlannedBatch] = ()
    done: tuple[SettledBatch, ...] = ()
    total: int = 0
    last: SettledBatch | None = None
    error: str = ""
    transient: bool = False
    note: str = ""

    @property
    def applied(self) -> int:
        return len(self.done)

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.done)

    @property
    def stopped(self) -> list[PlannedBatch]:
        """The batches that wait for an operator."""
        return [each for each in self.batches if each.state in NEEDS_PERSON]


@dataclass(frozen=True)
class FilesReport:
    """All table prefixes, and the batches whose table is unknown, with the reason."""

    tables: Sequence[PrefixReport]
    homeless: dict[str, str] = field(default_factory=dict)

    @property
    def needs_person(self) -> bool:
        """Whether anything waits for an operator."""
        return bool(self.homeless) or any(
            each.stopped or (each.error and not each.transient) for each in self.tables
        )

    @property
    def unfinished(self) -> bool:
        """Whether the next run has work that needs no operator."""
        going = (BatchState.READY, BatchState.IN_FLIGHT, BatchState.RETRIES)
        return any(each.transient or any(b.state in going for b in each.batches) for each in self.tables)


class FileBatches:
    """Applies batches of files."""

    def __init__(self, ports: FilePorts) -> None:
        self.ports = ports
        self.states = FileStates(ports.store, ports.area)
        self._views = BacklogViews(ports, self.states)

    def status(self, prefixes: Collection[str] = ()) -> FilesReport:
        """Pending batches, and the reasons why they wait. Changes nothing."""
        return self._report(read_files_view(self.ports, self.states), prefixes, {})

    def run(self, prefixes: Collection[str] = ()) -> FilesReport:
        """Apply the batches that can be applied. An error of one table prefix stops no other."""
        clock = self.ports.clock
        deadline = clock.monotonic() + self.ports.wait_seconds
        runs: dict[str, PrefixReport] = {}
        view, conflicts = read_files_view(self.ports, self.states), 0
        if self._views.decide(view):
            view = read_files_view(self.ports, self.states)
        while conflicts < _MOST_CONFLICTS:
            steps = self._run_view(view, prefixes, runs, deadline)
            conflicts = conflicts + 1 if steps == {_Came.CONFLICT} else 0
            if steps:
                view = read_files_view(self.ports, self.states)
            if not steps or clock.monotonic() >= deadline:
                break
        return self._report(view, prefixes, runs, self._views.show(view))

    def _run_view(
        self, view: FilesView, prefixes: Collection[str], runs: dict[str, PrefixReport], deadline: float
    ) -> set[_Came]:
        """Step through all table prefixes until none makes progress. Returns the events that require a new view."""
        clock, came = self.ports.clock, set[_Came]()
        active = {
            name: PrefixRun(self.ports, self.states, view, table)
            for name, table in view.tables.items()
            if not prefixes or name in prefixes
        }
        while active:
            steps = {name: self._step(name, run, runs, came) for name, run in active.items()}
            active = {name: run for name, run in active.items() if steps[name] is not PrefixStep.IDLE}
            if clock.monotonic() >= deadline:
                break
            if PrefixStep.PROGRESS in steps.values():
                came.add(_Came.PROGRESS)
            elif active:
                clock.sleep(self.ports.poll_seconds)
        return came

    def _step(self, name: str, run: PrefixRun, runs: dict[str, PrefixReport], came: set[_Came]) -> PrefixStep:
        count = len(run.done)
        error, transient, step = "", False, PrefixStep.IDLE
        try:
            step = run.step()
        except (ConflictError, UnknownOutcome) as found:
            came.add(_Came.CONFLICT)
            error, transient = str(found), True
        except TransientError as found:
            error, transient = str(found), True
        except Exception as found:
            error = str(Defect.of(found))
            if not isinstance(found, KbqError):
                _LOGGER.error("%s failed", name, exc_info=found)
        before = runs.get(name, PrefixReport(name))
        runs[name] = PrefixReport(
            name,
            done=(*before.done, *run.done[count:]),
            error=error,
            transient=transient,
        )
        return step

    def _report(
        self,
        view: FilesView,
        prefixes: Collection[str],
        runs: dict[str, PrefixReport],
        notes: Mapping[str, str] = MappingProxyType({}),
    ) -> FilesReport:
        chosen = [table for name, table in view.tables.items() if not prefixes or name in prefixes]
        tables = [
            dataclasses.replace(self._table(view, each, runs), note=notes.get(each.prefix, ""))
            for each in chosen
        ]
        return FilesReport(tables, dict(view.homeless))

    def _table(self, view: FilesView, table: PrefixView, runs: dict[str, PrefixReport]) -> PrefixReport:
        run = runs.get(table.prefix, PrefixReport(table.prefix))
        if table.error is not None:
            return PrefixReport(table.prefix, (), run.done, error=str(table.error))
        now = table.state.value if table.state else FileTableState(table.prefix, "")
        return PrefixReport(
            prefix=table.prefix,
            batches=plan_prefix(self.ports, view, table, now),
            done=run.done,
            total=now.rows,
            last=now.applied[-1] if now.applied else None,
            error=run.error,
            transient=run.transient,
        )

    # Decisions

    def retry(self, prefix: str, batch: str, reason: str, by: str) -> None:
        """Apply a failed or blocked batch after all. Raises NotFound, Refused."""
        planned = self._stopped(prefix, batch)
        entry = FileDecision(self.ports.store.now_ms(), "retry", batch, reason, by)
        self._decide(prefix, lambda now: table_batches.retry(now, batch, planned.generation, entry))

    def skip(self, prefix: str, batch: str, reason: str, by: str) -> None:
        """Continue without a batch. Raises NotFound, Refused."""
        planned = self._stopped(prefix, batch)
        entry = FileDecision(self.ports.store.now_ms(), "skip", batch, reason, by)
        self._decide(
            prefix,
            lambda now: table_batches.skip(now, batch, planned.generation, planned.ordered, entry),
        )

    def settled_from(self, prefix: str, first: str) -> dict[str, int]:
        """The settled batches of a table prefix from a path on that the source still has, with their generations.
        Raises NotFound, Unavailable."""
        view = read_files_view(self.ports, self.states)
        table = view.tables.get(prefix, PrefixView(prefix, None))
        if table.error is not None:
            raise table.error
        there = view.listing.batches
        found = {path: there[path].generation for path in sorted(table.applied) if path in there}
        chosen = {path: generation for path, generation in found.items() if path >= first}
        if not chosen:
            raise NotFound(
                f"{prefix} has no settled batch from {first} on that is still in the source",
                next_step=f"the last one is {max(found, default='none')}",
            )
        return chosen

    def settled_among(self, prefix: str, choose: Callable[[str], bool]) -> dict[str, int]:
        """The chosen settled batches, in the form of `settled_from`. Raises Refused if an ordered batch after the first
        one is not chosen, because later batches build on earlier ones. Raises NotFound, Unavailable."""
        found = self.settled_from(prefix, "")
        chosen = {path: generation for path, generation in found.items() if choose(path)}
        if not chosen:
            raise NotFound(f"{prefix} has none of these batches", next_step="see `kbq files status`")
        own = self.ports.settings
        listing = self.ports.source.listing()
        defaults = SourceDefaults(own.destination_regex, own.order_per_table)
        ordered = [path for path in found if is_ordered(path, listing, defaults)]
        first = min((path for path in ordered if path in chosen), default="")
        if left := [path for path in ordered if first and path > first and path not in chosen]:
            raise Refused(
                f"{left[0]} comes after {first} in the order of {prefix}, but is not chosen",
                next_step=f"choose all {len(ordered) - ordered.index(first)} batches from {first} on",
            )
        return chosen

    def again(self, prefix: str, batches: Mapping[str, int], reason: str, by: str) -> None:
        """Apply batches of `settled_from` again. Raises Refused."""
        entry = FileDecision(self.ports.store.now_ms(), "again", min(batches), reason, by)
        self._decide(prefix, lambda now: table_batches.again(now, batches, entry))

    def decisions(self, prefix: str) -> list[FileDecision]:
        """Operators' decisions about a table prefix, oldest first. Raises NotFound."""
        return self.states.decisions(self.states.read(prefix).value)

    def _decide(self, prefix: str, change: table_batches.Change) -> None:
        self.states.register(prefix, self.ports.new_uuid())
        self.states.change(prefix, change)

    def _stopped(self, prefix: str, batch: str) -> PlannedBatch:
        [report] = self.status([prefix]).tables or [PrefixReport(prefix)]
        found = next((each for each in report.batches if each.path == batch), None)
        if found is None:
            stopped = ", ".join(each.path for each in report.stopped) or "no batch"
            raise NotFound(
                f"{prefix} has no unapplied batch {batch}",
                next_step=f"{stopped} waits for an operator",
            )
        return found
