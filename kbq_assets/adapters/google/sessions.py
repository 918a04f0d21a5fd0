"""The HTTP sessions of Google's clients, without their own retries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from requests.adapters import HTTPAdapter
from urllib3.util import Retry

if TYPE_CHECKING:
    import requests


def send_once(session: requests.Session, connections: int) -> None:
    """Mount adapters that never repeat a request, and that keep some connections open.

    An adapter of another class, such as one with a client certificate, keeps its connection pool.
    """
    for scheme in ("http://", "https://"):
        mounted = session.get_adapter(scheme)
        if type(mounted) is HTTPAdapter:
            session.mount(scheme, HTTPAdapter(pool_maxsize=connections))
        elif isinstance(mounted, HTTPAdapter):
            mounted.max_retries = Retry(0, read=False)
