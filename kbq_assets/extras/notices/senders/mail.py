"""E-mail by SMTP."""

from __future__ import annotations

import smtplib
import socket
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime, make_msgid
from typing import Final

from kbq_assets.adapters.secrets import resolve
from kbq_assets.core.config.notices import SmtpSettings
from kbq_assets.core.errors import ConfigurationError, KbqError, Unavailable
from kbq_assets.extras.notices.model import Notice
from kbq_assets.extras.notices.senders.named import Named
from kbq_assets.extras.notices.senders.text import lines

TIMEOUT_SECONDS: Final = 10.0


@dataclass(frozen=True)
class MailNotifier(Named):
    """A mailbox."""

    smtp: SmtpSettings

    def send(self, notice: Notice) -> None:
        """Hand a mail to the server. Raises Unavailable, ConfigurationError."""
        username = resolve("KBQ_SMTP_USERNAME", self.smtp.username)
        password = resolve("KBQ_SMTP_PASSWORD", self.smtp.password)
        mail = compose(notice, self.smtp.sender, self.spec.target)
        try:
            with self._connect() as server:
                if username:
                    server.login(username, password)
                server.send_message(mail)
        except (OSError, smtplib.SMTPException) as error:  # SMTPException is an OSError
            raise self._error(error) from None

    def _connect(self) -> smtplib.SMTP:
        # A name of its own: the default asks the DNS, which may take longer than all the rest.
        where, name = (self.smtp.host, self.smtp.port), socket.gethostname()
        if self.smtp.security == "tls":
            return smtplib.SMTP_SSL(*where, name, timeout=TIMEOUT_SECONDS, context=self._context())
        server = smtplib.SMTP(*where, name, timeout=TIMEOUT_SECONDS)
        try:
            if self.smtp.security == "starttls":
                server.starttls(context=self._context())
        except BaseException:
            server.close()
            raise
        return server

    def _context(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=self.smtp.ca_file or None)
        except OSError:
            raise ConfigurationError(
                f"{self.smtp.ca_file} cannot be used", next_step="set KBQ_SMTP_CA_FILE to a readable PEM file"
            ) from None

    def _error(self, error: OSError) -> KbqError:
        """What went wrong, without the server's words: they may repeat what was sent."""
        server = f"the mail server {self.smtp.host}:{self.smtp.port}"
        code = _code(error)
        if isinstance(error, ssl.SSLCertVerificationError):
            return ConfigurationError(
                f"the certificate of {server} is not trusted: {error.verify_message}",
                next_step="set KBQ_SMTP_CA_FILE to the authorities that sign it, or mend KBQ_SMTP_HOST",
            )
        if isinstance(error, smtplib.SMTPNotSupportedError) or code >= 500:
            refused = f"code {code}" if code else "it lacks STARTTLS or a login"
            return ConfigurationError(
                f"{server} refuses the mail to {self.spec.target}: {refused}",
                next_step="mend KBQ_SMTP_* or the address, then kbq notify --test",
            )
        why = f"code {code}" if code else type(error).__name__
        return Unavailable(
            f"{server} does not take the mail to {self.spec.target}: {why}",
            next_step="it is tried again at the next look",
        )


def _code(error: OSError) -> int:
    """SMTP's code: 4xx may pass, 5xx does not. 0 without one."""
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return max(code for code, _ in error.recipients.values())
    return error.smtp_code if isinstance(error, smtplib.SMTPResponseException) else 0


def compose(notice: Notice, sender: str, recipient: str) -> EmailMessage:
    """A mail in plain text."""
    mail = EmailMessage()
    mail["Subject"] = f"[KBQ] {' '.join(notice.title.split())}"
    mail["From"] = sender
    mail["To"] = recipient
    mail["Date"] = format_datetime(datetime.fromtimestamp(notice.time_ms / 1000, UTC))
    mail["Message-ID"] = make_msgid(domain=sender.rpartition("@")[2])
    mail["Auto-Submitted"] = "auto-generated"  # no holiday replies: RFC 3834
    mail.set_content("\n".join([notice.title, "", *lines(notice)]) + "\n")
    return mail
