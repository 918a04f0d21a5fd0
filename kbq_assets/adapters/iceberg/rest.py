"""A REST catalog that ends every request in time, and that notices when a commit was sent twice."""

from __future__ import annotations

from typing import Any, Final

import requests
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import AddSnapshotUpdate, TableRequirement, TableUpdate

from kbq_assets.adapters.http import TimedAdapter

#: Seconds until the catalog must have answered a request. The library has no limit.
ANSWER_SECONDS: Final = 120.0


class TimedRestCatalog(RestCatalog):
    """pyiceberg's REST catalog, without requests that may wait forever."""

    def _config_headers(self, session: requests.Session) -> None:
        # The library calls this first for each session, before any request.
        super()._config_headers(session)
        for scheme in ("http://", "https://"):
            session.mount(scheme, _Limited())

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """Commit, or raise CommitFailedException if nothing was committed.

        If a proxy sends a request again because it lost the first response, the second one reports a conflict with the
        first. The library would take that for a failure, and delete the manifests of the committed snapshot.
        """
        try:
            done: CommitTableResponse = super().commit_table(table, requirements, updates)
            return done
        except CommitFailedException as conflict:
            added = {
                update.snapshot.snapshot_id for update in updates if isinstance(update, AddSnapshotUpdate)
            }
            if not added:
                raise
            try:
                found = self.load_table(table.name())
            except Exception as error:
                raise CommitStateUnknownException(f"{conflict}; the table cannot be read: {error}") from error
            if not added <= {snapshot.snapshot_id for snapshot in found.snapshots()}:
                raise
            return CommitTableResponse.model_validate(
                {"metadata": found.metadata, "metadata-location": found.metadata_location}
            )


class _Limited(TimedAdapter):
    def send(self, *args: Any, **kwargs: Any) -> requests.Response:
        return super().send(*args, **{**kwargs, "timeout": kwargs.get("timeout") or ANSWER_SECONDS})
