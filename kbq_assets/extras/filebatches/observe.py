"""Batches of files for `kbq check`, `kbq status`, notices and metrics."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kbq_assets.core.errors import Defect, TransientError
from kbq_assets.core.filebatches.planning import BatchState, PlannedBatch
from kbq_assets.core.observation.arrivals import Arrivals, PrefixArrivals
from kbq_assets.extras.filebatches.open import open_file_batches
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.pipelines.filebatches.runner import NEEDS_PERSON, FileBatches, FilesReport, PrefixReport

if TYPE_CHECKING:
    from kbq_assets.adapters.google.clients import GoogleClients

#: The subject of problems without a table prefix.
_SOURCE = "KBQ_FILES"


def arrivals(deployment: Deployment, clients: GoogleClients | None = None) -> Callable[[], Arrivals]:
    """A function that reads a deployment's batches of files, with Google's ``clients`` if given."""
    return arrivals_reader(lambda: open_file_batches(deployment, clients))


def arrivals_reader(open_batches: Callable[[], FileBatches]) -> Callable[[], Arrivals]:
    """A function that reads the status of all table prefixes. It never raises: a permanent error is a problem, and with
    a temporary one, the status is unknown."""
    opened = functools.cache(open_batches)

    def read() -> Arrivals:
        try:
            batches = opened()
            now_ms = batches.ports.store.now_ms()
            return arrivals_of(batches.status(), now_ms, batches.ports.settings.max_wait_seconds)
        except TransientError as error:
            return Arrivals(unknown=error.message)
        except Exception as error:
            found = Defect.of(error)
            return Arrivals(
                (PrefixArrivals(_SOURCE, parked=1, problems=(found.message,), commands=(found.next_step,)),)
            )

    return read


def arrivals_of(report: FilesReport, now_ms: int, patience: int) -> Arrivals:
    """The table prefixes of a report at ``now_ms``. A batch may wait ``patience`` seconds after its upload, or forever
    if that is 0. All batches without a table are one entry."""
    found = [_of_prefix(each, now_ms, patience) for each in report.tables]
    if report.homeless:
        lines = tuple(f"{path or 'the root'}: {why}" for path, why in report.homeless.items())
        found.append(
            PrefixArrivals(_SOURCE, parked=len(lines), problems=lines, commands=("kbq files status",))
        )
    return Arrivals(tuple(found))


def commands_of(report: PrefixReport) -> tuple[str, ...]:
    """The two commands for the first batch that waits for an operator; empty if none waits."""
    if not report.stopped:
        return ()
    batch = f"{shlex.quote(report.prefix)} --batch {shlex.quote(report.stopped[0].path)}"
    return f"kbq files retry {batch}", f"kbq files skip {batch} --reason TEXT"


def _overdue(waiting: Sequence[PlannedBatch], now_ms: int, patience: int) -> list[str]:
    """A message about the first batch that waits for an operator's validation, or that has waited too long."""
    for each in waiting:
        if each.by_person:
            return [f"{each.path} waits: {each.why}"]
        if patience and 0 < each.uploaded_ms < now_ms - patience * 1000:
            why = each.why or "no run of kbq files applied it"
            return [f"{each.path} has waited longer than {patience} seconds after its upload: {why}"]
    return []


def _of_prefix(report: PrefixReport, now_ms: int, patience: int) -> PrefixArrivals:
    stopped = report.stopped
    waiting = [each for each in report.batches if each.state not in NEEDS_PERSON]
    failed = sum(each.state is BatchState.FAILED for each in stopped)
    lines = [report.error] if report.error else []
    lines += [f"{each.path} {each.state}: {each.why}" for each in stopped]
    lines = lines or _overdue(waiting, now_ms, patience)
    return PrefixArrivals(
        report.prefix,
        failed=failed,
        parked=len(stopped) - failed + bool(report.error),
        waiting=len(waiting),
        oldest_ms=min((each.uploaded_ms for each in waiting if each.uploaded_ms), default=0),
        problems=tuple(lines),
        commands=commands_of(report)
        or ((f"kbq files status {shlex.quote(report.prefix)}",) if lines else ()),
        causes=tuple(f"{each.path} {each.state}" for each in stopped)
        or tuple(each.path for each in waiting if each.by_person)[:1],
    )
