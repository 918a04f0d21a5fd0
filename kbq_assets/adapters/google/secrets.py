"""Reads secrets from Google Secret Manager through its REST API.

https://cloud.google.com/secret-manager/docs/reference/rest/v1/projects.secrets.versions/access
"""

from __future__ import annotations

import base64
import re
from typing import Any, Final

import google_crc32c
import requests
from google.auth import exceptions
from google.auth.transport.requests import AuthorizedSession

from kbq_assets.adapters.google.auth import UNREADABLE, GoogleAccess, google_credentials
from kbq_assets.adapters.http import TimedAdapter
from kbq_assets.core.errors import ConfigurationError, Unavailable

_NAME: Final = re.compile(r"projects/[\w:.-]+(/locations/([\w-]+))?/secrets/[\w-]+/versions/([\w-]+)")
#: Timeouts in seconds: to connect, and for the whole response.
_TIMEOUT: Final = (10.0, 30.0)
_WHY: Final = {
    400: "the version is disabled or destroyed, or the name is invalid",
    401: "the credentials are not accepted",
    403: "these credentials may not read it",
    404: "there is no such secret or version",
}


def read_secret(name: str, access: GoogleAccess) -> str:
    """The text of ``projects/P/secrets/S/versions/V``. Raises ConfigurationError or Unavailable, which never show the
    secret."""
    matched = _NAME.fullmatch(name)
    if matched is None:
        raise ConfigurationError(
            f"{name} is not the name of a secret's version",
            next_step="use projects/P/secrets/S/versions/latest, or a version number",
        )
    response = _answer(f"{access.endpoint or _endpoint(matched[2])}/v1/{name}:access", name, access)
    if response.status_code in _WHY:
        raise ConfigurationError(
            f"Secret Manager refuses {name}: {_WHY[response.status_code]}",
            next_step="grant roles/secretmanager.secretAccessor to the extraction's credentials, or correct the name",
        )
    if response.status_code != 200:
        raise _unavailable(name, f"status {response.status_code}")
    return _text(response, name)


def _endpoint(location: str | None) -> str:
    return f"https://secretmanager.{location}.rep.googleapis.com" if location else _GLOBAL


_GLOBAL: Final = "https://secretmanager.googleapis.com"


def _answer(url: str, name: str, access: GoogleAccess) -> requests.Response:
    why = ""
    try:
        with AuthorizedSession(google_credentials(access)) as session:
            for scheme in ("http://", "https://"):
                session.mount(scheme, TimedAdapter())
            return session.get(url, timeout=_TIMEOUT)
    except (exceptions.GoogleAuthError, OSError, *UNREADABLE) as error:  # requests' errors are OSErrors
        why = type(error).__name__
    raise _unavailable(name, why)


def _text(response: requests.Response, name: str) -> str:
    try:
        payload: Any = response.json()["payload"]
        data = base64.b64decode(payload["data"], validate=True)
        if int(payload.get("dataCrc32c", google_crc32c.value(data))) == google_crc32c.value(data):
            return data.decode()
    except UNREADABLE:
        pass  # the error's message may quote the secret
    raise _unavailable(name, "the response is damaged, or not text")


def _unavailable(name: str, why: str) -> Unavailable:
    return Unavailable(f"Secret Manager did not return {name}: {why}", next_step="try again")
