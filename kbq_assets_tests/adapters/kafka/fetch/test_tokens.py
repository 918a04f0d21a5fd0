"""A token is fetched once per lifetime, and no message shows a secret."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import pytest

from kbq_assets.adapters.kafka.fetch.errors import AuthenticationRefused, ConnectionLost
from kbq_assets.adapters.kafka.fetch.tokens import TokenEndpoint, Tokens
from kbq_assets_tests.adapters.kafka.fetch.token_endpoint import (
    TokenEndpointServer,
    token_endpoint,
    unsigned_token,
)


@pytest.fixture
def server() -> Iterator[TokenEndpointServer]:
    with token_endpoint() as running:
        yield running


def tokens(
    server: TokenEndpointServer, secret: str = "open-sesame", scope: str = "", now: list[float] | None = None
) -> Tokens:
    clock = now or [1_000_000.0]
    return Tokens(TokenEndpoint(server.url, "kbq", secret, scope), now=lambda: clock[0])


def test_a_token_is_asked_for_by_the_client_credentials_grant(server: TokenEndpointServer) -> None:
    assert tokens(server, scope="kafka all")().count(".") == 2
    assert server.forms == [{"grant_type": ["client_credentials"], "scope": ["kafka all"]}]


@pytest.mark.parametrize(
    "answer",
    [
        {"access_token": unsigned_token(exp=1_000_100.0)},
        {"access_token": "opaque", "expires_in": 100},
        {"access_token": "a.b", "expires_in": 100},
    ],
)
def test_a_token_serves_for_most_of_its_life(server: TokenEndpointServer, answer: dict[str, object]) -> None:
    server.body, now = json.dumps(answer).encode(), [1_000_000.0]
    get = tokens(server, now=now)
    for now[0] in (1_000_000.0, 1_000_079.0):
        assert get() == answer["access_token"]
    assert len(server.forms) == 1
    now[0] = 1_000_081.0
    get()
    assert len(server.forms) == 2


def test_a_token_of_unknown_life_serves_once(server: TokenEndpointServer) -> None:
    server.body = b'{"access_token": "opaque"}'
    get = tokens(server)
    assert (get(), get(), len(server.forms)) == ("opaque", "opaque", 2)


def test_a_wrong_secret_is_refused_and_not_repeated(server: TokenEndpointServer) -> None:
    with pytest.raises(AuthenticationRefused, match="401 without a token: invalid_client") as caught:
        tokens(server, "guessed-wrong")()
    assert "guessed-wrong" not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"[]"),
        (200, b"{}"),
        (200, b"<html>"),
        (200, b"[" * 100_000),
        (400, b""),
        (200, b'{"access_token": 5}'),
    ],
)
def test_an_answer_without_a_token_is_refused(server: TokenEndpointServer, status: int, body: bytes) -> None:
    server.status, server.body = status, body or b"{}"
    with pytest.raises(AuthenticationRefused, match="without a token"):
        tokens(server)()


@pytest.mark.parametrize("status", [429, 500, 503])
def test_an_endpoint_that_is_overloaded_is_tried_again(server: TokenEndpointServer, status: int) -> None:
    server.status, server.body = status, b"<html>"
    with pytest.raises(ConnectionLost, match=str(status)):
        tokens(server)()


def test_credentials_follow_no_redirect(server: TokenEndpointServer) -> None:
    with token_endpoint() as other:
        server.status, server.headers, server.body = 307, {"Location": other.url}, b"{}"
        with pytest.raises(AuthenticationRefused, match="307"):
            tokens(server)()
        assert other.forms == []


def test_an_endpoint_that_is_away_is_a_lost_connection_without_its_address() -> None:
    with token_endpoint() as gone:
        pass
    with pytest.raises(ConnectionLost, match="does not answer") as caught:
        tokens(gone)()
    assert "127.0.0.1" not in str(caught.value)


@pytest.mark.parametrize(
    "life",
    ["NaN", "Infinity", "-Infinity", "1e999", "9" * 400, "true", '"100"', "null", "[]", "0", "-5"],
    ids=lambda life: life[:9],
)
@pytest.mark.parametrize("claimed", [False, True], ids=["expires_in", "exp"])
def test_a_life_that_is_no_time_is_unknown(server: TokenEndpointServer, life: str, claimed: bool) -> None:
    claims = base64.urlsafe_b64encode(f'{{"exp": {life}}}'.encode()).decode()
    token = f"a.{claims}.c" if claimed else "opaque"
    more = "" if claimed else f', "expires_in": {life}'
    server.body = f'{{"access_token": "{token}"{more}}}'.encode()
    get = tokens(server)
    assert (get(), get(), len(server.forms)) == (token, token, 2)


@pytest.mark.parametrize("token", ["", "a\nb", "a\x01b=c", "\ud800", "é", "a\x00"], ids=ascii)
def test_a_token_that_no_login_can_hold_is_refused(server: TokenEndpointServer, token: str) -> None:
    server.body = json.dumps({"access_token": token}).encode()
    with pytest.raises(AuthenticationRefused, match="200 without a token"):
        tokens(server)()
