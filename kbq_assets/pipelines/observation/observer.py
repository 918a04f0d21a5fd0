"""Observation of one deployment. Nothing here changes state or data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from kbq_assets.core.config.roles import Role
from kbq_assets.core.loading.completeness import TableHours
from kbq_assets.core.observation.arrivals import Arrivals
from kbq_assets.core.observation.checks import CheckResult
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.pipelines.loading.completeness import TableCompleteness, known_hours, standings
from kbq_assets.pipelines.loading.view import read_view
from kbq_assets.pipelines.observation import status as standing
from kbq_assets.pipelines.observation.checks import CheckPorts, CheckReport, run_checks


@dataclass(frozen=True)
class Observer:
    """Reports status, checks and completeness. ``query_checks`` runs the checks that query the warehouse's rows, and
    ``arrivals`` reads batches of files."""

    deployment: Deployment
    query_checks: Callable[[], Iterable[CheckResult]] = tuple
    arrivals: Callable[[], Arrivals] = Arrivals

    def status(self, *, survives_silence: bool = False) -> standing.Status:
        """Positions, lag, backlogs, and everything that is stopped or parked. For ``survives_silence``, see
        `standing.read_status`."""
        deployment = self.deployment
        sources = deployment.sources
        found = standing.read_status(
            deployment.store,
            deployment.offsets,
            sources.read(),
            sources.restarts,
            deployment.blocks,
            deployment.backup_area,
            survives_silence=survives_silence,
        )
        return replace(found, arrivals=self.arrivals())

    def stored_status(self) -> standing.Status:
        """Positions, tables and stops from the source list and the staging area, without the broker."""
        deployment = self.deployment
        return standing.read_stored_status(
            deployment.load_cache,
            deployment.sources.read(),
            deployment.sources.restarts,
            deployment.blocks,
        )

    def tables(self, *, survives_silence: bool = False) -> tuple[standing.TableStatus, ...]:
        """Every table that has rows or will have some. For ``survives_silence``, see `standing.read_tables`."""
        deployment = self.deployment
        return standing.read_tables(
            deployment.load_cache,
            deployment.sources.restarts,
            deployment.blocks,
            survives_silence=survives_silence,
        )

    def feeds(self) -> Mapping[TableReference, frozenset[str]]:
        """The topics of each table's loaded rows and waiting files."""
        deployment = self.deployment
        return standing.feeds_of(read_view(deployment.load_cache, deployment.blocks))

    def checks(self, *, queries: bool = False, survives_silence: bool = False) -> CheckReport:
        """All checks that need no query; with ``queries``, also those that do. For ``survives_silence``, see
        `run_checks`."""
        report = run_checks(self._ports(Role.LOAD), survives_silence=survives_silence)
        arrivals = self.arrivals()
        more = (*arrivals.results, *(self.query_checks() if queries else ()))
        unknown = {**report.unknown, **arrivals.unknown_checks}
        return replace(report, results=(*report.results, *more), unknown=unknown)

    def state_checks(self, role: Role, *, broker: bool = False) -> CheckReport:
        """The checks that need only state, read with a role's credentials; with ``broker``, also those that need it."""
        return run_checks(self._ports(role), broker=broker)

    def hours(self) -> tuple[TableCompleteness, ...]:
        """How far each table is complete in business time, and what delays it."""
        deployment = self.deployment
        return standings(read_view(deployment.load_cache, deployment.blocks), deployment.sources.select)

    def known_hours(self) -> Mapping[TableReference, TableHours]:
        """The hours of every table, as stored by the last load."""
        return known_hours(self.deployment.load_cache)

    def _ports(self, role: Role) -> CheckPorts:
        deployment = self.deployment
        return CheckPorts(
            deployment.cache(role),
            deployment.blocks,
            lambda: deployment.offsets,
            deployment.sources.read(),
            deployment.clock.now_ms,
            lambda area: deployment.backup_area(area, role),
        )
