"""Findings of a reconciliation: a text, and the operator's next command."""

from __future__ import annotations

from collections.abc import Iterable

from kbq_assets.core.protocol.offsets import TopicPartition


class Finding(str):
    """A difference, as text. ``is_unknown``: whether it is unknown if something is missing."""

    __slots__ = ("is_unknown", "next_step")
    next_step: str
    is_unknown: bool

    def __new__(cls, text: str, next_step: str = "", *, is_unknown: bool = False) -> Finding:
        """A finding, with the operator's next command."""
        found = super().__new__(cls, text)
        found.next_step, found.is_unknown = next_step, is_unknown
        return found

    @classmethod
    def of(cls, text: str) -> Finding:
        return text if isinstance(text, Finding) else cls(text)


def next_steps(findings: Iterable[str]) -> list[str]:
    """The distinct next commands of findings."""
    steps = (finding.next_step for finding in findings if isinstance(finding, Finding))
    return [step for step in dict.fromkeys(steps) if step]


def read_again(tp: TopicPartition, offset: int) -> str:
    """The commands that bring missing records back. The first doubles no row for readers who ignore epochs."""
    reset = f"kbq reset --topic {tp.topic} --partition {tp.partition} --from-offset {offset}"
    return (
        f"kbq replay start {tp.topic} --from {tp.partition}:{offset}, then kbq replay promote, replaces the rows from"
        f" there on; or {reset} reads from there again, in a new epoch"
    )


def read_backup(tp: TopicPartition, earliest: int) -> str:
    """What brings missing records back that Kafka no longer has: those below its earliest offset."""
    return (
        f"Kafka no longer has them: if the topic has a backup, kbq replay start {tp.topic} --source backup --until"
        f" {tp.partition}:{earliest}, then kbq replay promote; else restore the table"
    )


DELETE_ROWS = "delete the extra rows in the warehouse, then kbq reconcile --counts"
