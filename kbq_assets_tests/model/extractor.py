"""The extractor: stages windows, publishes them, prunes the commit, moves parked tables' files (E1 to E9)."""

from __future__ import annotations

from collections.abc import Iterator

from kbq_assets_tests.model.program import IDLE, Step, calls, fresh_nonce, reads
from kbq_assets_tests.model.rules import Rule
from kbq_assets_tests.model.world import (
    ATTEMPT,
    EPOCH,
    FIRST,
    FIRST_NONCE,
    SCHEMA,
    TABLE,
    UNTIL,
    Commit,
    DoneFile,
    File,
    Files,
    Pc,
    Scope,
    TableState,
    World,
)

View = tuple[TableState | tuple[()], ...]


def steps(scope: Scope, world: World, _process: int, pc: Pc) -> Iterator[Step]:
    """What an extractor standing at `pc` may do next."""
    return _STEPS[pc[0]](scope, world, pc)


def _idle(scope: Scope, world: World, _pc: Pc) -> Iterator[Step]:
    if scope.split_reads:
        yield reads(("read table states",), ("plan", _relevant(world)))
    else:
        yield from _plan(scope, world, ("plan", world.tables))


def _relevant(world: World) -> View:
    """What planning needs of the table states: marks and parking."""
    return tuple(t and t._replace(gen=0, uuid=0, seq=0, entry=(), quarantined=()) for t in world.tables)


def _plan(scope: Scope, world: World, pc: Pc) -> Iterator[Step]:
    """Read the commit, then repair done files, prune, move, or start a window."""
    view: View = pc[1]
    commit = world.commit
    missing = [done_file(f) for f in commit.pending if scope.with_done and done_file(f) not in world.done]
    for done in missing:  # E5, before the prune that would forget them
        yield reads(("find a done file missing", done), ("write done", (done,)))
    kept = _unpruned(scope, view, commit.pending)
    if kept != commit.pending and not missing:
        yield reads(("plan a prune to", kept), ("swap", commit.gen, commit._replace(pending=kept)))
    yield from _plan_move(scope, view, commit)
    for until in range(commit.next + 1, min(commit.next + scope.window, scope.end) + 1):
        attempt = fresh_nonce(world) if scope.keeps(Rule.ATTEMPT_IN_PATH) else FIRST_NONCE
        window = (commit.epoch, commit.next, until, attempt)
        yield reads(("plan window", *window), _start_window(scope, window))
    if scope.split_reads:
        yield reads(("read commit: plan nothing",), IDLE)


def _unpruned(scope: Scope, view: View, pending: Files) -> Files:
    """The pending files less the windows that are loaded whole (E7)."""
    judge = all if scope.keeps(Rule.PRUNE_NEEDS_ALL_TABLES) else any
    windows = {(f[EPOCH], f[FIRST]) for f in pending}
    loaded = {w for w in windows if judge(scope.covers(view[f[TABLE]], f) for f in pending if f[:TABLE] == w)}
    return tuple(f for f in pending if f[:TABLE] not in loaded)


def _plan_move(scope: Scope, view: View, commit: Commit) -> Iterator[Step]:
    """E7: files of stopped tables go to their backlogs, oldest first, and then leave the commit."""
    stopped = [f for f in commit.pending if _is_stopped(view[f[TABLE]])]
    moved = tuple(f for f in stopped if not scope.covers(view[f[TABLE]], f))
    if not moved:
        return
    rest = commit._replace(pending=tuple(f for f in commit.pending if f not in moved))
    chunks = moved if scope.keeps(Rule.CHUNKS_IN_OFFSET_ORDER) else moved[::-1]
    if scope.keeps(Rule.CHUNK_BEFORE_DROP):
        yield reads(("plan to move", moved), ("move", chunks, commit.gen, rest))
    else:
        yield reads(("plan to move", moved), ("drop first", chunks, commit.gen, rest))


def _is_stopped(table: TableState | tuple[()]) -> bool:
    """Parked, or without a state: a table that must not stop the partition."""
    return not table or table.parked


def _move(_scope: Scope, _world: World, pc: Pc) -> Iterator[Step]:
    """E7: each chunk is created if absent, so that a retry changes nothing."""
    _, chunks, gen, commit = pc
    if chunks:
        then = ("move", chunks[1:], gen, commit)
        yield calls(("create chunk", chunks[0]), ("create chunk", chunks[0]), then, unknown=pc)
    elif commit:
        yield from _swap(_scope, _world, ("swap", gen, commit))
    else:
        yield reads(("the drop came first",), IDLE)


def _drop_first(_scope: Scope, _world: World, pc: Pc) -> Iterator[Step]:
    _, chunks, gen, commit = pc
    yield calls(("swap commit", commit), ("swap commit", gen, commit), ("move", chunks, -1, ()))


def _swap(_scope: Scope, _world: World, pc: Pc) -> Iterator[Step]:
    """A swap that only prunes or moves: lost or unknown, it is planned again from the start."""
    _, gen, commit = pc
    yield calls(("swap commit", commit), ("swap commit", gen, commit), IDLE)


def _start_window(scope: Scope, window: tuple[int, int, int, int]) -> Pc:
    if scope.keeps(Rule.UPLOAD_BEFORE_COMMIT):
        return ("upload", *window, 0)
    return ("rebase", *window)


def _upload(scope: Scope, _world: World, pc: Pc) -> Iterator[Step]:
    """E3: upload every file of the window; an upload without an answer is made again."""
    _, *window, count = pc
    files = scope.window_files(*window)
    then = ("upload", *window, count + 1) if count + 1 < len(files) else ("rebase", *window)
    if count < len(files):
        yield calls(("upload", files[count]), ("put", files[count]), then, unknown=pc)
    else:
        yield reads(("nothing to upload",), then)


def _rebase(scope: Scope, world: World, pc: Pc) -> Iterator[Step]:
    """E4: read the commit; listed = won; epoch and `next` unchanged = swap; else the files are orphans."""
    _, epoch, first, until, attempt = pc
    commit, files = world.commit, scope.window_files(epoch, first, until, attempt)
    if any(f[ATTEMPT] == attempt and f[FIRST] == first for f in commit.pending):
        yield reads(("read commit: listed",), _after_publish(scope, pc))
    elif commit.next == first and is_epoch_current(scope, epoch, commit):
        published = commit._replace(next=until, pending=commit.pending + files)
        if not scope.keeps(Rule.DONE_AFTER_COMMIT):
            yield reads(
                ("read commit",), ("done first", tuple(map(done_file, files)), commit.gen, published, pc)
            )
        else:
            yield reads(("read commit",), ("publish", commit.gen, published, pc))
    else:
        yield reads(("read commit: moved on without us",), IDLE)


def is_epoch_current(scope: Scope, epoch: int, commit: Commit) -> bool:
    """E4: does an attempt of that epoch still count?"""
    checked = scope.keeps(Rule.SWAP_CHECKS_EPOCH) and scope.keeps(Rule.RESET_BUMPS_EPOCH)
    return epoch == commit.epoch or not checked


def _publish(scope: Scope, _world: World, pc: Pc) -> Iterator[Step]:
    """E4: one swap publishes the window; refused or unknown, the commit is read again."""
    _, gen, commit, window = pc
    label = ("publish", *window[1:])
    yield calls(
        label, ("swap commit", gen, commit), _after_publish(scope, window), refused=window, unknown=window
    )


def _after_publish(scope: Scope, window: Pc) -> Pc:
    files = scope.window_files(*window[1:])
    if not scope.keeps(Rule.UPLOAD_BEFORE_COMMIT):
        return ("upload late", files)
    if scope.with_done and files:
        return ("write done", tuple(map(done_file, files)))
    return IDLE


def _upload_late(_scope: Scope, _world: World, pc: Pc) -> Iterator[Step]:
    files = pc[1]
    then = ("upload late", files[1:]) if files[1:] else IDLE
    yield calls(("upload", files[0]), ("put", files[0]), then, unknown=pc)


def done_file(file: File) -> DoneFile:
    """The done file of a staged file: an epoch is not part of its name."""
    return (file[TABLE], file[SCHEMA], file[FIRST], file[UNTIL])


def _write_done(_scope: Scope, _world: World, pc: Pc) -> Iterator[Step]:
    """E5: done files follow the commit; a missing one is repaired later."""
    first, rest = pc[1][0], pc[1][1:]
    yield calls(("write done", first), ("write done", first), ("write done", rest) if rest else IDLE)


def _done_first(_scope: Scope, _world: World, pc: Pc) -> Iterator[Step]:
    _, dones, gen, commit, window = pc
    then = ("done first", dones[1:], gen, commit, window) if dones[1:] else ("publish", gen, commit, window)
    yield calls(("write done", dones[0]), ("write done", dones[0]), then)


_STEPS = {
    "idle": _idle,
    "plan": _plan,
    "swap": _swap,
    "move": _move,
    "drop first": _drop_first,
    "upload": _upload,
    "rebase": _rebase,
    "publish": _publish,
    "upload late": _upload_late,
    "write done": _write_done,
    "done first": _done_first,
}
