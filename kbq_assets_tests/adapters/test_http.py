"""Messages by POST to a server on a real socket: attempts, pauses, redirects, and no secret in an error."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kbq_assets.adapters.http import ATTEMPTS, HttpClient, NoReply, Reply, parse_address, post_json
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


@pytest.mark.parametrize(
    ("asked", "paused"),
    [
        ("0", 0.0),
        ("10", 10.0),
        ("", 1.0),
        ("-1", 1.0),
        ("1.5", 1.0),
        ("\u0663", 1.0),
        ("Tue, 14 Nov 2023 22:13:20 GMT", 1.0),
        ("Tue, 14 Nov 2023 22:13:30 -0000", 10.0),
        ("Mon, 01 Jan 0001 00:00:00 GMT", 1.0),
        ("Tue, 14 Nov 99999999999999999999 22:13:25 GMT", 1.0),
        ("Tue, 14 Nov 2023 22:13:25 +99999999999999999", 1.0),
        ("Tue, 14 Nov 2023 99:13:25 GMT", 1.0),
    ],
)
def test_a_pause_is_what_can_be_understood_and_a_second_otherwise(
    server: HookServer, asked: str, paused: float
) -> None:
    clock = FakeClock()
    server.answers = [(503, {"Retry-After": asked.encode().decode("latin-1")}), (200, {})]
    post_json(clock, "the webhook", server.url, b"{}")
    assert (len(server.posted), clock.seconds) == (2, paused)


@pytest.mark.parametrize("asked", ["11", "9" * 400, "Fri, 31 Dec 9999 23:59:59 -2359"])
def test_a_pause_without_end_is_left_to_the_next_call(server: HookServer, asked: str) -> None:
    clock = FakeClock()
    server.answers = [(503, {"Retry-After": asked})]
    error_of(f"{server.url}/{SECRET}", Unavailable, clock)
    assert (len(server.posted), clock.seconds) == (1, 0.0)


@pytest.mark.parametrize(
    ("body", "parsed"),
    [
        (b"", None),
        (b"{", None),
        (b"\xff", None),
        (b'"\xc3"', None),
        (b"[" * 100_000, None),
        (b'{"a": 1}', {"a": 1}),
        ('"é"'.encode("utf-16"), "é"),
        (b"9" * 5000, None),
    ],
    ids=lambda part: repr(part)[:20],
)
def test_a_body_that_is_no_json_is_none(body: bytes, parsed: object) -> None:
    assert Reply(200, body).json == parsed


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("http://a", "a", None),
        ("HTTPS://A:1/b?c#d", "a", 1),
        ("http://u:p@a:65535", "a", 65535),
        ("http://[::1]:80/", "::1", 80),
        ("http://a:", "a", None),
        ("", None, None),
        ("a", None, None),
        ("//a", None, None),
        ("http:a", None, None),
        ("http://", None, None),
        ("http://:1", None, None),
        ("http://a:0", None, None),
        ("http://a:65536", None, None),
        ("http://a:b", None, None),
        ("http://a:-1", None, None),
        ("http://[::1", None, None),
        ("http://[x]", None, None),
        ("http://a/b c", None, None),
        ("http://a/\n", None, None),
        ("http://\xe9", None, None),
        ("file:///etc/passwd", None, None),
        ("javascript://a", None, None),
    ],
)
def test_an_address_is_http_and_names_a_host(url: str, host: str | None, port: int | None) -> None:
    found = parse_address(url)
    assert (found and found.hostname, found and found.port) == (host, port)
