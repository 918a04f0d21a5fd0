"""Locates a record, a staged file or a load job's files, from the state in one view."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from kbq_assets.core.backup.backup_names import BACKUP, BackupFileName
from kbq_assets.core.erasure.offset_sets import has
from kbq_assets.core.errors import InvalidName, KbqError, NotFound
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.ordering import transitions
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.commits import Commit, PartitionCommit, StagedFile
from kbq_assets.core.protocol.names import (
    QUARANTINE,
    STAGING,
    StagedFileName,
    TableReference,
    quarantine_path,
    staged_path,
)
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.protocol.waits import park_commands
from kbq_assets.core.replay.model import AREAS
from kbq_assets.core.topics.error_tables import is_error_table
from kbq_assets.pipelines.backup.backups import Backups
from kbq_assets.pipelines.loading.view import LoadView
from kbq_assets.pipelines.observation.status import feeds_of
from kbq_assets.pipelines.protocol.erasures import erased_of
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.ports.warehouse import ErrorQuery, JobStatus, KafkaRange, Warehouse

if TYPE_CHECKING:  # this loads kernels
    from kbq_assets.wire.backup.read import BlockPlace

#: Number of a table's newest load jobs in which the job of a file is searched. BigQuery answers ten per second.
_JOBS: Final = 100
#: The beginning of the text for a topic that KBQ does not extract.
_UNKNOWN: Final = "unknown topic"


@dataclass(frozen=True)
class Place:
    """A place where a record is, may be or was. ``kind``: commit, staged file, quarantine, table, error table, backup,
    load job or replay. ``block``: the record's block in a backup's file."""

    kind: str
    name: str
    text: str
    commands: tuple[str, ...] = ()
    block: BlockPlace | None = None


def locate(
    view: LoadView,
    tp: TopicPartition,
    offset: int,
    warehouse: Warehouse | None,
    is_listed: Callable[[str], bool] = lambda topic: True,
) -> list[Place]:
    """The places of the record at an offset. Without a warehouse, no query is made. ``is_listed``: whether the source
    list has a topic. Raises Unavailable."""
    commit = next((c for c in view.commits if c.topic == tp.topic and tp.partition in c.partitions), None)
    if commit is None:
        return [_no_commit(view, tp, is_listed)]
    if has(erased_of(view.cache.store, commit, tp.partition), offset):
        found = [Place("commit", str(tp), "erased: it is never read again", ("kbq erase list",))]
    else:
        found = [_in_commit(commit.partitions[tp.partition], tp, offset)]
    found += [place for table in view.tables for place in _in_files(view, table, tp, offset)]
    if warehouse is not None:
        found += _in_tables(view, commit, tp, offset, warehouse)
    return found


def locate_copies(backups: Backups, tp: TopicPartition, offset: int) -> list[Place]:
    """The backup's files with an offset, and the offset's blocks, or an error. Reads each file up to the offset."""
    try:
        files = backups.copies(tp, offset)
        return [_copied_record(backups.area(tp.topic), file, offset) for file in files]
    except KbqError as error:
        return [Place("backup", tp.topic, error.message, (error.next_step,) if error.next_step else ())]


def _copied_record(area: ObjectStore, file: StagedFile, offset: int) -> Place:
    from kbq_assets.wire.backup.read import place_of
    from kbq_assets.wire.files.read_container import DamagedFile

    name, copy = BackupFileName.parse(file.path), _copy(file)
    try:
        with area.open_read(file.path) as stream:
            found = place_of(stream, name.epoch, name.range, offset)
    except (DamagedFile, NotFound) as error:
        verify = f"kbq backup verify --topic {name.range.topic_partition.topic}"
        return replace(copy, text=f"{copy.text}: {error.message}", commands=(verify,))
    if found is None:
        return replace(copy, text=f"{copy.text}; none is at offset {offset}: it has no record, or was erased")
    at = f"block {found.block} at byte {found.byte}, record {found.index} of the block (from 0)"
    return replace(copy, text=f"{copy.text}: {at}", block=found)


def _copy(file: StagedFile) -> Place:
    name = BackupFileName.parse(file.path)
    first, last = name.range.from_offset, name.range.until_offset - 1
    text = f"{counted(file.rows, 'record')} of offsets {first} to {last}, epoch {name.epoch}"
    return Place("backup", file.path, text)


def path_in_store(text: str) -> str:
    """The path of a file below the root of its store, given a path, an address (``gs://…``) or a path on a disk."""
    parts = text.split("/")
    if len(parts) >= 5 and parts[-5] == AREAS.rstrip("/"):
        return "/".join(parts[-5:])
    for root, depth, kept in ((STAGING, 3, 2), (QUARANTINE, 3, 2), (QUARANTINE, 4, 2), (BACKUP, 4, 3)):
        if len(parts) >= depth and parts[-depth] == root.rstrip("/"):
            return root + "/".join(parts[-kept:])
    return text


def locate_file(view: LoadView, path: str, warehouse: Warehouse) -> list[Place]:
    """The places of a staged file: the file, its copy in quarantine, or the load job that loaded it. Raises
    InvalidName, Unavailable."""
    if path.startswith(AREAS):
        number = path.split("/")[1]
        return [Place("replay", path, f"a file of replay {number}", (f"kbq replay status {number}",))]
    path = staged_path(path) if path.startswith(QUARANTINE) else path
    name = StagedFileName.parse(path)
    names = (path, quarantine_path(path))
    known = [
        place for place in _in_files(view, name.table, name.topic_partition, None) if place.name in names
    ]
    return known or _gone(view, name, path, warehouse)


def _gone(view: LoadView, name: StagedFileName, path: str, warehouse: Warehouse) -> list[Place]:
    """The places of a file that no state lists any more."""
    mark = _state(view, name.table).marks.get(name.mark_key, 0)
    until = (
        f"{name.table} has everything of its schema below offset {mark}"
        if mark
        else "nothing of it is loaded"
    )
    if mark <= name.first_offset:
        why = f"no commit, backlog or quarantine lists it: its attempt failed, or it was given up; {until}"
        return [Place("staged file", path, f"{_what(name)}: {why}")]
    for job in _jobs(view, name.table, warehouse):
        if job.error is None and any(uri.endswith(path) for uri in job.source_uris):
            files = counted(len(job.source_uris), "file")
            text = f"loaded it into {name.table}: {counted(job.output_rows, 'row')} of {files}"
            return [
                Place("staged file", path, f"{_what(name)}: loaded"),
                Place("load job", job.job_id, text, (f"kbq where --job {job.job_id}",)),
            ]
    which = (
        f"none of the last {_JOBS} jobs read it under this name: it was merged, or another attempt was loaded"
    )
    return [Place("staged file", path, f"{_what(name)}: {until}; {which}")]


def _jobs(view: LoadView, table: TableReference, warehouse: Warehouse) -> Iterator[JobStatus]:
    """Ended load jobs of a table that the warehouse still has, newest first."""
    current = _state(view, table)
    for number in range(current.sequence, max(0, current.sequence - _JOBS), -1):
        job_id = f"kbq-{current.uuid}-{number}"
        job = warehouse.get_job(job_id, warehouse.project, warehouse.location, table)
        if job is not None and job.state == "DONE":
            yield job


def locate_copy(backups: Backups, path: str) -> list[Place]:
    """The range and the location of a backup's file. Raises InvalidName."""
    range_ = BackupFileName.parse(path).range
    found = [_copy(file) for file in backups.copies(range_.topic_partition, range_.from_offset)]
    if own := [copy for copy in found if copy.name == path]:
        return own
    why = "it was merged, or an erasure rewrote it" if found else "it is older than KBQ_BACKUP_DAYS"
    gone = f"the backup lists no such file: {why}, or its attempt failed"
    return [Place("backup", path, gone, ("kbq backup status", "kbq clean")), *found]


def locate_job(view: LoadView, job_id: str, warehouse: Warehouse) -> list[Place]:
    """The files of a load job that is in flight, or of an ended one that the warehouse still has. Raises
    Unavailable."""
    for table in view.tables:
        in_flight = _state(view, table).in_flight
        if in_flight is not None and in_flight.job_id == job_id:
            return [
                Place("staged file", f.path, f"in flight for {table}: {_range(f)}") for f in in_flight.files
            ]
    job = warehouse.get_job(job_id, warehouse.project, warehouse.location)
    if job is None:
        return []
    outcome = (
        f"failed: {job.error.message}" if job.error else f"loaded {counted(job.output_rows, 'row')} in total"
    )
    outcome = outcome if job.state == "DONE" else job.state
    if not job.source_uris:
        return [
            Place("load job", job_id, f"{outcome}; it read no files: a statement, or an id that was given up")
        ]
    return [Place("staged file", uri, f"{_from_uri(uri)}{outcome}") for uri in job.source_uris]


def _from_uri(uri: str) -> str:
    """A description of a file's records, from its address; "" if it is not a file of KBQ."""
    try:
        return f"{_what(StagedFileName.parse(path_in_store(uri)))}: "
    except InvalidName:
        return ""


def _what(name: StagedFileName) -> str:
    return f"{name.topic_partition} from offset {name.first_offset}, epoch {name.epoch}, for {name.table}"


def _no_commit(view: LoadView, tp: TopicPartition, is_listed: Callable[[str], bool]) -> Place:
    for path in view.commit_paths(tp.topic):
        broken = view.commit_objects.get(path)
        if isinstance(broken, KbqError):
            return Place("commit", path, broken.message, (broken.next_step,))
    if is_listed(tp.topic):
        return Place("commit", tp.topic, f"{tp} is not extracted yet", ("kbq plan",))
    return Place(
        "commit", tp.topic, f"{_UNKNOWN}: it has no commit, and is not in the source list", ("kbq plan",)
    )


def _in_commit(partition: PartitionCommit, tp: TopicPartition, offset: int) -> Place:
    name = str(tp)
    for gap in partition.accepted_gaps:
        if gap.first <= offset < gap.until:
            return Place("commit", name, f"given up by kbq accept-gap: {gap.reason}")
    if offset >= partition.next:
        why = f"; it is stopped: {partition.stop.message}" if partition.stop else ""
        return Place(
            "commit", name, f"not extracted yet: the position is {partition.next}{why}", ("kbq status",)
        )
    if offset < partition.start:
        began = f"before offset {partition.start}, where epoch {partition.since} began"
        return Place("commit", name, f"{began}: extracted before the reset, or never")
    return Place("commit", name, f"extracted: the position is {partition.next}")


def _in_files(
    view: LoadView, table: TableReference, tp: TopicPartition, offset: int | None
) -> Iterator[Place]:
    try:
        current, files = view.state_of(table), view.files(table)
    except KbqError as error:
        yield Place("table", str(table), error.message, (error.next_step,))
        return
    in_flight = current.in_flight.files if current.in_flight else ()
    # a commit may still list them, and the marks have passed them, but no job loaded them
    rejected = {bad.file.path for bad in current.quarantined}
    waiting = (file for file in files if file.path not in rejected)
    for file in {file.path: file for file in (*waiting, *in_flight)}.values():
        if _covers(file, tp, offset):
            yield _of_file(view, table, current, file)
    for bad in current.quarantined:
        if _covers(bad.file, tp, offset):
            path, retry = quarantine_path(bad.file.path), f"kbq quarantine retry {bad.file.path}"
            why = "given up and deleted" if bad.dropped else f"for {table}: {bad.error}"
            yield Place("quarantine", path, why, () if bad.dropped else (retry,))


def _covers(file: StagedFile, tp: TopicPartition, offset: int | None) -> bool:
    name = file.name
    return name.topic_partition == tp and (offset is None or name.first_offset <= offset < file.until)


def _of_file(view: LoadView, table: TableReference, current: TableState, file: StagedFile) -> Place:
    in_flight = current.in_flight
    commands: tuple[str, ...] = ()
    if file.path in view.given_up:
        text = "given up by a reset"
    elif in_flight is not None and file in in_flight.files:
        text = f"job {in_flight.job_id} is loading it into {table}"
    elif current.is_loaded(file):
        text = f"loaded into {table}"
    elif current.parked is not None:
        text = f"waits: {table} is parked: {current.parked.reason}"
        commands = park_commands(table, current.parked.reason, transitions.failed_batch(current))
    else:
        text, commands = f"waits for the next load of {table}", ("kbq load",)
    return Place("staged file", file.path, f"{_range(file)}: {text}", commands)


def _range(file: StagedFile) -> str:
    return f"{counted(file.rows, 'row')} of offsets {file.name.first_offset} to {file.until - 1}"


def _in_tables(
    view: LoadView, commit: Commit, tp: TopicPartition, offset: int, warehouse: Warehouse
) -> Iterator[Place]:
    fed = sorted(table for table, topics in feeds_of(view).items() if tp.topic in topics)
    for table in fed:
        if is_error_table(table):
            show = f"kbq errors show {tp.topic} {tp.partition} {offset}"
            for row in warehouse.error_rows(table, ErrorQuery(tp.topic, tp.partition, offset, value_bytes=0)):
                yield Place(
                    "error table", str(table), f"{row.reason}: {row.message}, epoch {row.epoch}", (show,)
                )
            continue
        for epoch in range(commit.epoch, -1, -1):
            range_ = KafkaRange(tp.topic, tp.partition, epoch)
            if rows := warehouse.positions(table, range_, offset).get(offset, 0):
                yield Place("table", str(table), f"{counted(rows, 'row')}, epoch {epoch}")


def _state(view: LoadView, table: TableReference) -> TableState:
    found = view.states.get(table)
    return TableState("") if found is None or isinstance(found, KbqError) else found.value


def explained(places: Iterable[Place]) -> bool:
    """Whether places show where a record is, or why it is nowhere."""
    return any(
        place.kind != "commit" or not place.text.startswith(("extracted", _UNKNOWN)) for place in places
    )
