"""Where a record, a staged file or a load job's files are now, from the state of one view."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kbq_assets.core.backup.backup_names import BackupFileName
from kbq_assets.core.erasure.offset_sets import has
from kbq_assets.core.errors import KbqError
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.ordering import transitions
from kbq_assets.core.protocol.commits import Commit, PartitionCommit, StagedFile
from kbq_assets.core.protocol.names import StagedFileName, TableReference, quarantine_path
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.protocol.waits import park_commands
from kbq_assets.core.topics.error_tables import is_error_table
from kbq_assets.pipelines.backup.backups import Backups
from kbq_assets.pipelines.loading.view import LoadView
from kbq_assets.pipelines.observation.status import feeds_of
from kbq_assets.pipelines.protocol.erasures import erased_of
from kbq_assets.ports.warehouse import ErrorQuery, KafkaRange, Warehouse


@dataclass(frozen=True)
class Place:
    """Where a record is, may be or was. ``kind``: commit, staged file, quarantine, table, error table or
    backup."""

    kind: str
    name: str
    text: str
    commands: tuple[str, ...] = ()


def locate(view: LoadView, tp: TopicPartition, offset: int, warehouse: Warehouse | None) -> list[Place]:
    """Where the record of an offset is. Without a warehouse no query is made. Raises Unavailable."""
    commit = next((c for c in view.commits if c.topic == tp.topic and tp.partition in c.partitions), None)
    if commit is None:
        return [_no_commit(view, tp)]
    if has(erased_of(view.cache.store, commit, tp.partition), offset):
        found = [Place("commit", str(tp), "erased: nothing reads it again", ("kbq erase list",))]
    else:
        found = [_in_commit(commit.partitions[tp.partition], tp, offset)]
    found += [place for table in view.tables for place in _in_files(view, table, tp, offset)]
    if warehouse is not None:
        found += _in_tables(view, commit, tp, offset, warehouse)
    return found


def locate_copies(backups: Backups, tp: TopicPartition, offset: int) -> list[Place]:
    """The backup's files with an offset, or why they are not known."""
    try:
        files = backups.copies(tp, offset)
    except KbqError as error:
        return [Place("backup", tp.topic, error.message, (error.next_step,) if error.next_step else ())]
    return [_copy(file) for file in files]


def _copy(file: StagedFile) -> Place:
    name = BackupFileName.parse(file.path)
    first, last = name.range.from_offset, name.range.until_offset - 1
    text = f"{file.rows:,} records of offsets {first} to {last}, epoch {name.epoch}"
    return Place("backup", file.path, text)


def locate_file(view: LoadView, path: str) -> list[Place]:
    """Where a staged file is, or its copy in quarantine. Raises InvalidName."""
    name = StagedFileName.parse(path)
    known = [place for place in _in_files(view, name.table, name.topic_partition, None) if place.name == path]
    what = f"{name.topic_partition} from offset {name.first_offset}, epoch {name.epoch}, for {name.table}"
    gone = "no commit, backlog or quarantine lists it: it is loaded, or was given up"
    return known or [Place("staged file", path, f"{what}: {gone}")]


def locate_copy(backups: Backups, path: str) -> list[Place]:
    """The range and the place of a backup's file. Raises InvalidName."""
    range_ = BackupFileName.parse(path).range
    for file in backups.copies(range_.topic_partition, range_.from_offset):
        if file.path == path:
            return [_copy(file)]
    gone = "the backup lists no such file: it is older than KBQ_BACKUP_DAYS, or its attempt failed"
    return [Place("backup", path, gone, ("kbq backup status", "kbq clean"))]


def locate_job(view: LoadView, job_id: str, warehouse: Warehouse) -> list[Place]:
    """The files of a load job: of one in flight, or of an ended one that the warehouse still knows. Raises
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
    outcome = f"failed: {job.error.message}" if job.error else f"loaded {job.output_rows:,} rows in all"
    return [
        Place("staged file", uri, outcome if job.state == "DONE" else job.state) for uri in job.source_uris
    ]


def _no_commit(view: LoadView, tp: TopicPartition) -> Place:
    for path in view.commit_paths(tp.topic):
        broken = view.commit_objects.get(path)
        if isinstance(broken, KbqError):
            return Place("commit", path, broken.message, (broken.next_step,))
    return Place("commit", tp.topic, f"{tp} is not extracted yet, or no topic of KBQ", ("kbq plan",))


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
    """The files of a partition that cover an offset, or all of them."""
    try:
        current, files = view.state_of(table), view.files(table)
    except KbqError as error:
        yield Place("table", str(table), error.message, (error.next_step,))
        return
    in_flight = current.in_flight.files if current.in_flight else ()
    for file in {file.path: file for file in (*files, *in_flight)}.values():
        if _covers(file, tp, offset):
            yield _of_file(view, table, current, file)
    for bad in current.quarantined:
        if _covers(bad.file, tp, offset):
            path, retry = quarantine_path(bad.file.path), f"kbq quarantine retry {bad.file.path}"
            why = "given up, and deleted" if bad.dropped else f"for {table}: {bad.error}"
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
        text = f"job {in_flight.job_id} loads it into {table}"
    elif current.is_loaded(file):
        text = f"loaded into {table}"
    elif current.parked is not None:
        text = f"waits: {table} is parked: {current.parked.reason}"
        commands = park_commands(table, current.parked.reason, transitions.failed_batch(current))
    else:
        text, commands = f"waits for the next load of {table}", ("kbq load",)
    return Place("staged file", file.path, f"{_range(file)}: {text}", commands)


def _range(file: StagedFile) -> str:
    return f"{file.rows:,} rows of offsets {file.name.first_offset} to {file.until - 1}"


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
                yield Place("table", str(table), f"{rows} row{'s' * (rows > 1)}, epoch {epoch}")


def _state(view: LoadView, table: TableReference) -> TableState:
    found = view.states.get(table)
    return TableState("") if found is None or isinstance(found, KbqError) else found.value


def explained(places: Iterable[Place]) -> bool:
    """Whether a record is somewhere, or why it is not."""
    return any(place.kind != "commit" or not place.text.startswith("extracted") for place in places)
