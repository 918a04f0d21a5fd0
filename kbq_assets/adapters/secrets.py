"""Resolves settings that refer to secrets (core/config/secret_references.py) in the process that uses them.

So no secret travels with the settings to Spark workers or into Dagster's run records. Secrets from other machines
are cached in memory for a few minutes, so a new version takes effect with that delay.

Packages may add sources: an entry point in the group `kbq_assets.secrets` is a function from the text after
`plugin:NAME:` to the secret.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kbq_assets.core.config.secret_references import is_reference
from kbq_assets.core.errors import ConfigurationError, KbqError, Unavailable

GROUP: Final = "kbq_assets.secrets"
#: Age after which a secret is read again.
MAX_AGE_SECONDS: Final = 300.0
#: Seconds until a plug-in must have returned a secret.
PLUGIN_SECONDS: Final = 60.0

_found: dict[str, tuple[float, str]] = {}
_google: dict[str, str] = {"credentials": "", "endpoint": ""}


def use_google(credentials: str, endpoint: str = "") -> None:
    """Set this process's identity and endpoint for Secret Manager, as in `GoogleAccess`."""
    _google.update(credentials=credentials, endpoint=endpoint)


def resolve(setting: str, value: str) -> str:
    """The secret that a setting refers to. A value that is not a reference is returned as it is. Raises
    ConfigurationError, Unavailable."""
    if not is_reference(value):
        return value
    kind, _, target = value.partition(":")
    if kind in ("env", "file"):
        return _local(setting, kind, target)
    now = time.monotonic()
    asked, secret = _found.get(value, (0.0, ""))
    if value not in _found or now - asked >= MAX_AGE_SECONDS:
        secret = _asked(setting, kind, target)
        _found[value] = (now, secret)
    return secret


def forget() -> None:
    _found.clear()


def _local(setting: str, kind: str, target: str) -> str:
    found = os.environ.get(target) if kind == "env" else _content(target)
    if found is None:
        is_variable = kind == "env"
        problem = f"environment variable {target} is not set" if is_variable else f"{target} cannot be read"
        raise ConfigurationError(
            f"{setting} refers to {kind}:{target}: {problem}",
            next_step=f"{'set it' if is_variable else 'make it readable'}, for this command and on every Spark worker",
        )
    return found


def _asked(setting: str, kind: str, target: str) -> str:
    try:
        return (_from_google(target) if kind == "gsm" else _from_plugin(target)).rstrip("\r\n")
    except KbqError as error:
        raise type(error)(
            f"{setting} refers to {kind}:{target}: {error.message}", next_step=error.next_step
        ) from None


def _from_google(name: str) -> str:
    # Imported here, because only references to Google need its libraries.
    from kbq_assets.adapters.google.auth import GoogleAccess
    from kbq_assets.adapters.google.secrets import read_secret

    return read_secret(name, GoogleAccess(_google["credentials"], _google["endpoint"]))


def _from_plugin(text: str) -> str:
    from importlib.metadata import entry_points  # this takes 9 ms

    name, _, target = text.partition(":")
    points = entry_points(group=GROUP)
    if name not in points.names:
        known = ", ".join(sorted(points.names)) or "none is installed"
        raise ConfigurationError(
            f"no package offers {name!r}",
            next_step=f"install one with an entry point {GROUP}; available: {known}",
        )
    why = "it returned no text"
    try:
        secret = _in_time(lambda: points[name].load()(target))
        if isinstance(secret, str):
            return secret
    except KbqError:
        raise
    except _NoAnswer:
        why = f"nothing came for {PLUGIN_SECONDS:g} s"
    except Exception as error:  # another package's message may contain the secret
        why = type(error).__name__
    raise Unavailable(f"{name} does not answer: {why}", next_step="see the package that provides it")


class _NoAnswer(Exception):
    """A plug-in did not return in time."""


def _in_time(ask: Callable[[], object]) -> object:
    """The result of a call that may wait forever. Raises _NoAnswer, and what the call raises."""
    from concurrent.futures import Future, wait  # this takes 4 ms, and few settings name plug-ins

    answer: Future[object] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:  # raised by `answer.result`
            answer.set_exception(error)

    # A daemon thread does not delay the end of the process.
    threading.Thread(target=run, name="kbq-secret", daemon=True).start()
    if not wait([answer], PLUGIN_SECONDS).done:
        raise _NoAnswer
    return answer.result()


def _content(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError):
        return None
