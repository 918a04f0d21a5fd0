"""Settings of file batches (PROTOCOL, Batches of files)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kbq_assets.core.config.variables import Variable, choice, place, variable, whole
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.filebatches.destinations import DEFAULT_REGEX, compile_regex

#: Google's tool accepts what Python's `strtobool` accepts.
_TRUE: Final = ("true", "yes", "y", "on", "t", "1")
_FALSE: Final = ("false", "no", "n", "off", "f", "0")


def _flag(variable: Variable, value: str) -> bool:
    if value.lower() not in (*_TRUE, *_FALSE):
        raise ConfigurationError(f"{variable.name}: unknown value {value!r}", next_step="use true or false")
    return value.lower() in _TRUE


def _name(variable: Variable, value: str) -> str:
    if "/" in value:
        raise ConfigurationError(
            f"{variable.name} is the name of an object, not a path", next_step=variable.help
        )
    return value


def _regex(variable: Variable, value: str) -> str:
    compile_regex(value, variable.name)
    return value


@dataclass(frozen=True)
class FileBatchSettings:
    """Where file batches arrive, and the rules by which they are applied. Names (after `KBQ_FILES_`) and defaults are
    those of Google's `gcs_event_based_ingest`."""

    location: str = variable(
        "KBQ_FILES",
        "place of [batches of files](file-batches.md): a folder or gs://bucket/prefix",
        "",
        place,
        shown_default="none",
    )
    success: str = variable(
        "KBQ_FILES_SUCCESS_FILENAME",
        "name of the object that makes its directory a batch",
        "_SUCCESS",
        _name,
    )
    destination_regex: str = variable(
        "KBQ_FILES_DESTINATION_REGEX",
        "regular expression that extracts the table from a batch's path, with groups dataset and table",
        DEFAULT_REGEX,
        _regex,
        shown_default="Google's",
    )
    order_per_table: bool = variable(
        "KBQ_FILES_ORDER_PER_TABLE", "order the batches of all tables by path: true or false", False, _flag
    )
    start_backfill: str = variable(
        "KBQ_FILES_START_BACKFILL_FILENAME",
        "ordered batches wait for an object of this name in the table's directory, such as _HISTORYDONE",
        "",
        _name,
        shown_default="none",
    )
    wait_for_validation: bool = variable(
        "KBQ_FILES_WAIT_FOR_VALIDATION",
        "after each ordered batch, wait for a new `_BACKFILL` in the table's directory: true or false",
        False,
        _flag,
    )
    fail_on_zero: bool = variable(
        "KBQ_FILES_FAIL_ON_ZERO_DML_ROWS_AFFECTED",
        "whether a statement that changes no row fails: true or false",
        True,
        _flag,
    )
    views: bool = variable(
        "KBQ_FILES_VIEWS",
        "write `_backlog/` and `_bqlock` next to ordered batches, and treat `_BACKFILL` as a decision: true or false",
        False,
        _flag,
    )
    on_reupload: str = variable(
        "KBQ_FILES_ON_REUPLOAD",
        "what to do if an applied batch is uploaded again: apply (again) or refuse",
        "refuse",
        choice("apply", "refuse"),
    )
    on_late: str = variable(
        "KBQ_FILES_ON_LATE",
        "what to do with an ordered batch that sorts before the last applied one: apply or park",
        "apply",
        choice("apply", "park"),
    )
    max_wait_seconds: int = variable(
        "KBQ_FILES_MAX_WAIT_SECONDS",
        "report a batch of files that waits longer than this after its upload; 0: never",
        7_200,
        whole(),
    )
