"""References to secrets are resolved where they are used, cached for a while, and never shown."""

from __future__ import annotations

import base64
import importlib.metadata
import socket
import threading
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from kbq_assets.adapters import secrets
from kbq_assets.core.config.secret_references import is_reference
from kbq_assets.core.errors import ConfigurationError, KbqError, Unavailable
from kbq_assets_tests.fakes.registry_server import Answer, RegistryServer, registry_server
from kbq_assets_tests.fixtures.variables import Variables

SECRET = "s3cr3t"
NAME = "projects/p/secrets/pii-keys/versions/7"
PATH = f"/v1/{NAME}:access"


def payload(text: str = SECRET, crc: int | None = None) -> Answer:
    """What Secret Manager answers."""
    data = text.encode()
    crc = google_crc32c.value(data) if crc is None else crc
    return Answer.of(
        {"name": NAME, "payload": {"data": base64.b64encode(data).decode(), "dataCrc32c": str(crc)}}
    )


@pytest.fixture(autouse=True)
def _nothing_is_known() -> Iterator[None]:
    secrets.forget()
    yield
    secrets.forget()
    secrets.use_google("")


@pytest.fixture
def google() -> Iterator[RegistryServer]:
    with registry_server({PATH: payload()}) as served:
        secrets.use_google("anonymous", served.url)
        yield served


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("env:NAME", True), ("file:/a", True), (f"gsm:{NAME}", True), ("plugin:vault:a", True),
        ("", False), ("env", False), ("env:", False), ("pass:word", False), ("https://x", False),
    ],
)  # fmt: skip
def test_what_is_a_reference_and_what_a_value(value: str, expected: bool) -> None:
    assert is_reference(value) is expected


def test_what_is_no_reference_stands_for_itself() -> None:
    assert secrets.resolve("S", "pass:word") == "pass:word"


def test_variables_and_files_are_read_when_they_are_asked_for(tmp_path: Path, variables: Variables) -> None:
    file = tmp_path / "secret"
    for text in ("one", "two"):
        file.write_text(f"{text}\n")
        variables["A_SECRET"] = text
        assert [secrets.resolve("S", f"file:{file}"), secrets.resolve("S", "env:A_SECRET")] == [text, text]


def test_a_secret_of_google_is_read_once_in_a_while(
    google: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("kbq_assets.adapters.secrets.time.monotonic", lambda: now[0])
    found = []
    for seconds in (0.0, secrets.MAX_AGE_SECONDS - 1, 1.0):
        now[0] += seconds
        found.append(secrets.resolve("S", f"gsm:{NAME}"))
        google.answers[PATH] = payload("next")
    assert found == [SECRET, SECRET, "next"]
    assert google.paths == [PATH, PATH]


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (Answer.of({"error": SECRET}, 403), ConfigurationError, "may not read it"),
        (Answer.of({"error": SECRET}, 404), ConfigurationError, "no such secret or version"),
        (Answer.of({"error": SECRET}, 400), ConfigurationError, "disabled or destroyed"),
        (Answer.of({"error": SECRET}, 503), Unavailable, "status 503"),
        (payload(crc=1), Unavailable, "damaged"),
        (Answer(200, SECRET.encode()), Unavailable, "damaged"),
        (Answer.of({"payload": {"data": f"%{SECRET}"}}), Unavailable, "damaged"),
    ],
)
def test_a_refusal_names_the_reference_and_no_secret(
    google: RegistryServer, answer: Answer, error: type[KbqError], message: str
) -> None:
    google.override = answer
    with pytest.raises(error, match=message) as caught:
        secrets.resolve("KBQ_PII_KEYS", f"gsm:{NAME}")
    assert str(caught.value).startswith(f"KBQ_PII_KEYS refers to gsm:{NAME}: ")
    assert SECRET not in str(caught.value)


def test_nobody_answers_or_the_name_is_none() -> None:
    secrets.use_google("anonymous", "http://127.0.0.1:9")
    with pytest.raises(Unavailable, match="ConnectionError"):
        secrets.resolve("S", f"gsm:{NAME}")
    with pytest.raises(ConfigurationError, match="is not the name of a secret's version"):
        secrets.resolve("S", "gsm:projects/p/secrets/../versions/1")


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Install a plug-in `vault`."""

    def installed(function: Any) -> None:
        monkeypatch.setattr(EntryPoint, "load", lambda point: function)
        points = EntryPoints([EntryPoint("vault", "vault:read", secrets.GROUP)])
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points.select(group=group))

    return installed


def test_other_packages_bring_other_secrets(install: Callable[[Any], None]) -> None:
    install(lambda target: f"of {target}\n")
    assert secrets.resolve("S", "plugin:vault:kv/a:b") == "of kv/a:b"
    with pytest.raises(ConfigurationError, match=r"no package offers 'aws'.*\n.*available: vault"):
        secrets.resolve("S", "plugin:aws:x")


def test_what_a_plugin_says_in_its_errors_is_not_shown(install: Callable[[Any], None]) -> None:
    def fails(target: str) -> str:
        raise RuntimeError(SECRET)

    install(fails)
    with pytest.raises(Unavailable, match="vault does not answer: RuntimeError") as caught:
        secrets.resolve("S", "plugin:vault:x")
    assert SECRET not in str(caught.value)
    install(lambda target: SECRET.encode())
    with pytest.raises(Unavailable, match="returned no text"):
        secrets.resolve("S", "plugin:vault:x")


def test_a_plugin_that_waits_for_a_silent_server_ends_in_time(
    install: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secrets, "PLUGIN_SECONDS", 0.2)
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as silent:

        def asks(target: str) -> str:
            with socket.create_connection(silent.getsockname()[:2]) as connection:
                answer = connection.recv(100).decode()
            ended.set()
            return answer

        install(asks)
        with pytest.raises(Unavailable, match=r"vault does not answer: nothing came for 0\.2 s") as caught:
            secrets.resolve("KBQ_PII_KEYS", "plugin:vault:x")
        assert str(caught.value).startswith("KBQ_PII_KEYS refers to plugin:vault:x: ")
        silent.accept()[0].close()
    assert ended.wait(60)


def test_a_plugin_s_own_timeout_is_named_as_its_error(install: Callable[[Any], None]) -> None:
    def times_out(target: str) -> str:
        raise TimeoutError(SECRET)

    install(times_out)
    with pytest.raises(Unavailable, match="vault does not answer: TimeoutError"):
        secrets.resolve("S", "plugin:vault:x")
