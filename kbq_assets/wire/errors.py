"""What the wire layer raises about schemas and callers. A bad record raises nothing: it gets a ``Reason``."""

from __future__ import annotations

from kbq_assets.core.errors import EncodingError


class WireError(EncodingError):
    """Base of the wire layer's errors."""


class UnstageableSchema(WireError):
    """A writer schema that cannot become a staged file; its records are ``UNSTAGEABLE_SCHEMA`` rejects."""


class EncoderMisuse(WireError):
    """The caller broke a precondition of the wire layer: a defect in KBQ, not in the data."""
