"""Maps responses and timeouts of the API to KBQ's errors.

A job's insertion is sent once, with the client's own retries off. The response shows the state of the id:

    =====================================================  =================  ===============================
    response                                               raised             the id
    =====================================================  =================  ===============================
    200                                                                       inserted
    409                                                    JobAlreadyExists   taken: by us, if a reply was lost
    403 or 429 for a rate limit or quota                   Unavailable        free
    401, no credentials available                          Unavailable        free
    no connection                                          Unavailable        free: nothing was sent
    other 4xx                                              JobFailed          free, as far as this call goes
    408, 5xx, a reset, a timeout, or a response            UnknownOutcome     taken now, later or never
    that is not the API's
    =====================================================  =================  ===============================

"Free" is only a hint: the loader gets the job before it submits again (L3), so a wrong guess costs one call.
All other calls may be repeated, and the client does so for a while. Errors that remain are Unavailable, NotFound, or a
ConfigurationError that names the missing permission.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Final

import requests
import urllib3.exceptions
from google.api_core import exceptions as api
from google.auth import exceptions as auth

from kbq_assets.adapters.google.auth import UNREADABLE, may_get_token
from kbq_assets.core.errors import (
    AccessRefused,
    ConfigurationError,
    JobAlreadyExists,
    JobFailed,
    KbqError,
    NotFound,
    Unavailable,
    UnknownOutcome,
    WrongOptions,
)

#: Rate limits and quotas.
_BUSY: Final = frozenset(
    {"rateLimitExceeded", "quotaExceeded", "jobRateLimitExceeded", "userRateLimitExceeded"}
)
#: The client also passes on plain OSErrors, for example for a file of certificate authorities that does not exist.
_NO_ANSWER: Final = (
    api.GoogleAPIError,
    requests.RequestException,
    urllib3.exceptions.HTTPError,
    auth.GoogleAuthError,
    OSError,
)
_ENDPOINT: Final = "check KBQ_BIGQUERY_ENDPOINT and the proxy; the next run retries"
_LATER: Final = "the next run retries; if it persists, check BigQuery's status and quotas"
GET_JOB: Final = "the next run gets the job"
_CREDENTIALS: Final = "check KBQ_LOAD_CREDENTIALS"


@contextmanager
def calls(what: str, permission: str) -> Iterator[None]:
    """Translate the errors of repeatable calls. ``permission`` is the permission that the calls need.

    Raises Unavailable, NotFound, ConfigurationError. The client's PreconditionFailed propagates.
    """
    try:
        yield
    except api.PreconditionFailed:
        raise  # not a failure: another writer was faster
    except (*_NO_ANSWER, futures.TimeoutError) as error:
        raise _call_error(error, what, permission) from error
    except UNREADABLE as error:
        raise Unavailable(f"{what}: {_unreadable(error)}", next_step=_ENDPOINT) from error


@contextmanager
def definitions(what: str, permission: str) -> Iterator[None]:
    """`calls` that create or change a table. Raises WrongOptions too, if BigQuery refuses what they say about the
    table: too many columns, an invalid label, description or policy tag. It would refuse the same again."""
    try:
        with calls(what, permission):
            yield
    except ConfigurationError as error:
        if _is_malformed(error.__cause__):
            raise WrongOptions(
                f"BigQuery refuses {error.message}",
                next_step="fix what the message names: an option or a schema of the table's topics, or the table",
            ) from error
        raise


@contextmanager
def insertion(what: str) -> Iterator[None]:
    """Translate the errors of the call that inserts a job, as in the table of outcomes."""
    try:
        yield
    except _NO_ANSWER as error:
        raise _insertion_error(error, what) from error
    except UNREADABLE as error:
        raise UnknownOutcome(f"{what}: {_unreadable(error)}", next_step=GET_JOB) from error


def is_busy(error: Exception) -> bool:
    """Whether the API refused a call because of a rate limit or quota."""
    return isinstance(error, api.TooManyRequests) or (
        isinstance(error, api.Forbidden) and reason_of(error) in _BUSY
    )


def reason_of(error: Exception) -> str:
    """BigQuery's own reason for an error; "" if the response is not BigQuery's."""
    errors = getattr(error, "errors", None) or [{}]
    return str(errors[0].get("reason", "")) if isinstance(errors[0], dict) else ""


def message_of(error: Exception) -> str:
    """The error's message, without the request's URL."""
    errors = getattr(error, "errors", None) or [{}]
    if isinstance(errors[0], dict) and errors[0].get("message"):
        return str(errors[0]["message"])
    if isinstance(error, requests.RequestException):
        root = _root(error)
        return f"{type(root).__name__}: {root}"
    return str(error) or type(error).__name__


def _root(error: BaseException) -> BaseException:
    """The root cause. The errors that wrap it show addresses and URLs."""
    following = error.__cause__ or error.__context__
    return _root(following) if isinstance(following, (OSError, urllib3.exceptions.HTTPError)) else error


def _insertion_error(error: Exception, what: str) -> KbqError:
    message = f"{what}: {message_of(error)}"
    if isinstance(error, api.Conflict):
        return JobAlreadyExists(message, next_step="get the job and compare its files")
    if is_busy(error):
        return Unavailable(message, next_step=_LATER)
    if isinstance(error, (api.Unauthorized, auth.GoogleAuthError)):
        return _no_access(error, message)
    if _was_not_sent(error):
        return Unavailable(f"{what}: BigQuery cannot be reached: {message}", next_step=_LATER)
    if _is_refusal(error):
        return JobFailed(message, next_step=_refusal(error, "bigquery.jobs.create"))
    return UnknownOutcome(f"{what}: no response: {message_of(error)}", next_step=GET_JOB)


def _no_access(error: Exception, message: str) -> Unavailable:
    kind = Unavailable if may_get_token(error) else AccessRefused
    return kind(message, next_step=_CREDENTIALS)


def _unreadable(error: Exception) -> str:
    return f"the response is not BigQuery's, or no token ({type(error).__name__}: {error})"


def _is_refusal(error: Exception) -> bool:
    """Whether a 4xx is a definite refusal; 408 and 499 only mean that there was no response."""
    code = error.code if isinstance(error, api.GoogleAPICallError) else None
    return code is not None and 400 <= code < 500 and code not in (408, 499)


def _is_malformed(error: BaseException | None) -> bool:
    """Whether BigQuery refuses what a request says, and not who sends it or when. A proxy's 400 has no reason; a 413
    may come from Google's front end."""
    return (isinstance(error, api.BadRequest) and bool(reason_of(error))) or (
        isinstance(error, api.GoogleAPICallError) and error.code == 413
    )


def _was_not_sent(error: Exception) -> bool:
    if isinstance(error, requests.ConnectTimeout):
        return True
    cause = error.args[0] if isinstance(error, requests.ConnectionError) and error.args else None
    return isinstance(getattr(cause, "reason", None), urllib3.exceptions.NewConnectionError)


def _call_error(error: Exception, what: str, permission: str) -> KbqError:
    if isinstance(error, api.RetryError) and isinstance(error.cause, Exception):
        error = error.cause
    message = f"{what}: {message_of(error)}"
    if isinstance(error, (api.Unauthorized, auth.GoogleAuthError)):
        return _no_access(error, message)
    if isinstance(error, api.NotFound) and reason_of(error) != "notFound":
        return Unavailable(
            f"{what}: the response is not BigQuery's: {message_of(error)}", next_step=_ENDPOINT
        )
    if isinstance(error, api.NotFound):
        return NotFound(message, next_step="check project, dataset and table in the console")
    if _is_refusal(error) and not is_busy(error) and not isinstance(error, api.Conflict):
        return ConfigurationError(message, next_step=_refusal(error, permission))
    return Unavailable(message, next_step=_LATER)


def _refusal(error: Exception, permission: str) -> str:
    if isinstance(error, api.Forbidden):
        return f"grant {permission} to the loader's account, or fix what the message names"
    return "fix what the message names; `kbq doctor --gcp` checks the project"
