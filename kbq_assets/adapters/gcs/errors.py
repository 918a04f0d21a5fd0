"""Maps Cloud Storage's responses, or the lack of one, to KBQ's errors. The package's docstring has the table."""

from __future__ import annotations

import http.client
import json
import re
from dataclasses import dataclass
from typing import Any, Final

import requests
import urllib3
from google.auth import exceptions as auth

from kbq_assets.adapters.google.auth import may_get_token
from kbq_assets.core.errors import (
    ConfigurationError,
    KbqError,
    NotFound,
    PreconditionFailed,
    Unavailable,
    UnknownOutcome,
)

#: Exceptions that end an exchange without a response.
NO_ANSWER: Final = (requests.RequestException, urllib3.exceptions.HTTPError, auth.GoogleAuthError, OSError)
_LONGEST_QUOTE: Final = 300
_TRY_AGAIN: Final = (
    "the next run retries; if it persists, check https://status.cloud.google.com and the network"
)
_PERMISSION: Final = re.compile(r"storage\.(?:buckets|objects)\.[a-zA-Z]+")
_DAMAGED: Final = re.compile(r"(crc32c|md5|checksum|hash).*(match|calculated)", re.IGNORECASE)
_BUCKET_GONE: Final = re.compile(r"bucket.*(does not exist|not found)", re.IGNORECASE)
#: Reasons for a 400 or 403 that no permission would fix.
_NEXT_STEPS: Final = {
    "retentionPolicyNotMet": "remove the bucket's retention policy: KBQ replaces and deletes objects",
    "objectUnderActiveHold": "release the object's hold, and the bucket's default hold",
    "userProjectMissing": "turn requester pays off for this bucket",
}


@dataclass(frozen=True)
class Intent:
    """A request's purpose. ``name`` is the address of the object or bucket, ``permission`` the required permission."""

    operation: str
    name: str
    permission: str
    changes: bool = False

    def __str__(self) -> str:
        return f"{self.operation} {self.name}"

    @property
    def bucket(self) -> str:
        return "/".join(self.name.split("/")[:3])

    def unsettled(self, reason: str) -> KbqError:
        """The error for an unreliable response: a change may or may not be applied."""
        error = UnknownOutcome if self.changes else Unavailable
        return error(f"{self}: {reason}", next_step=_TRY_AGAIN)


def refusal(intent: Intent, status: int, text: str) -> KbqError:
    reason, message = _reason_and_message(text)
    answer = f"{intent}: {status} {message}".rstrip()
    if status == 412:
        return PreconditionFailed(f"{intent}: it has another generation", next_step="read it again")
    if status == 404 and not _BUCKET_GONE.search(message):
        return NotFound(f"{intent.name} does not exist", next_step="list its folder")
    if status == 429 or (status == 400 and _DAMAGED.search(message)):
        return Unavailable(answer, next_step=_TRY_AGAIN)
    if status == 408 or status >= 500:
        return intent.unsettled(f"{status} {message}".rstrip())
    return ConfigurationError(answer, next_step=_next_step(intent, status, reason, message))


def interruption(intent: Intent, error: BaseException) -> KbqError:
    """The error for an exchange that ended without a response. It shows no URL, since an upload's URL is a secret."""
    root = _root(error)
    reason = f"{type(root).__name__}: {root}"
    if isinstance(error, auth.GoogleAuthError) and not may_get_token(error):
        return ConfigurationError(
            f"{intent}: no access token: {reason}", next_step="check the credentials (kbq doctor)"
        )
    if isinstance(error, auth.GoogleAuthError) or _never_connected(error):
        return Unavailable(f"{intent}: {reason}", next_step=_TRY_AGAIN)
    return intent.unsettled(reason)


def _next_step(intent: Intent, status: int, reason: str, message: str) -> str:
    if reason in _NEXT_STEPS:
        return _NEXT_STEPS[reason]
    if status == 401:
        return "the credentials are missing or no longer valid: check them (kbq doctor)"
    if status == 403:
        named = _PERMISSION.search(message)
        return f"grant {named[0] if named else intent.permission} on {intent.bucket} to these credentials"
    return "check the bucket's name and the endpoint"


def _reason_and_message(text: str) -> tuple[str, str]:
    """The reason and message in an error's body, which is JSON except for downloads."""
    try:
        error: Any = json.loads(text)["error"]
        reason, message = str(error["errors"][0]["reason"]), str(error["message"])
    except (ValueError, TypeError, LookupError, RecursionError):
        reason, message = "", text
    return reason, " ".join(message.split())[:_LONGEST_QUOTE]


def _never_connected(error: BaseException) -> bool:
    """Whether no connection was made, so nothing was sent."""
    if isinstance(error, requests.ConnectTimeout):
        return True
    cause = error.args[0] if error.args else None
    return isinstance(getattr(cause, "reason", None), urllib3.exceptions.NewConnectionError)


def _root(error: BaseException) -> BaseException:
    """The root cause, without the caller's own context chain."""
    following = error.__cause__ or error.__context__
    if isinstance(following, (*NO_ANSWER, http.client.HTTPException)):
        return _root(following)
    return error
