"""Google credentials. Settings contain only a reference; the client reads the secret when it opens.

    ""                     Application Default Credentials
    file:PATH              a service account's key, as JSON
    impersonate:EMAIL      a service account that the Application Default Credentials may impersonate
    anonymous              no credentials, for local servers

Google's own `GOOGLE_CLOUD_QUOTA_PROJECT` sets the project that is billed.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Final

import google.auth
from google.auth import compute_engine, exceptions, impersonated_credentials
from google.auth.credentials import AnonymousCredentials, Credentials
from google.auth.transport.requests import Request
from google.oauth2 import service_account

from kbq_assets.core.errors import ConfigurationError, Unavailable

#: IAM roles limit what an identity may do, so the scope is not narrower.
SCOPES: Final = ("https://www.googleapis.com/auth/cloud-platform",)
#: google-auth and Google's clients raise these for a response of another server, such as a proxy: HTML for a token, an
#: empty body, or JSON of another shape.
UNREADABLE: Final = (AttributeError, LookupError, RecursionError, TypeError, ValueError)
_PASSES: Final = "check the network, then run again"
#: The longest lifetime that needs no organization policy. Tokens are renewed automatically.
_LIFETIME_SECONDS: Final = 3600


@dataclass(frozen=True)
class GoogleAccess:
    """Identity and endpoint. ``credentials`` is a reference. ``endpoint`` is another server's URL, "" for Google's.
    ``kms_key`` encrypts new data, and streamed files get ``storage_class``; "" leaves both to the destination."""

    credentials: str = ""
    endpoint: str = ""
    kms_key: str = ""
    storage_class: str = ""


def may_get_token(error: Exception) -> bool:
    """Whether a refused or failed request for an access token may succeed later."""
    return isinstance(error, exceptions.TransportError) or bool(getattr(error, "retryable", False))


def google_credentials(access: GoogleAccess) -> Credentials:
    """The credentials of an access. Raises ConfigurationError, which never shows the secret, or Unavailable."""
    kind, _, target = access.credentials.partition(":")
    if access.credentials == "anonymous":
        return AnonymousCredentials()
    if access.credentials == "":
        return _default()
    if kind == "file" and target:
        return _from_file(target)
    if kind == "impersonate" and target:
        return _impersonated(target)
    # The value may be the secret itself.
    raise ConfigurationError(
        "Google credentials must be a reference",
        next_step="use file:PATH, impersonate:EMAIL, anonymous, or leave it empty",
    )


def identity(credentials: Credentials) -> str:
    """The owner of the credentials: an email address, or the kind of credentials if the address is unknown."""
    if isinstance(credentials, compute_engine.Credentials):
        with contextlib.suppress(exceptions.GoogleAuthError, OSError, *UNREADABLE):
            credentials.refresh(Request())  # the metadata server names the account only after a refresh
    email = getattr(credentials, "service_account_email", None) or getattr(credentials, "signer_email", None)
    if email and email != "default":
        return str(email)
    return "anonymous" if isinstance(credentials, AnonymousCredentials) else "Application Default Credentials"


def _default() -> Credentials:
    reason = ""
    try:
        found, _ = google.auth.default(scopes=SCOPES)
    except exceptions.TransportError as error:
        raise Unavailable(
            f"the Application Default Credentials get no token: {type(error).__name__}", next_step=_PASSES
        ) from error
    except exceptions.DefaultCredentialsError as error:
        raise ConfigurationError(
            "there are no Application Default Credentials",
            next_step="run gcloud auth application-default login, or set KBQ_EXTRACT_CREDENTIALS and "
            "KBQ_LOAD_CREDENTIALS to file:PATH",
        ) from error
    except (exceptions.GoogleAuthError, OSError, *UNREADABLE) as error:
        reason = (isinstance(error, OSError) and error.strerror) or type(error).__name__
    if reason:  # the error's message may quote the file
        raise ConfigurationError(
            f"the Application Default Credentials cannot be used: {reason}",
            next_step="check the file in GOOGLE_APPLICATION_CREDENTIALS, or run gcloud auth application-default login",
        )
    return found


def _from_file(path: str) -> Credentials:
    reason = ""
    try:
        found = service_account.Credentials.from_service_account_file(path, scopes=SCOPES)
    except OSError as error:
        reason = error.strerror or "it cannot be read"
    except (ValueError, KeyError, TypeError, AttributeError, exceptions.GoogleAuthError):
        # The error's message may quote the file.
        reason = "it is not a service account's key"
    if reason:
        raise ConfigurationError(
            f"Google credentials {path}: {reason}",
            next_step="the client needs the file on the driver and on every Spark worker",
        )
    charged: Credentials = found.with_quota_project_from_environment()
    return charged


def _impersonated(email: str) -> Credentials:
    found = impersonated_credentials.Credentials(
        source_credentials=_default(),
        target_principal=email,
        target_scopes=list(SCOPES),
        lifetime=_LIFETIME_SECONDS,
    )
    charged: Credentials = found.with_quota_project_from_environment()
    return charged
