"""The store in a local directory keeps the contract, also if processes are killed, disks fail, or file systems are
unfit."""

from __future__ import annotations

import errno
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from kbq_assets.adapters.local_store import LocalObjectStore, file_system
from kbq_assets.adapters.local_store.file_system import check_file_system, file_system_type, is_remote
from kbq_assets.adapters.local_store.locks import PathLocks
from kbq_assets.adapters.local_store.temporary import Temporary
from kbq_assets.core.errors import (
    ConfigurationError,
    KbqError,
    PreconditionFailed,
    Unavailable,
    UnknownOutcome,
)
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets_tests.contracts.object_store import Opener, SharedObjectStoreContract, paths, stream
from kbq_assets_tests.contracts.processes import forked_from

REPOSITORY = Path(__file__).resolve().parents[3]
PROCESSES = forked_from(__name__)


class TestLocalObjectStore(SharedObjectStoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        return LocalObjectStore(tmp_path, lock_seconds=120, durable=False)

    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        return partial(LocalObjectStore, tmp_path, lock_seconds=120, durable=False)

    def fill(self, store: ObjectStore, names: Iterable[str]) -> None:
        root = root_of(store)
        for folder, inside in itertools.groupby(sorted(names), os.path.dirname):
            (root / folder).mkdir(parents=True, exist_ok=True)
            for name in inside:
                os.close(os.open(root / name, os.O_CREAT | os.O_WRONLY))


class TestDurableLocalObjectStore(TestLocalObjectStore):
    rounds = 15
    many = 1000

    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        return LocalObjectStore(tmp_path, lock_seconds=120)

    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        return partial(LocalObjectStore, tmp_path, lock_seconds=120)


def root_of(store: ObjectStore) -> Path:
    return Path(store.uri("a").removeprefix("file://")).parent


@pytest.fixture
def store(tmp_path: Path) -> LocalObjectStore:
    return LocalObjectStore(tmp_path, durable=False)


# Files as others see them


def test_an_object_is_a_plain_file_at_its_path(store: LocalObjectStore, tmp_path: Path) -> None:
    store.create("commits/a.json", b"{}")
    store.create("done/x.done", b"")
    stream(store, "staging/1-a/x.avro", b"Obj\x01")
    assert (tmp_path / "commits/a.json").read_bytes() == b"{}"
    assert (tmp_path / "done/x.done").read_bytes() == b""
    assert (tmp_path / "staging/1-a/x.avro").read_bytes() == b"Obj\x01"


def test_a_file_put_there_by_hand_is_an_object(store: LocalObjectStore, tmp_path: Path) -> None:
    (tmp_path / "done").mkdir()
    (tmp_path / "done/t.0.d.t.0.9.done").touch()
    assert paths(store) == ["done/t.0.d.t.0.9.done"]
    read = store.get("done/t.0.d.t.0.9.done")
    store.swap("done/t.0.d.t.0.9.done", b"x", read.generation)


def test_a_swap_loses_against_an_edit_by_hand(store: LocalObjectStore, tmp_path: Path) -> None:
    generation = store.create("commits/a.json", b"{}")
    (tmp_path / "commits/a.json").write_bytes(b"{1}")
    with pytest.raises(PreconditionFailed):
        store.swap("commits/a.json", b"{2}", generation)
    assert store.get("commits/a.json").data == b"{1}"


def test_a_swap_is_later_than_what_it_replaces_though_the_clock_was_set_back(
    store: LocalObjectStore, tmp_path: Path
) -> None:
    future = time.time_ns() + 10**15
    store.create("a", b"")
    os.utime(tmp_path / "a", ns=(future, future))
    assert store.swap("a", b"", future) == future + 1


def test_its_own_files_are_no_objects(store: LocalObjectStore, tmp_path: Path) -> None:
    generation = store.create("a", b"")
    store.swap("a", b"", generation)
    writer = store.open_write("b")
    assert os.listdir(tmp_path / ".tmp")
    assert os.listdir(tmp_path / ".locks")
    assert paths(store) == ["a"]
    writer.abort()


def test_what_is_no_plain_file_is_not_listed(store: LocalObjectStore, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").mkdir()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    assert paths(store) == []


@pytest.mark.parametrize("name", [b"two\nlines", b"not-\xff-text", b"bell\x07"])
def test_a_name_that_no_operation_takes_is_not_listed(
    store: LocalObjectStore, tmp_path: Path, name: bytes
) -> None:
    store.create("done/a", b"")
    for folder in (tmp_path / "done", tmp_path / "done" / os.fsdecode(name)):
        folder.mkdir(exist_ok=True)
        (folder / os.fsdecode(b"in-" + name)).write_bytes(b"x")
    assert paths(store) == ["done/a"]


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="needs a file system that moves entries (tmpfs)")
def test_a_listing_misses_no_object_where_the_file_system_moves_what_is_swapped() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        store = LocalObjectStore(Path(folder), durable=False)
        names = [f"a/{number:04}" for number in range(2000)]
        for name in names:
            store.create(name, b"")
        listed = threading.Event()

        def swap_all() -> None:
            for name in itertools.cycle(names):
                if listed.is_set():
                    return
                store.swap(name, b"", store.get(name).generation)

        with ThreadPoolExecutor(1) as threads:
            swapping = threads.submit(swap_all)
            seen = [paths(store, "a/") for _ in range(15)]
            listed.set()
            swapping.result()
        assert all(each == names for each in seen)


def test_an_address_is_a_file_uri(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path / "50% of\u00fc", durable=False)
    assert store.uri("a b/c#d") == f"file://{tmp_path}/50%25%20of%C3%BC/a%20b/c%23d"


def test_deleting_removes_folders_that_became_empty_but_none_at_the_top(
    store: LocalObjectStore, tmp_path: Path
) -> None:
    for path in ("staging/1-a/x", "staging/1-a/y", "staging/1-b/c/x"):
        store.create(path, b"")
    assert store.delete_many(["staging/1-a/x", "staging/1-b/c/x"]) == {}
    assert os.listdir(tmp_path / "staging") == ["1-a"]
    store.delete("staging/1-a/y")
    assert os.listdir(tmp_path / "staging") == []


@pytest.mark.parametrize("path", ["a/b", "a/b/c"])
def test_an_object_cannot_be_a_folder_as_well(store: LocalObjectStore, path: str) -> None:
    store.create("a" if path == "a/b" else "a/b/c/d", b"")
    with pytest.raises(ConfigurationError, match=r"(?s)next: .*remove"):
        store.create(path, b"")
    with pytest.raises(ConfigurationError, match=r"(?s)next: .*remove"):
        stream(store, path, b"")
    assert store.sweep_temporary() == 0


def test_memory_does_not_grow_with_the_file(store: LocalObjectStore) -> None:
    block = bytes(1 << 20)
    writer = store.open_write("big")
    tracemalloc.start()
    for _ in range(64):
        writer.write(block)
    writer.close()
    with store.open_read("big") as source:
        store.copy("big", "copy")
        assert source.read(1) == b"\0"
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 << 20


# Kills


@pytest.mark.thorough
def test_a_process_killed_at_any_line_leaves_the_old_or_the_new_object_and_no_lock(tmp_path: Path) -> None:
    program = [
        sys.executable,
        "-m",
        "kbq_assets_tests.adapters.local_store.kill_at_every_line",
        str(tmp_path),
    ]
    done = subprocess.run(program, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    deaths = {name: int(number) for name, number in map(str.split, done.stdout.splitlines())}
    assert set(deaths) == {"create", "swap", "stream", "give_up", "copy", "delete"}
    assert min(deaths.values()) > 20


def test_a_process_killed_at_any_moment_loses_no_acknowledged_swap(
    store: LocalObjectStore, tmp_path: Path
) -> None:
    store.create("a", padded(0))
    generator = random.Random(20)
    for _ in range(12):
        with child(swap_for_ever, tmp_path) as (process, reported):
            first = reported.recv()
            time.sleep(generator.random() * 0.05)
            process.kill()
        acknowledged = last_of(reported, first)
        data = store.get("a").data
        number = int(data[:20])
        assert data == padded(number)
        assert number in (acknowledged, acknowledged + 1)
        store.swap("a", padded(number + 1), store.get("a").generation)
    store.sweep_temporary()
    assert os.listdir(tmp_path / ".tmp") == []


def padded(number: int) -> bytes:
    return b"%020d" % number * 20_000


def swap_for_ever(root: Path, tell: Connection) -> None:
    store = LocalObjectStore(root)
    while True:
        read = store.get("a")
        number = int(read.data[:20]) + 1
        store.swap("a", padded(number), read.generation)
        tell.send(number)


def last_of(reported: Connection, number: int) -> int:
    """The last number that a dead process sent, after this one."""
    while True:
        try:
            number = reported.recv()
        except (EOFError, OSError):
            return number


@contextmanager
def child(
    target: Callable[[Path, Connection], None], root: Path
) -> Iterator[tuple[PROCESSES.Process, Connection]]:  # type: ignore[name-defined]
    """A child process, which is killed at the end."""
    reported, tell = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=target, args=(root, tell))
    process.start()
    tell.close()
    try:
        yield process, reported
    finally:
        process.kill()
        process.join()


def test_a_stopped_process_that_holds_a_lock_is_named_and_its_death_frees_the_lock(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path, lock_seconds=0.1, durable=False)
    generation = store.create("a", b"1")
    with child(hold_and_stop, tmp_path) as (process, reported):
        reported.recv()
        with pytest.raises(Unavailable, match=f"by process {process.pid}"):
            store.swap("a", b"2", generation)
        with pytest.raises(Unavailable, match=f"by process {process.pid}"):
            store.delete("a")
        assert store.get("a").data == b"1"
    store.swap("a", b"2", generation)


def hold_and_stop(root: Path, tell: Connection) -> None:
    with PathLocks(root / ".locks", 1).holding("a"):
        tell.send("held")
        os.kill(os.getpid(), signal.SIGSTOP)


def test_a_sweep_removes_what_a_dead_writer_left_and_not_what_a_stopped_one_writes(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path, durable=False)
    with child(write_and_stop, tmp_path) as (_, reported):
        reported.recv()
        assert store.sweep_temporary() == 0
        assert len(os.listdir(tmp_path / ".tmp")) == 2
        assert paths(store) == []
    assert store.sweep_temporary() == 2
    assert os.listdir(tmp_path / ".tmp") == []


def write_and_stop(root: Path, tell: Connection) -> None:
    store = LocalObjectStore(root, durable=False)
    writers = [store.open_write("a"), store.open_write("b")]
    tell.send(writers[0].write(b"part"))
    os.kill(os.getpid(), signal.SIGSTOP)


# Disks


def test_an_object_is_on_the_disk_before_it_has_its_name_and_its_name_before_it_is_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalObjectStore(tmp_path)
    store.create("first", b"")
    steps: list[str] = []
    note_calls(monkeypatch, steps)
    generation = store.create("x/a", b"1")
    assert steps == ["utime", "fsync by-", "mkdir", f"fsync {tmp_path.name}", "link", "fsync x"]
    steps.clear()
    store.swap("x/a", b"2", generation)
    assert steps == ["utime", "fsync by-", "rename", "fsync x"]
    steps.clear()
    store.delete_many(["x/a", "x/b"])
    assert steps == ["unlink", "fsync x"]
    steps.clear()
    store.create("x/empty", b"")
    assert steps == ["utime", "fsync x"]


def test_an_empty_object_in_a_folder_that_goes_and_comes_is_a_new_generation(store: LocalObjectStore) -> None:
    generations = []
    for _ in range(3):
        generations.append(store.create("x/y/empty", b""))
        with pytest.raises(PreconditionFailed):
            store.create("x/y/empty", b"")
        assert store.get("x/y/empty").generation == generations[-1]
        store.delete("x/y/empty")
    assert len(set(generations)) == 3


def test_many_empty_objects_share_the_sync_of_their_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, original = LocalObjectStore(tmp_path), os.fsync
    store.create("done/first", b"")
    names = [f"done/{number}" for number in range(8)]
    there: list[bool] = []

    def fsync(descriptor: int) -> None:
        there.append(all((tmp_path / name).exists() for name in names))
        original(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    assert store.create_empty(names) == {}
    assert there == [True]


def test_an_empty_object_where_a_folder_is_fails(store: LocalObjectStore) -> None:
    store.create("done/a/b", b"")
    assert {path: type(error) for path, error in store.create_empty(["done/a", "done/c"]).items()} == {
        "done/a": ConfigurationError
    }
    assert paths(store) == ["done/a/b", "done/c"]


def note_calls(monkeypatch: pytest.MonkeyPatch, steps: list[str]) -> None:
    def noting(name: str) -> None:
        original = getattr(os, name)

        def call(*arguments: object, **named: object) -> object:
            result = original(*arguments, **named)
            if name != "fsync":
                steps.append(name)
                return result
            file = Path(os.readlink(f"/proc/self/fd/{arguments[0]}")).name
            steps.append(f"fsync {file[:3] if file.startswith('by-') else file}")
            return result

        monkeypatch.setattr(os, name, call)

    for name in ("utime", "fsync", "mkdir", "link", "rename"):
        noting(name)
    unlink = os.unlink

    def noted(path: str) -> None:
        unlink(path)
        if ".tmp" not in path:
            steps.append("unlink")

    monkeypatch.setattr(os, "unlink", noted)


@pytest.mark.parametrize(
    ("code", "raised", "advice"),
    [
        (errno.ENOSPC, Unavailable, "free space"),
        (errno.EIO, Unavailable, "check the disk"),
        (errno.EACCES, ConfigurationError, "permission"),
        (errno.EROFS, ConfigurationError, "for writing"),
    ],
)
def test_a_write_that_the_disk_refuses_changes_nothing_and_says_what_to_do(
    store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch, code: int, raised: type[KbqError], advice: str
) -> None:
    generation = store.create("a", b"1")
    calls: list[Callable[[], object]] = [
        lambda: store.create("b", b"2"),
        lambda: store.swap("a", b"2", generation),
        lambda: store.copy("a", "b"),
    ]
    for call in calls:
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", partial(fail, code))
            with pytest.raises(raised, match=rf"(?s)next: .*{advice}"):
                call()
    assert [(path, store.get(path).data) for path in paths(store)] == [("a", b"1")]
    assert os.listdir(root_of(store) / ".tmp") == []


def test_a_name_that_may_not_be_on_the_disk_is_an_unknown_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalObjectStore(tmp_path)
    generation = store.create("a", b"1")
    original = os.fsync

    def fsync(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            fail(errno.EIO)
        original(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(UnknownOutcome):
        store.create("b", b"")
    assert [type(error) for error in store.create_empty(["c"]).values()] == [UnknownOutcome]
    with pytest.raises(UnknownOutcome):
        store.swap("a", b"2", generation)
    assert {path: type(error) for path, error in store.delete_many(["a", "b"]).items()} == {
        "a": UnknownOutcome,
        "b": UnknownOutcome,
    }


def fail(code: int, *arguments: object) -> int:
    raise OSError(code, os.strerror(code))


# File systems

MOUNTS = r"""
22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
23 22 0:5 / /dev rw - devtmpfs devtmpfs rw
30 22 0:40 / /mnt/shared\040disk rw,relatime - nfs4 server:/export rw
31 22 0:41 / /mnt/over rw shared:1 master:2 - ext4 /dev/sdb1 rw
32 31 0:42 / /mnt/over rw - fuse.sshfs user@host: rw
33 30 0:43 / /mnt/shared\040disk/local rw - xfs /dev/sdc1 rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/home/kbq", "ext4"),
        ("/devices", "ext4"),
        ("/dev/shm", "devtmpfs"),
        ("/mnt/shared disk/a", "nfs4"),
        ("/mnt/shared disk", "nfs4"),
        ("/mnt/shared disk/local/a", "xfs"),
        ("/mnt/over/a", "fuse.sshfs"),
    ],
)
def test_the_file_system_seen_at_a_path_is_the_last_one_of_the_longest_mount_point(
    path: str, kind: str
) -> None:
    assert file_system_type(Path(path), MOUNTS.strip()) == kind


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "fuse.gcsfuse", "ceph"])
def test_a_network_file_system_is_refused(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 1 0:1 / / rw - ext4 d rw\n2 1 0:2 / {tmp_path} rw - {kind} server:/x rw\n")
    monkeypatch.setattr(file_system, "_MOUNTS", mounts)
    with pytest.raises(ConfigurationError, match=rf"(?s)network file system \({kind}\).*next: .*local disk"):
        LocalObjectStore(tmp_path / "store")


@pytest.mark.parametrize(
    "kind", ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs", "fuseblk", "fuse.fuse-overlayfs"]
)
def test_a_local_file_system_is_taken(kind: str) -> None:
    assert not is_remote(kind)


class CoarseTimes(Temporary):
    """A temporary file on a file system that keeps whole seconds."""

    def seal(self, generation: int, *, durable: bool) -> None:
        super().seal(generation // 10**9 * 10**9, durable=durable)


class NoCase(Temporary):
    """A temporary file on a file system that finds it by its name in capitals too."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        Path(self.path).with_name(Path(self.path).name.upper()).touch()


@pytest.mark.parametrize(("kind", "reason"), [(CoarseTimes, "nanosecond"), (NoCase, "case")])
def test_a_file_system_that_cannot_keep_the_promises_is_refused(
    kind: type[Temporary], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_system, "Temporary", kind)
    (tmp_path / ".tmp").mkdir()
    with pytest.raises(ConfigurationError, match=f"(?s){reason}.*next: .*local disk"):
        check_file_system(tmp_path, tmp_path / ".tmp")


def test_a_file_system_without_hard_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", partial(fail, errno.EPERM))
    with pytest.raises(ConfigurationError, match="hard links"):
        LocalObjectStore(tmp_path).create("a", b"")


def test_a_root_that_cannot_be_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError):
        LocalObjectStore(tmp_path / "file" / "store")
