"""Every error that KBQ raises, in one tree.

::

    KbqError
    ├── ConfigurationError          fix the settings; nothing was changed
    │   ├── InvalidName             a topic, dataset or table name that KBQ cannot carry
    │   ├── UnknownVariables        `KBQ_*` variables that KBQ does not have
    │   ├── WrongOptions            a topic's options contradict its table or its records: the table waits
    │   └── UnsupportedFormat       a state object written by a newer KBQ
    ├── TransientError              retry; the next run continues
    │   ├── UnknownOutcome          a write that may or may not have happened: read again
    │   ├── Unavailable             broker, registry, store or warehouse out of reach
    │   │   └── AccessRefused       it refuses the credentials: only a person can help
    │   └── EngineEnded             the Spark application is gone: the next process starts another
    ├── StateError                  the stored state is not what the protocol allows: stop, check, fix
    │   ├── MissingState            a registered object is gone
    │   ├── CorruptState            an object cannot be read
    │   ├── OffsetOutOfRange        the broker no longer has a position, or has another log there
    │   ├── UnreadableBatch         a batch of the log that no reader can deliver
    │   └── SchemaChanged           the registry now has another schema under an id
    ├── ConflictError               somebody else was first
    │   ├── PreconditionFailed      a compare-and-swap lost
    │   └── JobAlreadyExists        a job id is taken
    ├── NotFound                    an object, job or table that does not exist
    ├── JobFailed                   a load job ended with an error
    ├── Refused                     an operator's command that would lose or double data
    ├── Defect                      an unexpected exception: only its unit, table or topic fails
    └── EncodingError               records or schemas that cannot be staged
        ├── UnstageableSchema       a writer schema that no staged file can have
        └── EncoderMisuse           a defect in KBQ: the encoder was called wrongly

Each names what happened, to which object, and the operator's next step (``next_step``).
"""

from __future__ import annotations

from typing import Final

#: The next step after a defect.
BUG: Final = "report a bug with the log of this run"


class KbqError(Exception):
    """Base of all errors raised on purpose. ``next_step`` tells the operator what to do."""

    def __init__(self, message: str, *, next_step: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step

    def __str__(self) -> str:
        return f"{self.message}\n  next: {self.next_step}" if self.next_step else self.message

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process borders (Spark tasks, Dagster steps): keyword arguments must survive pickling.
        return (_rebuild, (type(self), self.message, self.next_step), self.__dict__)


def _rebuild(cls: type[KbqError], message: str, next_step: str) -> KbqError:
    error = cls.__new__(cls)
    KbqError.__init__(error, message, next_step=next_step)
    return error


class ConfigurationError(KbqError):
    """A setting is missing, unknown or contradictory."""


class InvalidName(ConfigurationError):
    """A topic, dataset, table or file name that the naming rules cannot carry."""


class WrongOptions(ConfigurationError):
    """A topic's options contradict its table, its records, or another topic of the table."""


class UnsupportedFormat(ConfigurationError):
    """A state object has a higher ``format`` than this version understands."""


class TransientError(KbqError):
    """Nothing is lost; the same call, or the next run, may succeed."""


class UnknownOutcome(TransientError):
    """A write without a reply: it may apply now, later or never."""


class Unavailable(TransientError):
    """A remote system is out of reach or over its limits."""


class AccessRefused(Unavailable):
    """A remote system refuses the credentials. What waits for it continues once they are accepted, which takes a
    person."""


class EngineEnded(TransientError):
    """The backend that runs this process's tasks, such as its Spark application, has ended for good."""


def may_pass(error: Exception) -> bool:
    """Whether the same call may succeed later although nobody does anything."""
    return isinstance(error, TransientError) and not isinstance(error, AccessRefused)


class StateError(KbqError):
    """The stored state contradicts the protocol."""


class MissingState(StateError):
    """A registered state object does not exist (PROTOCOL E1, L6): never treated as empty."""


class CorruptState(StateError):
    """A state object cannot be parsed (PROTOCOL E1, L6)."""


class OffsetOutOfRange(StateError):
    """The broker does not have the position, or has another log there (PROTOCOL E2)."""


class UnreadableBatch(StateError):
    """The batch ``[first, until)`` cannot be read; everything before it has been delivered (PROTOCOL E10).

    ``reason`` is ``damaged_batch`` or ``oversized_batch``.
    """

    def __init__(
        self,
        message: str,
        *,
        reason: str = "damaged_batch",
        first: int = 0,
        until: int = 0,
        next_step: str = "",
    ) -> None:
        super().__init__(message, next_step=next_step)
        self.reason, self.first, self.until = reason, first, until


class SchemaChanged(StateError):
    """A schema id has another schema in the registry than when the topic's records were first read (PROTOCOL E12)."""


class ConflictError(KbqError):
    """Another writer was first."""


class PreconditionFailed(ConflictError):
    """A create or swap found a different generation from the one that it expected."""


class JobAlreadyExists(ConflictError):
    """A job id is taken: get the job and compare it (PROTOCOL L3)."""


class NotFound(KbqError):
    """An object, job, table or schema that does not exist."""


class JobFailed(KbqError):
    """A load job ended DONE with an error."""


class Refused(KbqError):
    """A command that would lose or double data without an explicit option."""


class Defect(KbqError):
    """An exception that KBQ did not expect. Only the unit, table or topic where it happened fails."""

    @classmethod
    def of(cls, error: Exception) -> KbqError:
        """The error itself if KBQ raised it on purpose, else a defect that names it."""
        if isinstance(error, KbqError):
            return error
        return cls(f"{type(error).__name__}: {error}", next_step=BUG)


class EncodingError(KbqError):
    """Records or schemas that cannot be staged."""


class UnstageableSchema(EncodingError):
    """A writer schema that cannot become a staged file; its records are ``UNSTAGEABLE_SCHEMA`` rejects."""


class EncoderMisuse(EncodingError):
    """The caller broke a precondition of the wire layer: a defect in KBQ, not in the data."""
