"""Login messages: the examples in the RFCs, and brokers that send something else."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Iterable

import pytest

from kbq_assets.adapters.kafka.fetch.errors import AuthenticationRefused
from kbq_assets.adapters.kafka.fetch.sasl import MECHANISMS, Login, log_in

#: RFC 7677, section 3: what a client named ``user`` with the password ``pencil`` sends and gets.
RFC_NONCE = "rOprNGfwEbeRWgbNEkqO"
RFC_SENT = [
    b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
]
RFC_ANSWERS = [
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
    b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
]
PENCIL = Login("SCRAM-SHA-256", "user", "pencil")


class Broker:
    """Notes what a client sends, and gives its answers in order; the last is ``b""``."""

    def __init__(self, answers: Iterable[bytes] = ()) -> None:
        self.sent: list[bytes] = []
        self._answers = list(answers)

    def __call__(self, message: bytes) -> bytes:
        self.sent.append(message)
        return self._answers.pop(0) if self._answers else b""


class ScramServer:
    """The server side of RFC 5802: checks a password, and proves that it has it too."""

    def __init__(self, algorithm: str, password: str) -> None:
        self._algorithm, self._salt, self._iterations = algorithm, b"salt", 4096
        self._salted = hashlib.pbkdf2_hmac(algorithm, password.encode(), b"salt", 4096)
        self._first = self._challenge = ""
        self.username: str | None = None
        self.accepts = False

    def __call__(self, message: bytes) -> bytes:
        return self._answer(message.decode()).encode()

    def _answer(self, message: str) -> str:
        if not self._first:
            self._first = message.removeprefix("n,,")
            name, nonce = self._first.removeprefix("n=").split(",r=")
            self.username = name.replace("=2C", ",").replace("=3D", "=")
            salt = base64.b64encode(self._salt).decode()
            self._challenge = f"r={nonce}more,s={salt},i={self._iterations}"
            return self._challenge
        bare, _, proof = message.partition(",p=")
        signed = ",".join((self._first, self._challenge, bare)).encode()
        stored = hashlib.new(self._algorithm, self._hmac(self._salted, b"Client Key")).digest()
        signature = self._hmac(stored, signed)
        key = bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True))
        self.accepts = hashlib.new(self._algorithm, key).digest() == stored
        server_key = self._hmac(self._salted, b"Server Key")
        return "v=" + base64.b64encode(self._hmac(server_key, signed)).decode()

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._algorithm)


def test_the_mechanisms_are_those_of_kafka() -> None:
    assert {"PLAIN", "OAUTHBEARER", "SCRAM-SHA-256", "SCRAM-SHA-512"} == MECHANISMS


@pytest.mark.parametrize(
    ("username", "password", "message"),
    [
        ("tim", "tanstaaftanstaaf", b"\0tim\0tanstaaftanstaaf"),
        ("", "", b"\0\0"),
        ("é", "p,=", b"\0\xc3\xa9\0p,="),
    ],
    ids=["RFC 4616", "empty", "UTF-8, nothing escaped"],
)
def test_plain_is_one_message(username: str, password: str, message: bytes) -> None:
    broker = Broker()
    log_in(Login("PLAIN", username, password), broker)
    assert broker.sent == [message]


def test_scram_sends_what_the_rfc_sends() -> None:
    broker = Broker(RFC_ANSWERS)
    log_in(PENCIL, broker, RFC_NONCE)
    assert broker.sent == RFC_SENT


def test_scram_signs_a_challenge_with_extensions_as_it_came() -> None:
    broker = Broker([RFC_ANSWERS[0] + b",x=later"])
    with pytest.raises(AuthenticationRefused, match="does not know"):
        log_in(PENCIL, broker, RFC_NONCE)
    assert broker.sent[1].startswith(RFC_SENT[1].partition(b",p=")[0])
    assert broker.sent[1] != RFC_SENT[1], "the challenge is signed whole"


@pytest.mark.parametrize(
    ("mechanism", "algorithm"), [("SCRAM-SHA-256", "sha256"), ("SCRAM-SHA-512", "sha512")]
)
@pytest.mark.parametrize(
    ("username", "password"), [("me", "open-sesame"), ("a,b=c=2C", ""), ("ünï", "pässwörd"), ("", "x" * 200)]
)
def test_a_server_and_a_client_with_one_password_agree(
    mechanism: str, algorithm: str, username: str, password: str
) -> None:
    server = ScramServer(algorithm, password)
    log_in(Login(mechanism, username, password), server)
    assert (server.username, server.accepts) == (username, True)


def test_every_login_has_a_nonce_of_its_own() -> None:
    brokers = [Broker(), Broker()]
    for broker in brokers:
        with pytest.raises(AuthenticationRefused):
            log_in(PENCIL, broker)
    nonces = [broker.sent[0].partition(b",r=")[2] for broker in brokers]
    assert nonces[0] != nonces[1]
    assert min(map(len, nonces)) >= 32


@pytest.mark.parametrize(
    ("challenge", "message"),
    [
        (b"", "does not parse"),
        (b"\xff\xfe", "does not parse"),
        (b"e=unknown-user", "does not parse"),
        (b"r=abcx,i=4096", "does not parse"),
        (b"s=c2FsdA==,i=4096", "does not parse"),
        (b"r=abcx,s=c2FsdA==", "does not parse"),
        (b"r=abcx,s=c2FsdA==,i=", "does not parse"),
        (b"r=abcx,s=c2FsdA==,i=4096.0", "does not parse"),
        (b"r=abcx,s=c2FsdA==,i=" + b"9" * 5000, "does not parse"),
        (b"r=abcx,s=c2Fsd,i=4096", "does not parse"),
        (b"r=abcx,s=c2Fs dA==,i=4096", "does not parse"),
        ("r=abcx,s=ß,i=4096".encode(), "does not parse"),
        (b"r=abx,s=c2FsdA==,i=4096", "not trustworthy"),
        (b"r=,s=c2FsdA==,i=4096", "not trustworthy"),
        (b"r=abcx,s=c2FsdA==,i=4095", "not trustworthy"),
        (b"r=abcx,s=c2FsdA==,i=0", "not trustworthy"),
        (b"r=abcx,s=c2FsdA==,i=-4096", "not trustworthy"),
        (b"r=abcx,s=c2FsdA==,i=10000000", "not trustworthy"),
    ],
    ids=lambda part: part[:40].decode(errors="replace") if isinstance(part, bytes) else "",
)
def test_a_challenge_that_cannot_be_gets_no_proof(challenge: bytes, message: str) -> None:
    broker = Broker([challenge])
    with pytest.raises(AuthenticationRefused, match=message) as raised:
        log_in(PENCIL, broker, "abc")
    assert len(broker.sent) == 1
    assert "pencil" not in str(raised.value)


@pytest.mark.parametrize(
    "last",
    [
        b"",
        b"e=invalid-proof",
        b"v=",
        b"v=\xff",
        RFC_ANSWERS[1][:-1],
        RFC_ANSWERS[1] + b"=",
        b"V" + RFC_ANSWERS[1][1:],
    ],
    ids=repr,
)
def test_a_broker_that_does_not_prove_the_password_is_refused(last: bytes) -> None:
    with pytest.raises(AuthenticationRefused, match="does not know the password"):
        log_in(PENCIL, Broker([RFC_ANSWERS[0], last]), RFC_NONCE)


@pytest.mark.parametrize(
    ("extensions", "message"),
    [
        ((), b"n,,\x01auth=Bearer a.b.c\x01\x01"),
        ((("x", "1"), ("y", "2")), b"n,,\x01auth=Bearer a.b.c\x01x=1\x01y=2\x01\x01"),
    ],
    ids=["a token alone", "with extensions"],
)
def test_a_token_is_sent_as_rfc_7628_says(extensions: tuple[tuple[str, str], ...], message: bytes) -> None:
    broker = Broker()
    log_in(Login("OAUTHBEARER", token=lambda: "a.b.c", extensions=extensions), broker)
    assert broker.sent == [message]


def test_a_refused_token_is_acknowledged_so_that_the_broker_says_why() -> None:
    class Explains(Broker):
        def __call__(self, message: bytes) -> bytes:
            if super().__call__(message):
                return b"{}"
            raise AuthenticationRefused("expired")

    broker = Explains([b"{}"])
    with pytest.raises(AuthenticationRefused, match="expired"):
        log_in(Login("OAUTHBEARER", token=lambda: "a.b.c"), broker)
    assert broker.sent[1] == b"\x01"


def test_an_error_of_the_token_is_the_callers_and_nothing_is_sent() -> None:
    def token() -> str:
        raise LookupError("no token")

    broker = Broker()
    with pytest.raises(LookupError, match="no token"):
        log_in(Login("OAUTHBEARER", token=token), broker)
    assert broker.sent == []


@pytest.mark.parametrize(
    "login",
    [Login("PLAIN", "me", "open-sesame"), Login("OAUTHBEARER", token=lambda: "open-sesame")],
    ids=["", ""],
)
def test_a_login_never_shows_its_secret(login: Login) -> None:
    assert "open-sesame" not in repr(login)
    secret: Callable[[], str] = login.token
    assert repr(secret) not in repr(login)
