"""TLS as configured by librdkafka's options: authorities, a client certificate, and checks of the broker's."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field

from kbq_assets.core.errors import ConfigurationError


@dataclass(frozen=True)
class BrokerTls:
    """Files and checks of a TLS connection. ``ca_location`` is a file or folder of authorities; "": the machine's."""

    ca_location: str = ""
    ca_pem: str = field(default="", repr=False)
    certificate: str = ""
    key: str = ""
    key_password: str = field(default="", repr=False)
    verifies_certificate: bool = True
    verifies_host: bool = True

    def context(self) -> ssl.SSLContext:
        """The TLS context. Raises ConfigurationError for files that are unreadable or not certificates."""
        try:
            context = trust(self.ca_location, self.ca_pem)
            if self.certificate:
                # A function, since OpenSSL would ask at the terminal for a missing password.
                context.load_cert_chain(self.certificate, self.key or None, lambda: self.key_password)
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"the Kafka options ssl.*: {type(error).__name__}: {error}",
                next_step="check ssl.ca.location, ssl.certificate.location, ssl.key.location, ssl.key.password",
            ) from None
        context.check_hostname = self.verifies_host and self.verifies_certificate
        if not self.verifies_certificate:
            context.verify_mode = ssl.CERT_NONE
        return context


def trust(location: str, pem: str = "") -> ssl.SSLContext:
    """A context that trusts the authorities of a file or folder and of a text; the machine's if both are empty.

    Raises OSError or ValueError if they cannot be read.
    """
    is_folder = os.path.isdir(location)
    return ssl.create_default_context(
        cafile=None if is_folder else location or None,
        capath=location if is_folder else None,
        cadata=pem or None,
    )
