"""Batches of files as `kbq check`, `kbq status`, notices and metrics show them."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING

from kbq_assets.core.errors import Defect, TransientError
from kbq_assets.core.filebatches.planning import BatchState
from kbq_assets.core.observation.arrivals import Arrivals, PrefixArrivals
from kbq_assets.extras.filebatches.open import open_file_batches
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.pipelines.filebatches.runner import NEEDS_PERSON, FileBatches, FilesReport, PrefixReport

if TYPE_CHECKING:
    from kbq_assets.adapters.google.clients import GoogleClients

#: The subject of problems that belong to no table prefix.
_SOURCE = "KBQ_FILES"


def arrivals(deployment: Deployment, clients: GoogleClients | None = None) -> Callable[[], Arrivals]:
    """Reads the batches of files of a deployment, with Google's ``clients`` if given."""
    return arrivals_reader(lambda: open_file_batches(deployment, clients))


def arrivals_reader(open_batches: Callable[[], FileBatches]) -> Callable[[], Arrivals]:
    """Reads the status of all table prefixes. It never raises: an error is a problem or, if it may pass, unknown."""
    opened = functools.cache(open_batches)

    def read() -> Arrivals:
        try:
            return arrivals_of(opened().status())
        except TransientError as error:
            return Arrivals(unknown=error.message)
        except Exception as error:
            found = Defect.of(error)
            return Arrivals(
                (PrefixArrivals(_SOURCE, parked=1, problems=(found.message,), commands=(found.next_step,)),)
            )

    return read


def arrivals_of(report: FilesReport) -> Arrivals:
    """The table prefixes of a report. Batches without a table are one entry, however many there are."""
    found = [_of_prefix(each) for each in report.tables]
    if report.homeless:
        lines = tuple(f"{path or 'the root'}: {why}" for path, why in report.homeless.items())
        found.append(
            PrefixArrivals(_SOURCE, parked=len(lines), problems=lines, commands=("kbq files status",))
        )
    return Arrivals(tuple(found))


def commands_of(report: PrefixReport) -> tuple[str, ...]:
    """The two ways on from the first batch that waits for a person; none if none waits."""
    if not report.stopped:
        return ()
    batch = f"{shlex.quote(report.prefix)} --batch {shlex.quote(report.stopped[0].path)}"
    return f"kbq files retry {batch}", f"kbq files skip {batch} --reason TEXT"


def _of_prefix(report: PrefixReport) -> PrefixArrivals:
    stopped = report.stopped
    waiting = [each for each in report.batches if each.state not in NEEDS_PERSON]
    failed = sum(each.state is BatchState.FAILED for each in stopped)
    lines = [report.error] if report.error else []
    lines += [f"{each.path} {each.state}: {each.why}" for each in stopped]
    return PrefixArrivals(
        report.prefix,
        failed=failed,
        parked=len(stopped) - failed + bool(report.error),
        waiting=len(waiting),
        oldest_ms=min((each.uploaded_ms for each in waiting if each.uploaded_ms), default=0),
        problems=tuple(lines),
        commands=commands_of(report)
        or ((f"kbq files status {shlex.quote(report.prefix)}",) if lines else ()),
    )
