"""Personal data: a decision for each field, applied before anything is stored.

    keep            as it is
    drop            no column
    null            a column without values
    pseudonym       a keyed hash; `pseudonym:customer` sets the context: values of one context can be joined
    truncate:3      the first three characters
    generalise:year dates and times: year, month, day, hour; numbers: generalise:10, steps of ten; text: generalise:ip

The path `_key` is Kafka's key (keep or pseudonym), `_headers` the headers (keep).
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from kbq_assets.core.avro.tree import legal_name, word_name
from kbq_assets.core.errors import ConfigurationError

KEY: Final = "_key"
HEADERS: Final = "_headers"
ACTIONS: Final = ("keep", "drop", "null", "pseudonym", "truncate", "generalise")
#: The first bytes of sealed data (wire/privacy/sealing.py).
SEALED: Final = b"KBQS"
_OF_KEYS: Final = ("keep", "pseudonym")
_TIMES: Final = ("year", "month", "day", "hour")
#: Most digits of a number of characters or of a step.
_LONGEST: Final = 18
#: RFC 2104 recommends keys at least as long as the hash.
_KEY_BYTES: Final = 32


@dataclass(frozen=True)
class Decision:
    """The action for the field at ``path``, a dotted path through records and lists."""

    path: str
    action: str
    argument: str = ""

    @property
    def context(self) -> str:
        """The context of a pseudonym; by default the field's path."""
        return self.argument or self.path

    def __str__(self) -> str:
        return ":".join(filter(None, (self.path, self.action, self.argument)))


def parse_decisions(text: str) -> tuple[Decision, ...]:
    """Parse ``email:pseudonym,born:generalise:year``. Raises ConfigurationError."""
    decisions = [_decision(word) for word in text.split(",") if word]
    paths = [decision.path for decision in decisions]
    for path in paths:
        if paths.count(path) > 1 or any(other.startswith(f"{path}.") for other in paths):
            raise ConfigurationError(
                f"pii: two decisions about {path}", next_step="write one decision for each field"
            )
    return tuple(decisions)


def _decision(word: str) -> Decision:
    path, _, rest = word.partition(":")
    action, _, argument = rest.partition(":")
    if not path or action not in ACTIONS:
        raise ConfigurationError(
            f"pii: {word!r} is not a decision",
            next_step=f"field:action, with an action of {', '.join(ACTIONS)}",
        )
    allowed = {KEY: _OF_KEYS, HEADERS: ("keep",)}.get(path, ACTIONS)
    if action not in allowed:
        raise ConfigurationError(
            f"pii: {word!r}: {path} can be {' or '.join(allowed)}", next_step="choose one"
        )
    if not _fits(action, argument):
        raise ConfigurationError(
            f"pii: {word!r}: {action} does not take this argument", next_step=_ARGUMENTS[action]
        )
    return Decision(path, action, argument)


def _fits(action: str, argument: str) -> bool:
    is_number = argument.isascii() and argument.isdigit() and len(argument) <= _LONGEST and int(argument) > 0
    if action == "truncate":
        return is_number
    if action == "generalise":
        return is_number or argument in (*_TIMES, "ip")
    return action == "pseudonym" or not argument


_ARGUMENTS: Final[Mapping[str, str]] = {
    "truncate": "a number of characters, such as truncate:3",
    "generalise": f"one of {', '.join(_TIMES)}, ip, or a step, such as generalise:10",
    **dict.fromkeys(("keep", "drop", "null"), "no argument"),
}


def in_avro(decisions: Iterable[Decision]) -> tuple[Decision, ...]:
    """The decisions with the names that fields have in the Avro schemas of rows: ``größe`` is ``gr_u00f6_u00dfe``
    there, and ``e-mail`` is ``e_mail``. The context of a pseudonym stays."""
    return tuple(
        replace(
            each,
            path=avro_path(each.path),
            argument=each.context if each.action == "pseudonym" else each.argument,
        )
        for each in decisions
    )


def avro_path(path: str) -> str:
    """The path that a field has in the Avro schemas of rows."""
    return ".".join(legal_name(word_name(name)) for name in path.split("."))


def fields_of(decisions: Iterable[Decision]) -> list[str]:
    """The paths of decisions about fields of values."""
    return [decision.path for decision in decisions if decision.path not in (KEY, HEADERS)]


def undecided(paths: Iterable[str], decisions: Iterable[Decision]) -> list[str]:
    """The fields that have no decision, neither their own nor one for a containing field."""
    decided = [decision.path for decision in decisions]
    return [
        path for path in paths if not any(path == each or path.startswith(f"{each}.") for each in decided)
    ]


@dataclass(frozen=True)
class Pseudonyms:
    """Computes keyed hashes. ``keys`` are by id, with 32 bytes or more each; new hashes use the key ``current``."""

    current: str
    keys: Mapping[str, bytes] = field(repr=False)

    def of(self, context: str, value: bytes, key_id: str = "") -> str:
        """The pseudonym ``<key id>.<hash>``, where the hash is HMAC-SHA-256 of context and value, 43 characters of
        base64url. With one key, equal values in one context have equal hashes. Without the key, a hash reveals nothing
        else."""
        key_id = key_id or self.current
        # The length prefix keeps ("ab", "c") and ("a", "bc") distinct.
        message = len(context.encode()).to_bytes(4, "big") + context.encode() + value
        digest = hmac.digest(self.keys[key_id], message, "sha256")
        return f"{key_id}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"

    def under_each_key(self, context: str, value: bytes) -> Mapping[str, str]:
        """The pseudonyms of a value in a context under every key, by key id."""
        return {key_id: self.of(context, value, key_id) for key_id in self.keys}


def parse_keys(text: str) -> Pseudonyms:
    """Parse ``{"current": "2025", "keys": {"2025": "<base64>"}}``. Raises ConfigurationError that never shows a key."""
    try:
        document = json.loads(text)
        keys = {str(name): base64.b64decode(key, validate=True) for name, key in document["keys"].items()}
        current = str(document["current"])
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error):
        raise _bad_keys("the document has another form") from None  # a parser's message may quote a key
    if current not in keys:
        raise _bad_keys("the current key is missing")
    if any(len(key) < _KEY_BYTES for key in keys.values()) or any("." in name or not name for name in keys):
        raise _bad_keys(f"each needs {_KEY_BYTES} bytes or more, and an id without dots")
    return Pseudonyms(current, keys)


def with_new_key(text: str, name: str) -> str:
    """The key document with a new random key as the current one. An empty text counts as a document without keys.
    Raises ConfigurationError."""
    keys = dict(parse_keys(text).keys) if text else {}
    if name in keys:
        raise ConfigurationError(f"the key {name} exists already", next_step="give the new key another id")
    keys[name] = secrets.token_bytes(_KEY_BYTES)
    encoded = {key_id: base64.b64encode(key).decode() for key_id, key in keys.items()}
    made = json.dumps({"current": name, "keys": encoded}, indent=1) + "\n"
    parse_keys(made)  # checks the new id
    return made


def _bad_keys(why: str) -> ConfigurationError:
    return ConfigurationError(
        f"the keys of KBQ_PII_KEYS cannot be used: {why}",
        next_step='{"current": "2025", "keys": {"2025": "<base64 of 32 random bytes>"}}',
    )
