"""Requests to the JSON API, with timeouts and retries."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from urllib.parse import quote

import requests
from google.cloud.storage import Client

from kbq_assets.adapters.gcs.errors import NO_ANSWER, Intent, interruption, refusal
from kbq_assets.adapters.google.auth import UNREADABLE
from kbq_assets.adapters.google.sessions import send_once
from kbq_assets.core.errors import PreconditionFailed, TransientError, UnknownOutcome

#: Connections kept open, one per thread that shares a store.
POOL: Final = 64
#: Timeouts in seconds: to connect, and to wait for a response. Sending a chunk must take less than the first.
TIMEOUT: Final = (30.0, 60.0)
#: Pauses between retries in seconds, each varied by up to half. An object accepts at most one change per second.
PAUSES: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
_LONGEST_VALUE: Final = 60

T = TypeVar("T")


@dataclass(frozen=True)
class Call:
    """One request, which may be retried. ``once`` says that its precondition lets it succeed only once: a retry that
    fails the precondition may have met its own first attempt. ``accepts`` has the accepted statuses besides 2xx."""

    intent: Intent
    verb: str
    url: str
    params: Mapping[str, str | int] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = field(default=b"", repr=False)
    once: bool = False
    stream: bool = False
    accepts: frozenset[int] = frozenset()


class Calls:
    """A client's connections. Threads may share it; a process that forks may not."""

    def __init__(self, client: Client, pauses: Sequence[float] = PAUSES) -> None:
        # The library has no public access to its session, but documents this one for the size of the pool.
        self._session: requests.Session = client._http
        send_once(self._session, POOL)
        self.endpoint = str(client.api_endpoint).rstrip("/")
        # Read proxies and certificate authorities from the environment once: reading them per request costs a third
        # more CPU. This also prevents a .netrc from replacing the token.
        environment = self._session.merge_environment_settings(self.endpoint, {}, None, None, None)
        self._session.proxies, self._session.verify = environment["proxies"], environment["verify"]
        self._session.trust_env = False
        self.pauses = tuple(pauses)

    def bucket_url(self, bucket: str, kind: str = "") -> str:
        """The URL of a bucket; ``kind`` is ``/upload`` for requests that send data."""
        return f"{self.endpoint}{kind}/storage/v1/b/{bucket}"

    def object_url(self, bucket: str, name: str) -> str:
        return f"{self.bucket_url(bucket)}/o/{quote(name, safe='')}"

    def send(self, call: Call, read: Callable[[requests.Response], T]) -> T:
        """The result of ``read`` on the response. Raises the errors in the package's table, as ``read`` may."""
        unknown: UnknownOutcome | None = None
        for pause in (*self.pauses, None):
            try:
                return read(self.attempt(call))
            except PreconditionFailed:
                if call.once and unknown:
                    raise unknown from None
                raise
            except TransientError as error:
                unknown = error if isinstance(error, UnknownOutcome) else unknown
                if pause is None:
                    # A refused retry does not show whether the first request was applied.
                    raise unknown or error from None
                wait(pause)
        raise AssertionError("the last pause is None")

    def json(self, call: Call) -> dict[str, Any]:
        return self.send(call, lambda response: document(call.intent, response))

    def parsed(self, call: Call, parse: Callable[[dict[str, Any]], T]) -> T:
        """The result of ``parse`` on the JSON object in the response. A response of another shape is an error, as if it
        were no JSON object."""

        def read(response: requests.Response) -> T:
            found = document(call.intent, response)
            with shaped(call.intent):
                return parse(found)

        return self.send(call, read)

    def attempt(self, call: Call) -> requests.Response:
        """The response to a request that is sent once."""
        try:
            response = self._session.request(
                call.verb,
                call.url,
                params=dict(call.params),
                data=call.body,
                headers=dict(call.headers),
                stream=call.stream,
                timeout=TIMEOUT,
                allow_redirects=False,
            )
            if response.status_code < 300 or response.status_code in call.accepts:
                return response
            raise refusal(call.intent, response.status_code, response.text)
        except NO_ANSWER as error:
            raise interruption(call.intent, error) from None
        except UNREADABLE as error:
            reason = f"no access token, or a response of another server ({type(error).__name__}: {error})"
            raise call.intent.unsettled(reason) from None


def document(intent: Intent, response: requests.Response) -> dict[str, Any]:
    """The JSON object in a response."""
    try:
        found: Any = response.json()
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise intent.unsettled("the response is not a JSON object")
    return found


@contextmanager
def shaped(intent: Intent) -> Iterator[None]:
    """Translate the errors of code that reads JSON whose values have other types than Cloud Storage's."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise intent.unsettled(
            f"the response is not Cloud Storage's ({type(error).__name__}: {error})"
        ) from error


def text(value: object) -> str:
    """The value if it is a text. Raises TypeError."""
    if not isinstance(value, str):
        raise TypeError(f"{str(value)[:_LONGEST_VALUE]!r} is not a text")
    return value


def texts(value: object) -> list[str]:
    """The value if it is a list of texts. Raises TypeError: a text would be read as one entry per letter."""
    return [text(each) for each in listed(value)]


def listed(value: object) -> list[Any]:
    """The value if it is a list. Raises TypeError."""
    if not isinstance(value, list):
        raise TypeError(f"{str(value)[:_LONGEST_VALUE]!r} is not a list")
    return value


def written(intent: Intent, response: requests.Response) -> dict[str, Any]:
    """The metadata of an object that was written: generation, size and checksum."""
    found = document(intent, response)
    try:
        complete = (
            int(found["generation"]) > 0 and int(found["size"]) >= 0 and isinstance(found["crc32c"], str)
        )
    except (LookupError, TypeError, ValueError):
        complete = False
    if not complete:
        raise intent.unsettled("the response does not describe an object")
    return found


def wait(seconds: float) -> None:
    """Pause for a random time, so that clients do not retry in step."""
    time.sleep(seconds * random.uniform(0.5, 1.5))
