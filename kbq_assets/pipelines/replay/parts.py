"""The job of a replacement in the warehouse: one transaction over all tables, or one commit per table. Then the first
commit decides (PROTOCOL R12)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kbq_assets.core.errors import JobAlreadyExists, JobFailed
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.ports.replay import ReplaceJob
from kbq_assets.ports.warehouse import JobStatus, Warehouse


@dataclass(frozen=True)
class ReplaceParts:
    """The parts of one job, in their order."""

    warehouse: Warehouse
    parts: tuple[ReplaceJob, ...]

    @property
    def is_done(self) -> bool:
        """Whether all rows are replaced. Raises JobFailed."""
        return self.replaced() == len(self.parts)

    def replaced(self) -> int:
        """The number of parts that are done. If it is not 0, the job cannot be given up. Raises JobFailed if the job
        ended and replaced nothing."""
        for number, part in enumerate(self.parts):
            found = self._status(part)
            if found is None or found.state != "DONE":
                return number
            if not _is_own(found, part):
                why = found.error.message if found.error else "its id was given up"
                raise JobFailed(f"job {part.job_id} replaced nothing: {why}", next_step="kbq replay list")
        return len(self.parts)

    def give_up(self) -> bool:
        """Burn the job's id: first in the first part, which decides, then in the others, so that their clean-up sees
        that the job ended. False if the job ran or may be running: then its tables wait (R6)."""
        for number, part in enumerate(self.parts):
            try:
                self.warehouse.burn_job(
                    part.job_id, self.warehouse.project, self.warehouse.location, _table(part)
                )
            except JobAlreadyExists:
                found = self._status(part)
                if number == 0 and (found is None or found.state != "DONE" or _is_own(found, part)):
                    return False
        return True

    def progress(self) -> Mapping[TableReference, bool]:
        """Whether the rows of each table are replaced."""
        try:
            done = self.replaced()
        except JobFailed:
            done = 0
        return {
            each.table: number < done for number, part in enumerate(self.parts) for each in part.replacements
        }

    def _status(self, part: ReplaceJob) -> JobStatus | None:
        return self.warehouse.get_job(
            part.job_id, self.warehouse.project, self.warehouse.location, _table(part)
        )


def _table(part: ReplaceJob) -> TableReference | None:
    return part.replacements[0].table if part.replacements else None


def _is_own(found: JobStatus, part: ReplaceJob) -> bool:
    """Whether an ended job has replaced the rows."""
    return found.error is None and found.source_uris == part.sources
