"""Hypothesis strategies for KBQ's values."""

from __future__ import annotations

from hypothesis import strategies as st

from kbq_assets.core.protocol.commits import StagedFile, Window
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.done_files import DoneFileName
from kbq_assets.core.protocol.names import StagedFileName, TableReference
from kbq_assets.core.protocol.offsets import TopicPartition

_WORD = "abcXYZ019_"
offsets = st.integers(0, 2**63 - 2)
partitions = st.integers(0, 5000)
schema_ids = st.integers(0, 2**31 - 1)
epochs = st.integers(1, 1000)
topics = st.text(alphabet=_WORD + ".-", min_size=1, max_size=40).filter(
    lambda t: t not in (".", "..", "_topics")
)
tables = st.builds(
    TableReference,
    st.text(alphabet=_WORD, min_size=1, max_size=20),
    st.text(alphabet=_WORD + "-", min_size=1, max_size=20),
)
topic_partitions = st.builds(TopicPartition, topics, partitions)
attempts = st.text(alphabet="0123456789abcdef", min_size=1, max_size=20)
staged_names = st.builds(StagedFileName, topic_partitions, tables, schema_ids, offsets, epochs, attempts)


@st.composite
def done_names(draw: st.DrawFn, *, short: bool = False) -> DoneFileName:
    """Done file names of the full or the short form."""
    first = draw(offsets)
    last = draw(st.integers(first, 2**63 - 1))
    table = draw(tables.filter(lambda t: not t.table.isdigit()) if short else tables)
    return DoneFileName(draw(topic_partitions), table, None if short else draw(schema_ids), first, last)


def staged_file(
    first: int,
    until: int,
    *,
    topic: str = "t",
    partition: int = 0,
    table: str = "d.t",
    schema_id: int = 1,
    epoch: int = 1,
    window: int | None = None,
    fingerprint: str = "",
    size: int = 100,
    rows: int | None = None,
    oldest_ms: int | None = None,
    attempt: str = "a",
    dates: tuple[int, ...] = (0,),
) -> StagedFile:
    """A staged file with sensible defaults: as many rows as positions, written in offset order of time."""
    name = StagedFileName(
        TopicPartition(topic, partition), TableReference.parse(table), schema_id, first, epoch, attempt
    )
    return StagedFile(
        path=name.format(),
        window=first if window is None else window,
        until=until,
        rows=until - first if rows is None else rows,
        bytes=size,
        raw_bytes=size,
        crc32c="AAAAAA==",
        fingerprint=fingerprint or f"f{schema_id}",
        dates=dates,
        oldest_ms=first if oldest_ms is None else oldest_ms,
    )


def window(first: int, until: int, *files: StagedFile, gaps: int = 0) -> Window:
    """A window whose counts fit its files."""
    rows: dict[str, int] = {}
    for file in files:
        rows[str(file.table)] = rows.get(str(file.table), 0) + file.rows
    records = sum(rows.values())
    positions = until - first
    skipped = positions - gaps - records
    counts = Counts(positions=positions, records=positions - gaps, gaps=gaps, skipped=skipped, rows=rows)
    return Window(first, until, counts, files)
