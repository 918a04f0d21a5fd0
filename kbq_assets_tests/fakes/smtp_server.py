"""A mail server on a real socket: EHLO, STARTTLS, AUTH PLAIN, MAIL, RCPT, DATA, QUIT (RFC 5321, 3207, 4954)."""

from __future__ import annotations

import base64
import socketserver
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from kbq_assets_tests.fakes.serving import serving


@dataclass(frozen=True)
class Mail:
    """A mail as it was taken. ``encrypted``: over TLS; ``user``: who had logged in."""

    sender: str
    recipients: tuple[str, ...]
    data: str
    encrypted: bool
    user: str


@dataclass
class SmtpServer:
    """A running server. ``refusals`` are answers by command's first word, instead of the usual one."""

    port: int
    users: dict[str, str] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    mails: list[Mail] = field(default_factory=list)


@contextmanager
def smtp_server(context: ssl.SSLContext | None = None, *, tls_at_once: bool = False) -> Iterator[SmtpServer]:
    """Serve within the block. With a ``context``, STARTTLS is offered, or the connection is encrypted from the
    start."""

    class Handler(socketserver.StreamRequestHandler):
        def setup(self) -> None:
            self.encrypted = bool(context and tls_at_once)
            if context and tls_at_once:
                self.request = context.wrap_socket(self.request, server_side=True)
            super().setup()

        def handle(self) -> None:
            self.user, self.sender, self.recipients = "", "", list[str]()
            self._say("220 test")
            while line := self.rfile.readline().decode().rstrip("\r\n"):
                word = line.split()[0].upper()
                if word in served.refusals:
                    self._say(served.refusals[word])
                elif word == "QUIT":
                    return self._say("221 bye")
                else:
                    self._obey(word, line)

        def finish(self) -> None:
            super().finish()
            self.request.close()  # the server closes the one that TLS was wrapped around

        def _obey(self, word: str, line: str) -> None:
            if word == "EHLO":
                offers = ["test", *(["STARTTLS"] if context and not self.encrypted else []), "AUTH PLAIN"]
                for offer in offers[:-1]:
                    self._say(f"250-{offer}")
                self._say(f"250 {offers[-1]}")
            elif word == "STARTTLS":
                assert context is not None
                self._say("220 go on")
                self.request = context.wrap_socket(self.request, server_side=True)
                self.encrypted = True
                super().setup()
            elif word == "AUTH":
                _, user, password = base64.b64decode(line.split()[2]).decode().split("\0")
                self.user = user if served.users.get(user) == password else ""
                self._say("235 welcome" if self.user else f"535 {user} {password} is wrong")
            elif word == "MAIL":
                self.sender = _address(line)
                self._say("250 ok")
            elif word == "RCPT":
                self.recipients.append(_address(line))
                self._say("250 ok")
            elif word == "DATA":
                self._say("354 go on")
                self._take("".join(iter(lambda: self.rfile.readline().decode(), ".\r\n")))
                self._say("250 taken")
            else:
                self._say("250 ok")

        def _take(self, data: str) -> None:
            served.mails.append(Mail(self.sender, tuple(self.recipients), data, self.encrypted, self.user))

        def _say(self, text: str) -> None:
            self.wfile.write(f"{text}\r\n".encode())

    class Server(socketserver.ThreadingTCPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            """A client that does not trust the certificate hangs up."""

    server = Server(("127.0.0.1", 0), Handler)
    served = SmtpServer(server.server_address[1])
    with serving(server):
        yield served


def _address(line: str) -> str:
    return line.partition("<")[2].partition(">")[0]
