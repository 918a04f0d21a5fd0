"""Messages by POST against a server on a real socket: attempts, pauses, redirections, and no secret in an error."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kbq_assets.adapters.http import ATTEMPTS, HttpClient, NoReply, post_json
from kbq_assets.core.errors import ConfigurationError, KbqError, Unavailable
from kbq_assets_tests.fakes.clock import FakeClock
from kbq_assets_tests.fakes.hook_server import HookServer, hook_server

SECRET = "s3cr3t-t0k3n"


@pytest.fixture
def server() -> Iterator[HookServer]:
    with hook_server() as served:
        yield served


def error_of(url: str, kind: type[KbqError], clock: FakeClock | None = None) -> str:
    """What a failed message says: no secret, and a next step."""
    with pytest.raises(kind) as raised:
        post_json(clock or FakeClock(), "the webhook", url, b"{}")
    assert SECRET not in str(raised.value)
    assert raised.value.next_step
    return str(raised.value)


def test_a_body_arrives_with_its_headers(server: HookServer) -> None:
    post_json(FakeClock(), "the webhook", f"{server.url}/{SECRET}?a=b", b'{"x":1}', {"X-Signature": "y"})
    [posted] = server.posted
    assert (posted.path, posted.body) == (f"/{SECRET}?a=b", b'{"x":1}')
    assert (posted.headers["content-type"], posted.headers["x-signature"]) == ("application/json", "y")


@pytest.mark.parametrize(
    ("answer", "paused"),
    [
        ((500, {}), 1.0),
        ((503, {"Retry-After": "7"}), 7.0),
        ((429, {"Retry-After": "2"}), 2.0),
        ((429, {"Retry-After": "Tue, 14 Nov 2023 22:13:25 GMT"}), 5.0),
        ((429, {"Retry-After": "soon"}), 1.0),
        ((0, {}), 1.0),
    ],
)
def test_a_transient_failure_is_tried_again_after_the_pause_that_the_server_asks_for(
    server: HookServer, answer: tuple[int, dict[str, str]], paused: float
) -> None:
    clock = FakeClock()
    server.answers = [answer, (200, {})]
    post_json(clock, "the webhook", f"{server.url}/{SECRET}", b"{}")
    assert (len(server.posted), clock.seconds) == (2, paused)


def test_attempts_are_bounded(server: HookServer) -> None:
    server.answers = [(502, {})]
    assert "HTTP 502" in error_of(f"{server.url}/{SECRET}", Unavailable)
    assert len(server.posted) == ATTEMPTS


def test_a_long_pause_is_left_to_the_next_call(server: HookServer) -> None:
    clock = FakeClock()
    server.answers = [(429, {"Retry-After": "3600"})]
    error_of(f"{server.url}/{SECRET}", Unavailable, clock)
    assert (len(server.posted), clock.seconds) == (1, 0.0)


@pytest.mark.parametrize("status", [301, 302, 307, 400, 403, 404, 410])
def test_a_refusal_is_neither_tried_again_nor_followed(server: HookServer, status: int) -> None:
    server.answers = [(status, {"Location": f"{server.url}/elsewhere"})]
    assert f"HTTP {status}" in error_of(f"{server.url}/{SECRET}", ConfigurationError)
    assert len(server.posted) == 1


def test_a_server_that_is_away_may_come_back() -> None:
    assert "Connection refused" in error_of(f"http://127.0.0.1:1/{SECRET}", Unavailable)


@pytest.mark.parametrize("url", [SECRET, f"ftp://{SECRET}", f"https://x/{SECRET} y", f"http:///{SECRET}"])
def test_a_wrong_address_is_refused_without_showing_it(url: str) -> None:
    assert "not an http or https URL" in error_of(url, ConfigurationError)


def test_a_redirection_to_another_host_is_an_answer_of_its_own(server: HookServer) -> None:
    server.answers = [(307, {"Location": server.url.replace("127.0.0.1", "localhost") + "/other"})]
    reply = HttpClient(60).send("POST", server.url, b"{}")
    assert (reply.status, len(server.posted)) == (307, 1)


def test_an_error_keeps_no_address(server: HookServer) -> None:
    server.answers = [(0, {})]
    with pytest.raises(NoReply) as raised:
        HttpClient(60).send("POST", f"{server.url}/{SECRET}", b"{}")
    assert SECRET not in str(raised.value)
