"""Data that could not be loaded as it is: bad records in error tables, and files in quarantine."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.pipelines.errors_replay.reparse import Parse, ReplayPorts
from kbq_assets.pipelines.operate import bad_records, quarantine
from kbq_assets.pipelines.operate.commands import Proposal
from kbq_assets.ports.warehouse import ErrorQuery, ErrorRow


@dataclass(frozen=True)
class RejectedData:
    """Lists bad records and files in quarantine, and proposes to load or drop these files."""

    deployment: Deployment
    parse: Parse

    def error_rows(self, query: ErrorQuery) -> list[ErrorRow]:
        """Bad records of all error tables, the newest first."""
        return bad_records.list_error_rows(self.deployment.warehouse, query)

    def error_rows_at(self, tp: TopicPartition, offset: int) -> list[ErrorRow]:
        """The bad record at a position, once per epoch that had it. Raises NotFound."""
        return bad_records.find_error_rows(self.deployment.warehouse, tp, offset)

    @cached_property
    def replay_ports(self) -> ReplayPorts:
        own = self.deployment
        return ReplayPorts(
            own.load_store, own.warehouse, self.parse, own.sources.select, own.sources.table_options()
        )

    def files_of(self, topic: str | None = None) -> list[bad_records.Quarantined]:
        """Files that no load job accepts, of one topic or all."""
        return bad_records.list_quarantined(self.deployment.store, topic)

    def files(self, paths: Collection[str], table: TableReference | None) -> list[bad_records.Quarantined]:
        """These files in quarantine, those of a table, or all. Raises NotFound."""
        return quarantine.find_quarantined(self.deployment.load_store, paths, table)

    def retry(self, paths: Collection[str], table: TableReference | None) -> Proposal:
        """Load files of the quarantine after all."""
        return quarantine.propose_retry(self.deployment.load_store, self.files(paths, table))

    def drop(self, paths: Collection[str], table: TableReference | None) -> Proposal:
        """Give up the rows of files in quarantine."""
        return quarantine.propose_drop(self.deployment.load_store, self.files(paths, table))
