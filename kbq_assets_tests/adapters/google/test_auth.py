"""Google credentials: settings contain only a reference, and no error shows the secret."""

from __future__ import annotations

import json
import logging
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.auth import environment_vars
from google.auth.credentials import AnonymousCredentials
from google.auth.impersonated_credentials import Credentials as Impersonated

from kbq_assets.adapters.gcs import GcsObjectStore
from kbq_assets.adapters.google import secrets
from kbq_assets.adapters.google.auth import GoogleAccess, google_credentials, identity
from kbq_assets.adapters.google.clients import storage_client
from kbq_assets.adapters.google.secrets import read_secret
from kbq_assets.core.config.locations import Bucket
from kbq_assets.core.errors import ConfigurationError, Unavailable
from kbq_assets.extras.doctor.google_questions import CloudStorageQuestions
from kbq_assets_tests.fakes.serving import QuietHandler, serving
from kbq_assets_tests.fixtures.variables import Variables

EMAIL = "loader@my-project.iam.gserviceaccount.com"


@pytest.fixture(scope="module")
def private_key() -> str:
    """A key of no account."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


@pytest.fixture
def key_file(tmp_path: Path, private_key: str) -> Path:
    path = tmp_path / "key.json"
    content = {
        "type": "service_account",
        "project_id": "my-project",
        "private_key_id": "0",
        "private_key": private_key,
        "client_email": EMAIL,
        "token_uri": "http://127.0.0.1:1/token",
    }
    path.write_text(json.dumps(content))
    return path


@pytest.fixture(autouse=True)
def google_environment(variables: Variables, tmp_path: Path) -> Variables:
    """Hides the developer's credentials, and disables the metadata server."""
    variables.pop(environment_vars.CREDENTIALS, None)
    variables.pop(environment_vars.GOOGLE_CLOUD_QUOTA_PROJECT, None)
    variables[environment_vars.CLOUD_SDK_CONFIG_DIR] = str(tmp_path / "gcloud")
    variables["NO_GCE_CHECK"] = "true"
    return variables


def test_a_key_file_is_the_account_it_names(key_file: Path) -> None:
    found = google_credentials(GoogleAccess(f"file:{key_file}"))
    assert identity(found) == EMAIL


def test_anonymous_is_nobody() -> None:
    found = google_credentials(GoogleAccess("anonymous"))
    assert isinstance(found, AnonymousCredentials)
    assert identity(found) == "anonymous"


def test_nothing_set_is_the_applications_default(key_file: Path, google_environment: Variables) -> None:
    google_environment[environment_vars.CREDENTIALS] = str(key_file)
    assert identity(google_credentials(GoogleAccess())) == EMAIL


class GoogleServer(QuietHandler):
    """The metadata server of a machine of Google Cloud, and a token server that refuses every key."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        token = {"access_token": "token", "expires_in": 3600, "token_type": "Bearer"}
        account = {"email": EMAIL, "scopes": [], "aliases": ["default"]}
        if path.endswith("/project-id"):
            self._answer(200, b"my-project", "application/text")
        else:
            self._answer(200, json.dumps(token if path.endswith("/token") else account).encode())

    def do_POST(self) -> None:
        self._answer(400, b'{"error": "invalid_grant", "error_description": "Invalid JWT Signature."}')

    def _answer(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Metadata-Flavor", "Google")
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def google_server(post: Callable[[GoogleServer], None] = GoogleServer.do_POST) -> Iterator[str]:
    """Host and port of a `GoogleServer` that answers a POST by ``post``."""
    handler = type("Handler", (GoogleServer,), {"do_POST": post})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    with serving(server):
        yield f"127.0.0.1:{server.server_port}"


@pytest.fixture
def google() -> Iterator[str]:
    """Host and port of a `GoogleServer`."""
    with google_server() as found:
        yield found


def test_a_machine_of_google_cloud_is_the_account_that_it_runs_as(tmp_path: Path, google: str) -> None:
    code = (
        "from kbq_assets.adapters.google.auth import *\nprint(identity(google_credentials(GoogleAccess())))"
    )
    # Where the metadata server is, is read when the library is imported.
    environ = {"GCE_METADATA_HOST": google, "GCE_METADATA_IP": google, "CLOUDSDK_CONFIG": str(tmp_path)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.strip() == EMAIL


def test_impersonation_starts_from_the_applications_default(
    key_file: Path, google_environment: Variables
) -> None:
    google_environment[environment_vars.CREDENTIALS] = str(key_file)
    found = google_credentials(GoogleAccess("impersonate:extractor@my-project.iam.gserviceaccount.com"))
    assert isinstance(found, Impersonated)
    assert identity(found) == "extractor@my-project.iam.gserviceaccount.com"


@pytest.mark.parametrize("kind", ["file", "default", "impersonate"])
def test_the_quota_project_is_googles_own_variable(
    key_file: Path, google_environment: Variables, kind: str
) -> None:
    google_environment[environment_vars.CREDENTIALS] = str(key_file)
    google_environment[environment_vars.GOOGLE_CLOUD_QUOTA_PROJECT] = "payer"
    reference = {"file": f"file:{key_file}", "default": "", "impersonate": f"impersonate:{EMAIL}"}[kind]
    assert google_credentials(GoogleAccess(reference)).quota_project_id == "payer"


def test_without_default_credentials_the_ways_to_give_some_are_reported() -> None:
    with pytest.raises(ConfigurationError, match="no Application Default Credentials") as caught:
        google_credentials(GoogleAccess())
    assert "KBQ_LOAD_CREDENTIALS" in caught.value.next_step


class DrippingServer(QuietHandler):
    """Each byte is in time for a limit per read."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        with suppress(OSError):  # the client has given up
            for _ in range(60):
                self.wfile.write(b" ")
                time.sleep(0.05)


def test_a_secret_that_arrives_byte_by_byte_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "_TIMEOUT", (10.0, 0.5))
    server = ThreadingHTTPServer(("127.0.0.1", 0), DrippingServer)
    with serving(server):
        access = GoogleAccess("anonymous", f"http://127.0.0.1:{server.server_port}")
        # A whole response would be "damaged".
        with pytest.raises(Unavailable, match=r"ConnectionError|Timeout"):
            read_secret("projects/p/secrets/s/versions/1", access)


@pytest.mark.parametrize("reference", ["", f"impersonate:{EMAIL}"])
@pytest.mark.parametrize(
    "content",
    ["[]", "null", '"hunter2"', '{"type": "impersonated_service_account", "hunter2": 1}'],
)
def test_default_credentials_of_another_shape_are_refused_without_quoting_them(
    tmp_path: Path, google_environment: Variables, content: str, reference: str
) -> None:
    (tmp_path / "default.json").write_text(content)
    google_environment[environment_vars.CREDENTIALS] = str(tmp_path / "default.json")
    with pytest.raises(ConfigurationError, match="Default Credentials cannot be used") as caught:
        google_credentials(GoogleAccess(reference))
    assert caught.value.__context__ is None  # a traceback would print it
    assert "hunter2" not in str(caught.value)


def test_a_folder_is_no_default_credentials(tmp_path: Path, google_environment: Variables) -> None:
    google_environment[environment_vars.CREDENTIALS] = str(tmp_path)
    with pytest.raises(ConfigurationError, match="Is a directory"):
        google_credentials(GoogleAccess())


@pytest.mark.parametrize(
    "body", [b"<html>Please sign in</html>", b"", b"[]", b'{"access_token": "x", "expires_in": "soon"}']
)
def test_another_server_in_place_of_the_token_server_is_unavailable(key_file: Path, body: bytes) -> None:
    with google_server(lambda handler: handler._answer(200, body, "text/html")) as google:
        key_file.write_text(
            json.dumps({**json.loads(key_file.read_text()), "token_uri": f"http://{google}/token"})
        )
        access = GoogleAccess(f"file:{key_file}", f"http://{google}")
        store = GcsObjectStore(storage_client(access, "p"), "bucket", pauses=())
        for call in (
            lambda: store.get("a"),
            lambda: read_secret("projects/p/secrets/s/versions/1", access),
            lambda: CloudStorageQuestions(access, Bucket("bucket", ""), 1.0).location(),
        ):
            with pytest.raises(Unavailable):
                call()


@pytest.mark.parametrize(
    "content",
    [
        b'{"type": "service_account", "private_key": "hunter2"}',
        b'{"type": "authorized_user", "refresh_token": "hunter2"}',
        b'["hunter2"]',
        b"hunter2",
        b"\xff hunter2",
        b"",
    ],
)
def test_a_file_that_is_no_key_is_refused_without_quoting_it(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    path = tmp_path / "key.json"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match="not a service account's key") as caught:
        google_credentials(GoogleAccess(f"file:{path}"))
    assert caught.value.__context__ is None  # a traceback would print it
    assert "hunter2" not in str(caught.value) + caplog.text


def test_a_key_that_cannot_be_parsed_is_refused_without_quoting_it(key_file: Path) -> None:
    content = json.loads(key_file.read_text())
    content["private_key"] = "-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----\n"
    key_file.write_text(json.dumps(content))
    with pytest.raises(ConfigurationError, match="not a service account's key") as caught:
        google_credentials(GoogleAccess(f"file:{key_file}"))
    assert "hunter2" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.json: No such file"):
        google_credentials(GoogleAccess(f"file:{tmp_path / 'none.json'}"))


@pytest.mark.parametrize("value", ["hunter2", "file:", "impersonate:", '{"private_key": "hunter2"}'])
def test_what_is_no_reference_is_refused_without_echoing_it(value: str) -> None:
    with pytest.raises(ConfigurationError, match="must be a reference") as caught:
        google_credentials(GoogleAccess(value))
    assert "hunter2" not in str(caught.value)


def test_no_secret_travels_or_shows(key_file: Path, private_key: str) -> None:
    access = GoogleAccess(f"file:{key_file}")
    found = google_credentials(access)
    lines = private_key.splitlines()[1:-1]
    shown = repr(access) + repr(found) + str(found) + pickle.dumps(access).decode("latin-1")
    assert [line for line in lines if line in shown] == []


def with_token_uri(key_file: Path, uri: str, seconds: float) -> CloudStorageQuestions:
    key_file.write_text(json.dumps({**json.loads(key_file.read_text()), "token_uri": uri}))
    return CloudStorageQuestions(GoogleAccess(f"file:{key_file}"), Bucket("bucket", ""), seconds)


def test_an_account_that_google_refuses_is_reported_with_what_to_check(key_file: Path, google: str) -> None:
    with pytest.raises(ConfigurationError, match="not accepted: invalid_grant: Invalid JWT") as caught:
        with_token_uri(key_file, f"http://{google}/token", 60.0).location()
    assert "serviceAccountTokenCreator" in caught.value.next_step


def test_a_token_server_out_of_reach_is_no_wrong_credential(key_file: Path) -> None:
    with pytest.raises(Unavailable, match="Connection refused"):
        with_token_uri(key_file, "http://127.0.0.1:1/token", 0.1).location()
