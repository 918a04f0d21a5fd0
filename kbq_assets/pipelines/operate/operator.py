"""The operator's commands on one deployment: proposals to confirm, and the clean-up.

Commands for topics use the extraction's credentials, and commands for tables the loader's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property

from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.pipelines.backup.backups import Backups
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.pipelines.errors_replay.reparse import Parse
from kbq_assets.pipelines.observation.run_log import RunLog
from kbq_assets.pipelines.operate import adopt, bootstrap, commands
from kbq_assets.pipelines.operate import clean as cleaning
from kbq_assets.pipelines.operate.commands import EARLIEST, Proposal, StartAt
from kbq_assets.pipelines.operate.gone import propose_gone
from kbq_assets.pipelines.operate.quarantine import RejectedData
from kbq_assets.pipelines.operate.remove_warehouse import propose_removal
from kbq_assets.pipelines.operate.restage import ReadAgain, RestagePorts, propose_restage
from kbq_assets.ports.registry import SchemaRegistry


@dataclass(frozen=True)
class Operator:
    """Proposes changes of state, and deletes what is no longer needed."""

    deployment: Deployment
    read_again: ReadAgain
    parse: Parse
    open_registry: Callable[[], SchemaRegistry]

    @cached_property
    def backups(self) -> Backups:
        return Backups(self.deployment, self.open_registry)

    @cached_property
    def rejected(self) -> RejectedData:
        """Bad records, and files in quarantine."""
        return RejectedData(self.deployment, self.parse)

    def bootstrap(self, topic: str, start: StartAt) -> Proposal:
        """Write the first commit of a topic."""
        store, reader = self.deployment.store, self.deployment.offsets
        return bootstrap.propose_bootstrap(store, reader, topic, start)

    def bootstrap_from_done_files(self, topics: Collection[str] | None = None) -> list[Proposal]:
        """Write first commits that continue after the done files of Kafka BigQuery Express."""
        store, reader = self.deployment.store, self.deployment.offsets
        return bootstrap.propose_bootstrap_from_done_files(store, reader, topics)

    def resume(self, topic: str, partition: int | None = None, *, as_errors: bool = False) -> Proposal:
        return commands.propose_resume(self.deployment.store, topic, partition, as_errors=as_errors)

    def new_schemas(self, topic: str) -> Proposal:
        """Accept the registry's current schemas of a topic."""
        return commands.propose_new_schemas(self.deployment.store, topic)

    def gone(self, pattern: str) -> Proposal:
        """Stop expecting deleted topics and their backups."""
        stores = (self.deployment.store, *self.backups.areas())
        return propose_gone(stores, self.deployment.offsets, pattern)

    def accept_gap(self, tp: TopicPartition) -> Proposal:
        """Continue after a retention loss or an unreadable batch."""
        return commands.propose_accept_gap(self.deployment.store, self.deployment.offsets, tp)

    def reset(
        self,
        topic: str,
        partition: int | None = None,
        start: StartAt = EARLIEST,
        *,
        give_up_pending: bool = False,
    ) -> Proposal:
        """Begin a new epoch of a topic."""
        store, reader = self.deployment.store, self.deployment.offsets
        return commands.propose_reset(store, reader, topic, partition, start, give_up_pending=give_up_pending)

    def resume_table(self, table: TableReference, *, to_quarantine: bool = False) -> Proposal:
        """Resume a parked table, or acknowledge its missing rows."""
        return commands.propose_resume_table(self.deployment.load_store, table, to_quarantine=to_quarantine)

    def adopt_table(self, table: TableReference) -> Proposal:
        """Feed a table from this staging area, or continue without one that is gone."""
        return adopt.propose(self.deployment.load_store, self.deployment.warehouse, table)

    def park_table(self, table: TableReference) -> Proposal:
        return commands.propose_park_table(self.deployment.load_store, table)

    def remove_warehouse(self, name: str) -> Proposal:
        """Remove a warehouse: staged files no longer wait for it."""
        return propose_removal(self.deployment.store, self.deployment.load_store, name)

    def restage(self, path: str) -> Proposal:
        """Read the range of a staged file again, and replace it."""
        own = self.deployment
        return propose_restage(
            RestagePorts(own.store, own.offsets, self.read_again, own.sources.select), path
        )

    def clean(self) -> cleaning.CleaningReport:
        """Delete orphans, superseded done files, and expired backups."""
        store, clock = self.deployment.load_store, self.deployment.clock
        started = clock.monotonic()
        report = cleaning.clean(store)
        for each in self.backups.clean():
            report += each
        RunLog(store, clock).end_cleaning(report, clock.monotonic() - started)
        return report
