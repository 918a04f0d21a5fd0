"""What the wire layer raises: schemas and callers, never records (a bad record is a :class:`~kbq_assets.wire.reasons.Reason`)."""

from __future__ import annotations

from kbq_assets.core.errors import EncodingError


class WireError(EncodingError):
    """Base of the wire layer's errors."""


class UnstageableSchema(WireError):
    """A writer schema that cannot become a staged file: its records are error rows (``UNSTAGEABLE_SCHEMA``)."""


class EncoderMisuse(WireError):
    """The caller broke a precondition of the wire layer: a defect in KBQ, not in the data."""
