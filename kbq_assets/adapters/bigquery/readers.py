"""Read access to BigQuery's datasets and tables (`ports.readers`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from google.api_core import exceptions as api
from google.cloud import bigquery
from google.cloud.bigquery.retry import DEFAULT_RETRY

from kbq_assets.adapters.bigquery.insertions import TIMEOUT_SECONDS
from kbq_assets.adapters.bigquery.outcomes import calls
from kbq_assets.core.catalog.readers import DATASET, GrantReading, ReadablePlace
from kbq_assets.core.config.google_permissions import (
    GET_DATASET,
    GET_DATASET_POLICY,
    GET_TABLE_POLICY,
    READER_TABLE_ROLE,
    SET_DATASET_POLICY,
    SET_TABLE_POLICY,
    UPDATE_DATASET,
    member_of,
)
from kbq_assets.core.errors import ConfigurationError, NotFound, Unavailable

#: Attempts to grant while others change the policy.
_UPDATES: Final = 10
#: Seconds to retry one request.
_PATIENCE: Final = 60.0
#: Roles that may read all rows. A dataset's access list also uses the short names.
_READING: Final = frozenset(
    {
        *("READER", "WRITER", "OWNER"),
        *(READER_TABLE_ROLE, "roles/bigquery.dataEditor", "roles/bigquery.dataOwner"),
    }
)
_EMAILS: Final[Mapping[str, str]] = {
    "user": "userByEmail",
    "serviceAccount": "userByEmail",
    "group": "groupByEmail",
}
_CHANGE_DATASET: Final = f"{UPDATE_DATASET} and {SET_DATASET_POLICY}"
#: Policies with conditions have this version. The client's own methods support only version 1.
_VERSION: Final = 3


class BigQueryReaders:
    """Reads and extends the access lists of datasets and the policies of tables."""

    def __init__(self, client: bigquery.Client) -> None:
        self._client = client
        self._retry = DEFAULT_RETRY.with_timeout(_PATIENCE)

    def readers(self, place: ReadablePlace) -> frozenset[str] | None:
        """Members who may read the place through its own access list or policy; None if the place does not exist."""
        found = self._read(place)
        return None if found is None else frozenset(_readers(place, found))

    def grant(self, change: GrantReading) -> None:
        """Add the members. The etag of the read version protects changes by others."""
        place = change.place
        for _ in range(_UPDATES):
            found = self._read(place)
            if found is None:
                raise NotFound(f"{place} does not exist", next_step="apply again after its first load")
            present = {*_readers(place, found)}
            missing = [member for member in change.members if member not in present]
            if not missing or self._replace(place, found, missing):
                return
        raise Unavailable(f"{place}: others keep changing who may read it", next_step="apply again later")

    def _read(self, place: ReadablePlace) -> dict[str, Any] | None:
        """A dataset, or a table's policy; None if the place does not exist."""
        try:
            if place.kind == DATASET:
                with calls(str(place), f"{GET_DATASET} and {GET_DATASET_POLICY}"):
                    version = {"accessPolicyVersion": _VERSION}
                    return _with_list(place, self._call("GET", _path(place), query_params=version))
            asked = {"options": {"requestedPolicyVersion": _VERSION}}
            with calls(str(place), GET_TABLE_POLICY):
                return self._call("POST", f"{_path(place)}:getIamPolicy", data=asked)
        except NotFound:
            return None

    def _replace(self, place: ReadablePlace, found: Mapping[str, Any], members: Sequence[str]) -> bool:
        """Whether the list or policy was replaced; False if it was changed or the place was dropped in the meantime."""
        is_dataset = place.kind == DATASET
        with calls(str(place), _CHANGE_DATASET if is_dataset else SET_TABLE_POLICY):
            try:
                if is_dataset:
                    self._call(
                        "PATCH",
                        _path(place),
                        query_params={"accessPolicyVersion": _VERSION},
                        headers={"If-Match": found["etag"]},
                        data={"access": [*found["access"], *map(_entry, members)]},
                    )
                else:
                    policy = _with(found, members)
                    self._call("POST", f"{_path(place)}:setIamPolicy", data={"policy": policy})
            except (api.PreconditionFailed, api.Conflict, api.NotFound):
                return False
        return True

    def _call(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        answer = self._client._call_api(
            self._retry, method=method, path=path, timeout=TIMEOUT_SECONDS, **request
        )
        return dict(answer)


def _with_list(place: ReadablePlace, dataset: dict[str, Any]) -> dict[str, Any]:
    """The dataset. Raises ConfigurationError if the API omitted its access list, which an update would erase."""
    if "access" not in dataset:
        raise ConfigurationError(
            f"{place}: these credentials may not see its access list",
            next_step=f"grant {GET_DATASET_POLICY} to them",
        )
    return dataset


def _path(place: ReadablePlace) -> str:
    dataset, _, table = place.name.partition(".")
    path = f"/projects/{place.owner}/datasets/{dataset}"
    return f"{path}/tables/{table}" if table else path


def _readers(place: ReadablePlace, found: Mapping[str, Any]) -> Iterator[str]:
    """Members with an unconditional role that may read all rows."""
    for each in found.get("access" if place.kind == DATASET else "bindings", ()):
        if each.get("role") in _READING and not each.get("condition"):
            yield from _members(each)


def _members(each: Mapping[str, Any]) -> Iterator[str]:
    """The members in an entry of a dataset's access list, or in a policy's binding."""
    if "userByEmail" in each:
        yield member_of(str(each["userByEmail"]).lower())
    if "groupByEmail" in each:
        yield f"group:{str(each['groupByEmail']).lower()}"
    for member in each.get("members", ()):
        kind, _, address = str(member).partition(":")
        yield f"{kind}:{address.lower()}"


def _entry(member: str) -> dict[str, str]:
    kind, _, address = member.partition(":")
    return {"role": "READER", _EMAILS[kind]: address}


def _with(policy: Mapping[str, Any], members: Sequence[str]) -> dict[str, Any]:
    """A table's policy with additional readers."""
    bindings = list(policy.get("bindings", ()))
    for at, each in enumerate(bindings):
        if each.get("role") == READER_TABLE_ROLE and not each.get("condition"):
            bindings[at] = {**each, "members": [*each.get("members", ()), *members]}
            break
    else:
        bindings.append({"role": READER_TABLE_ROLE, "members": list(members)})
    return {**policy, "version": _VERSION, "bindings": bindings}
