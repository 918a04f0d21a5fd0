"""Each reason to wait names exactly the commands that end it."""

from __future__ import annotations

import pytest

from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.protocol.waits import (
    DECISIONS,
    NO_BAD_RECORD,
    UNREADABLE,
    ParkReason,
    StopReason,
    next_lines,
    park_commands,
    stop_commands,
)

TP = TopicPartition("shop.orders", 3)
TABLE = TableReference("d", "t")
AT = "--topic shop.orders --partition 3"
#: The reasons that a commit keeps: found while a range was read.
KEPT = [
    StopReason.UNKNOWN_SCHEMA, StopReason.UNSTAGEABLE_SCHEMA, StopReason.ERROR_SHARE, StopReason.BAD_RECORD,
    StopReason.TABLE_TRUNCATED, StopReason.SCHEMA_CHANGED, StopReason.DAMAGED_BATCH,
    StopReason.OVERSIZED_BATCH, StopReason.LOG_CHANGED, StopReason.TASK_DIED, StopReason.FAILED,
]  # fmt: skip


@pytest.mark.parametrize(
    ("reason", "other"),
    [
        ("unknown_schema", f"kbq resume {AT} --as-errors"),
        ("unstageable_schema", f"kbq resume {AT} --as-errors"),
        ("error_share", f"kbq resume {AT} --as-errors"),
        ("bad_record", f"kbq resume {AT} --as-errors"),
        ("table_truncated", f"kbq resume {AT} --as-errors"),
        ("schema_changed", "kbq resume --topic shop.orders --new-schemas"),
        ("damaged_batch", f"kbq accept-gap {AT}"),
        ("oversized_batch", f"kbq accept-gap {AT}"),
        ("log_changed", f"kbq reset {AT}"),
        ("task_died", ""),
        ("failed", ""),
    ],
)
def test_a_stopped_partition_can_be_read_again_or_otherwise(reason: str, other: str) -> None:
    assert stop_commands(reason, TP) == (f"kbq resume {AT}", *([other] if other else []))


@pytest.mark.parametrize("reason", KEPT)
def test_records_become_error_rows_only_if_one_is_to_blame(reason: StopReason) -> None:
    offers_errors = any("--as-errors" in command for command in stop_commands(reason, TP))
    assert offers_errors is (reason not in NO_BAD_RECORD)
    assert UNREADABLE <= NO_BAD_RECORD


def test_a_reason_of_a_newer_release_has_a_way_back_too() -> None:
    assert stop_commands("of_tomorrow", TP)[0] == f"kbq resume {AT}"
    assert park_commands(TABLE, "of_tomorrow") == ("kbq resume --table d.t",)


RESUME, ADOPT = "kbq resume --table d.t", "kbq adopt --table d.t"
RETRY, CONTINUE, RELEASE = "kbq order retry d.t", "kbq order continue d.t", "kbq order release d.t"
SKIP, SKIP_7 = "kbq order skip d.t --batch B --reason TEXT", "kbq order skip d.t --batch 7 --reason TEXT"
RESTAGE = "kbq restage FILE"


@pytest.mark.parametrize(
    ("reason", "plain", "with_failed_batch"),
    [
        ("incompatible_schema", (RESUME,), (RETRY, SKIP_7)),
        ("wrong_options", (RESUME,), (RETRY, SKIP_7)),
        ("load_failed", (RESUME, f"{RESUME} --to-quarantine"), (RETRY, SKIP_7)),
        ("missing_files", (RESUME, RESTAGE), (RETRY, RESTAGE, SKIP_7)),
        ("damaged_files", (RESUME, RESTAGE), (RETRY, RESTAGE, SKIP_7)),
        ("foreign_job", (RESUME,), (RETRY, SKIP_7)),
        ("old_flight", (RESUME,), (RETRY, SKIP_7)),
        ("foreign_rows", (ADOPT,), (ADOPT,)),
        ("table_gone", (RESUME, ADOPT), (RESUME, ADOPT)),
        ("batch_failed", (RETRY, SKIP), (RETRY, SKIP_7)),
        ("held", (RELEASE,), (RELEASE,)),
        ("statement_failed", (RETRY, SKIP), (RETRY, SKIP_7)),
        ("ledger_differs", (ADOPT,), (ADOPT,)),
        ("bytes_limit", (RESUME,), (RETRY, SKIP_7)),
        ("waits_for_marker", (RELEASE,), (RELEASE,)),
        ("gate_red", (CONTINUE,), (CONTINUE,)),
        ("gate_waits", (CONTINUE,), (CONTINUE,)),
        ("late_rows", (CONTINUE,), (CONTINUE,)),
        ("operator", (RESUME,), (RETRY, SKIP_7)),
    ],
)
def test_a_parked_table_has_the_commands_of_its_reason(
    reason: str, plain: tuple[str, ...], with_failed_batch: tuple[str, ...]
) -> None:
    assert park_commands(TABLE, reason) == plain
    assert park_commands(TABLE, reason, failed_batch=7) == with_failed_batch


@pytest.mark.parametrize("reason", sorted(DECISIONS))
def test_what_only_a_decision_ends_is_not_resumed(reason: ParkReason) -> None:
    assert all(command.startswith("kbq order ") for command in park_commands(TABLE, reason))


def test_a_choice_of_commands_says_what_each_does() -> None:
    assert list(next_lines(stop_commands("damaged_batch", TP))) == [
        f"  next: kbq resume {AT}  # once the cause is fixed",
        f"  next: kbq accept-gap {AT}  # gives the records up",
    ]


@pytest.mark.parametrize(
    ("command", "effect"),
    [
        ("kbq resume --topic t --partition 0 --as-errors", "its bad records become error rows"),
        ("kbq topics t --gone", "it was deleted on purpose; its rows stay"),
        ("kbq resume --topic t --new-schemas", "accepts the schemas that the registry has now"),
        ("kbq resume --table d.t --to-quarantine", "its bad files go to quarantine"),
        ("kbq adopt --table d.t", "goes on without the rows that are missing"),
        ("kbq reset --topic t --partition 0", "reads the partition from its start, in a new epoch"),
        ("kbq restage FILE", "reads the file's range again from Kafka"),
        ("kbq order retry d.t", "once the cause is fixed"),
        ("kbq order skip d.t --batch 1 --reason TEXT", "gives the batch up"),
    ],
)
def test_options_that_decide_come_before_the_command_that_has_them(command: str, effect: str) -> None:
    first, _ = next_lines([command, "kbq status"])
    assert first == f"  next: {command}  # {effect}"


@pytest.mark.parametrize(
    ("commands", "lines"),
    [
        ((), []),
        (("kbq resume --table d.t",), ["  next: kbq resume --table d.t"]),
        (("kbq status", "kbq check"), ["  next: kbq status", "  next: kbq check"]),
    ],
)
def test_a_single_command_needs_no_words(commands: tuple[str, ...], lines: list[str]) -> None:
    assert list(next_lines(iter(commands))) == lines
