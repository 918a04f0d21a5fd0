"""The life of a load job: intent, job, and the one swap that records its outcome (L2 to L5)."""

from __future__ import annotations

from collections.abc import Iterator

from kbq_assets_tests.model.program import IDLE, Step, calls, find_job, reads
from kbq_assets_tests.model.rules import Rule
from kbq_assets_tests.model.world import Files, JobEntry, JobId, Pc, Scope, TableState, World


def place(step: str, index: int, table: TableState, entry: JobEntry) -> Pc:
    """A place in the life of a load job: the program remembers the state it read or wrote."""
    return (step, index, table._replace(entry=()), entry)


def _job_id(index: int, table: TableState) -> JobId:
    """L2: a job id is the state's uuid and its sequence number."""
    return ("job", index, table.seq, table.uuid)


def _swap(label: str, index: int, read: TableState, new: TableState, then: Pc) -> Step:
    return calls((label, index), ("swap table", index, read.gen, new), then)


def _intend(_scope: Scope, _world: World, pc: Pc) -> Iterator[Step]:
    """L2: the intent first; the swap fences every other loader."""
    _, index, table, entry = pc
    new = table._replace(seq=table.seq + 1, entry=entry)
    yield _swap("swap intent", index, table, new, place("submit", index, _next_gen(new), entry))


def _next_gen(table: TableState) -> TableState:
    return table._replace(gen=table.gen + 1)


def submit(scope: Scope, _world: World, process: int, pc: Pc) -> Iterator[Step]:
    """L3: submit, then look; no answer or 409 changes nothing."""
    _, index, table, entry = pc
    job_id = _job_id(index, table)
    if not scope.keeps(Rule.JOB_ID_FROM_STATE):
        job_id = (*job_id[:3], process)
    poll = ("poll", index, table, entry, job_id)
    on_unknown = poll if scope.keeps(Rule.SAME_ID_ON_UNKNOWN) else place("retry", index, table, entry)
    yield calls(("submit", job_id, entry.files), ("insert job", job_id, entry.files), poll, poll, on_unknown)


def _poll(scope: Scope, world: World, pc: Pc) -> Iterator[Step]:
    """L3: get the job. Not found = not started: the same id again. A running job is waited for."""
    _, index, table, entry, job_id = pc
    job = find_job(world, job_id)
    if job is None:
        yield reads(("get job: not found",), place("submit", index, table, entry))
        return
    _, files, status, rejected = job
    if status != "running":
        goes_to = _after(scope, status, entry.files, files)
        yield reads(
            ("get job:", status), (*place(goes_to, index, table, entry), *([rejected] if rejected else []))
        )


def _after(scope: Scope, status: str, expected: Files, found: Files) -> str:
    """The step after a finished job. A no-op used up the id, and a job of other files is not ours (L3)."""
    if scope.keeps(Rule.ADOPTION_COMPARES_FILES) and expected != found:
        return "stop" if found else "drop"
    if status == "loaded":
        return "record" if scope.keeps(Rule.RECORD_BEFORE_DELETE) else "delete early"
    return {"failed": "retry", "rejected": "set aside", "file missing": "drop"}[status]


def _stop(_scope: Scope, _world: World, _pc: Pc) -> Iterator[Step]:
    """Someone else's job has our id: the table stops until a person has looked."""
    return iter(())


def _record(scope: Scope, _world: World, pc: Pc) -> Iterator[Step]:
    """L4, L5: marks, quarantine and the end of the job in one swap; then the files are deleted."""
    _, index, table, entry = pc
    new = scope.advanced(table, entry.files + entry.rejected)
    new = new._replace(quarantined=table.quarantined + entry.rejected)
    left = entry.files if scope.keeps(Rule.RECORD_BEFORE_DELETE) else ()
    then = ("delete", left) if left else IDLE
    yield _swap("swap record", index, table, new, then)


def _drop(_scope: Scope, _world: World, pc: Pc) -> Iterator[Step]:
    """The id is used up, or a reset gave up a file: the job ends, and what is left is planned again."""
    _, index, table, _ = pc
    yield _swap("swap: drop the job", index, table, table, IDLE)


def _retry(scope: Scope, _world: World, pc: Pc) -> Iterator[Step]:
    """L5: a transient failure is tried again under the next sequence number."""
    _, index, table, entry = pc
    step = 1 if scope.keeps(Rule.SEQUENCE_INCREMENTS) else 0
    new = table._replace(seq=table.seq + step, entry=entry)
    yield _swap("swap retry", index, table, new, place("submit", index, _next_gen(new), entry))


# --- rejected files


def _set_aside(scope: Scope, world: World, pc: Pc) -> Iterator[Step]:
    """L5: load the rest first; the bad file is quarantined in the swap that moves the mark past it."""
    _, index, table, entry, bad = pc
    rest = tuple(f for f in entry.files if f not in bad)
    rejected = entry.rejected + bad
    if not scope.keeps(Rule.QUARANTINE_NOT_AFTER_MARK):
        then = ("quarantine late", index, _next_gen(scope.advanced(table, rejected)), rejected)
        yield _swap("swap mark alone", index, table, scope.advanced(table, rejected), then)
    elif not scope.keeps(Rule.QUARANTINE_NOT_BEFORE_MARK):
        new = table._replace(quarantined=table.quarantined + rejected)
        yield _swap(
            "swap quarantine alone", index, table, new, ("mark late", index, _next_gen(new), rejected)
        )
    elif rest and scope.keeps(Rule.REST_BEFORE_MARK):
        entry = JobEntry(rest, rejected)
        new = table._replace(seq=table.seq + 1, entry=entry)
        yield _swap("swap: the rest", index, table, new, place("submit", index, _next_gen(new), entry))
    else:
        yield from _record(scope, world, ("record", index, table, JobEntry((), rejected)))


def _quarantine_late(_scope: Scope, _world: World, pc: Pc) -> Iterator[Step]:
    _, index, table, rejected = pc
    yield _swap(
        "swap quarantine", index, table, table._replace(quarantined=table.quarantined + rejected), IDLE
    )


def _mark_late(scope: Scope, _world: World, pc: Pc) -> Iterator[Step]:
    _, index, table, rejected = pc
    yield _swap("swap mark", index, table, scope.advanced(table, rejected), IDLE)


def _delete_early(_scope: Scope, _world: World, pc: Pc) -> Iterator[Step]:
    _, index, table, entry, *rest = pc
    left: Files = rest[0] if rest else entry.files
    then = (*pc[:4], left[1:]) if left[1:] else place("record", index, table, entry)
    yield calls(("delete early", left[0]), ("delete", left[0]), then)


STEPS = {
    "intend": _intend,
    "poll": _poll,
    "record": _record,
    "drop": _drop,
    "retry": _retry,
    "stop": _stop,
    "set aside": _set_aside,
    "quarantine late": _quarantine_late,
    "mark late": _mark_late,
    "delete early": _delete_early,
}
