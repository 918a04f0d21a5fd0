"""A REST catalog that ends every request in time, and that notices when a commit was sent twice."""

from __future__ import annotations

import threading
import time
from typing import Any, Final

import requests
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.rest.auth import AuthManager, AuthManagerFactory
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, OAuthError
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import AddSnapshotUpdate, TableRequirement, TableUpdate
from requests.auth import HTTPBasicAuth

from kbq_assets.adapters.http import TimedAdapter

#: Seconds until the catalog must have answered a request. The library has no limit.
ANSWER_SECONDS: Final = 120.0
#: Statuses of a token server that knows the client and gives it no token.
_REFUSED: Final = (400, 401, 403)


class TimedRestCatalog(RestCatalog):
    """pyiceberg's REST catalog, without requests that may wait forever."""

    def _config_headers(self, session: requests.Session) -> None:
        # The library calls this first for each session, before any request.
        super()._config_headers(session)
        _limit(session)

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


def _limit(session: requests.Session) -> None:
    for scheme in ("http://", "https://"):
        session.mount(scheme, _Limited())


class TimedOAuth2(AuthManager):
    """The catalog's `auth.type=oauth2`, with a token server that must answer in time. Threads may share it."""

    def __init__(
        self,
        client_id: str,
        client_secret: str,
        token_url: str,
        scope: str | None = None,
        refresh_margin: int = 60,
        expires_in: int | None = None,
    ) -> None:
        self._client = str(client_id).encode(), str(client_secret).encode()
        self._url = token_url
        self._form = {"grant_type": "client_credentials", **({"scope": scope} if scope else {})}
        self._margin, self._expires_in = int(refresh_margin), expires_in
        self._token, self._until = "", 0.0
        self._lock = threading.Lock()

    def auth_header(self) -> str:
        with self._lock:
            if time.monotonic() >= self._until:
                self._token, seconds = self._ask()
                self._until = time.monotonic() + seconds - self._margin
            return f"Bearer {self._token}"

    def _ask(self) -> tuple[str, float]:
        """A token, and the seconds for which it is valid."""
        with requests.Session() as session:
            _limit(session)
            reply = session.post(self._url, data=self._form, auth=HTTPBasicAuth(*self._client))
        if reply.status_code in _REFUSED:
            raise OAuthError(f"the token server refuses the client: status {reply.status_code}")
        reply.raise_for_status()
        answer: Any = reply.json()
        if not isinstance(answer, dict) or not isinstance(answer.get("access_token"), str):
            raise ValueError("the token server's response has no token")
        seconds: Any = answer.get("expires_in", self._expires_in)
        try:
            return answer["access_token"], int(seconds)
        except (TypeError, ValueError, OverflowError):
            raise ValueError("the token server does not say how long its token is valid") from None


AuthManagerFactory.register("oauth2", TimedOAuth2)
