"""Worker processes: their work, their deaths, and that they leave nothing behind."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
import pytest

import kbq_assets
from kbq_assets.adapters.process_pool import pool as pools
from kbq_assets.adapters.process_pool.pool import ProcessPool, TaskFailed, WorkerDied
from kbq_assets.adapters.process_pool.tasks import ProcessEngine, ProcessTasks
from kbq_assets.core.errors import EngineEnded, Unavailable
from kbq_assets.core.extraction.units import UnitOutcome
from kbq_assets.ports.engine import ExtractionEngine
from kbq_assets_tests.adapters.process_pool import crowded, dying, serving
from kbq_assets_tests.contracts import engine as contract
from kbq_assets_tests.contracts.engine import EngineContract, outcomes, unit
from kbq_assets_tests.fixtures.processes import is_gone, until


@pytest.fixture
def pool() -> Iterator[ProcessPool]:
    with ProcessPool(serving.MODULE, contract.SLOTS) as opened:
        yield opened


class TestProcessEngine(EngineContract):
    """An engine on a pool keeps the contract."""

    @pytest.fixture
    def engine(self, pool: ProcessPool) -> ExtractionEngine:
        return ProcessEngine(pool, contract.task)

    def test_its_end_is_an_error_with_the_way_on(self, engine: ExtractionEngine, pool: ProcessPool) -> None:
        psutil.Process(pool.run(parent_and_self, None)[0]).kill()
        with pytest.raises(EngineEnded, match=r"starts workers ended .*\n  next: start the command again"):
            while engine.idle_slots:
                time.sleep(0.01)

    def test_a_task_that_cannot_start_fails_without_a_death(
        self, engine: ExtractionEngine, pool: ProcessPool
    ) -> None:
        server, worker = pool.run(parent_and_self, None)
        psutil.Process(server).kill()
        psutil.Process(worker).kill()
        until(lambda: is_gone(worker))
        engine.submit((unit(number=1),))  # to the idle worker, which has died
        [failed] = outcomes(engine, 1)
        assert "the process that starts workers ended" in failed.failure
        assert not failed.has_died

    def test_a_worker_that_died_while_it_was_idle_is_no_death_of_the_next_task(
        self, engine: ExtractionEngine, pool: ProcessPool
    ) -> None:
        with ThreadPoolExecutor(contract.SLOTS) as threads:
            workers = {worker for _, worker in threads.map(partial(pool.run, parent_and_self), range(9))}
        for worker in workers:
            psutil.Process(worker).kill()
        until(lambda: all(map(is_gone, workers)))
        for number in range(3):
            engine.submit((unit(number=number),))
            assert outcomes(engine, 1) == [UnitOutcome(unit(number=number))]


def parent_and_self(item: object) -> tuple[int, int]:
    """The ids of the server and the worker."""
    return os.getppid(), os.getpid()


def signalled(number: int) -> str:
    """What a worker answers after a signal."""
    os.kill(os.getpid(), number)
    return "goes on"


def shouted(text: str) -> None:
    print(text, flush=True)


def noted(path: Path) -> int:
    """The id of the worker, which notes that it ran."""
    with path.open("a") as file:
        file.write("once\n")
    return os.getpid()


def blocked(item: object) -> set[signal.Signals | int]:
    return set(signal.pthread_sigmask(signal.SIG_BLOCK, ()))


def unpicklable(item: object) -> object:
    return threading.Lock()


def test_workers_are_used_again_and_no_more_start_than_needed(pool: ProcessPool) -> None:
    one = {pool.run(parent_and_self, None) for _ in range(5)}
    assert len(one) == 1
    with ThreadPoolExecutor(contract.SLOTS) as threads:
        many = set(threads.map(partial(pool.run, parent_and_self), range(40)))
    assert len({worker for _, worker in one | many}) <= contract.SLOTS
    assert len({server for server, _ in one | many}) == 1


@pytest.mark.parametrize(
    ("task", "error"),
    [
        (unpicklable, "TypeError: cannot pickle"),
        (int, "ValueError: invalid literal"),
    ],
)
def test_a_task_without_a_result_says_why_and_its_worker_goes_on(
    pool: ProcessPool, task: Callable[[object], object], error: str
) -> None:
    before = pool.run(parent_and_self, None)
    with pytest.raises(TaskFailed, match=error):
        pool.run(task, "no number")
    assert pool.run(parent_and_self, None) == before


def test_what_cannot_be_sent_leaves_the_pool_usable(pool: ProcessPool) -> None:
    with pytest.raises(TypeError, match="cannot pickle"):
        pool.run(shouted, threading.Lock())
    assert pool.run(str, 1) == "1"


def test_large_results_arrive_whole(pool: ProcessPool) -> None:
    assert pool.run(bytes, 3_000_000) == bytes(3_000_000)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_to_all_processes_of_a_service_leave_its_end_to_the_driver(
    pool: ProcessPool, number: signal.Signals
) -> None:
    server, _ = pool.run(parent_and_self, None)
    assert pool.run(signalled, number) == "goes on"
    os.kill(server, number)
    with ThreadPoolExecutor(2) as threads:
        assert len(list(threads.map(partial(pool.run, parent_and_self), range(4)))) == 4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_a_server_that_has_just_started_leaves_its_end_to_the_driver(
    number: signal.Signals,
) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with ProcessPool(serving.MODULE, 1) as pool:
        os.kill(pool._server.pid, number)
        assert pool.run(str, 1) == "1"
        assert pool.run(blocked, None) == set()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_a_worker_retires_after_many_tasks(pool: ProcessPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "MOST_TASKS", 3)
    workers = [pool.run(parent_and_self, None)[1] for _ in range(7)]
    assert workers == [workers[0]] * 3 + [workers[3]] * 3 + [workers[6]]
    assert len(set(workers)) == 3


def test_a_killed_worker_is_a_death(pool: ProcessPool) -> None:
    with pytest.raises(WorkerDied, match="its process died"):
        pool.run(signalled, signal.SIGKILL)
    assert pool.run(str, 1) == "1"


def test_a_worker_that_dies_before_it_reads_its_task_is_replaced_and_the_task_runs_once(
    pool: ProcessPool, tmp_path: Path
) -> None:
    """It dies between the hand-over and its reading: it is stopped, gets the task, and is killed."""
    _, worker = pool.run(parent_and_self, None)
    psutil.Process(worker).suspend()
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(pool.run, noted, tmp_path / "runs")
        until(lambda: _has_unread(pool))
        psutil.Process(worker).kill()
        assert running.result() not in (worker, os.getpid())
    assert (tmp_path / "runs").read_text() == "once\n"


def test_workers_that_always_die_at_their_start_are_reported_and_end_no_run() -> None:
    with ProcessPool(dying.MODULE, 1) as pool:
        engine = ProcessEngine(pool, contract.task)
        for number in range(2):
            engine.submit((unit(number=number),))
            [failed] = outcomes(engine, 1)
            assert "4 processes ended before they read their task" in failed.failure
            assert not failed.has_died
            assert engine.idle_slots == 1
        with pytest.raises(Unavailable, match=r"next: look for their error .*standard error.*processes\[2\]"):
            pool.run(str, 1)


def test_a_fork_that_fails_is_tried_again_and_ends_no_run(capfd: pytest.CaptureFixture[str]) -> None:
    with ProcessPool(crowded.MODULE, 1) as pool:
        assert pool.run(str, 1) == "1"
        pool.check()
    assert "a process for a task did not start: [Errno 11]" in capfd.readouterr().err


def test_a_limit_of_open_files_is_named_and_is_no_death() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ProcessPool(serving.MODULE, 1) as pool:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            with pytest.raises(Unavailable, match=r"Too many open files\n  next: .*ulimit -n"):
                pool.run(str, 1)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert pool.run(str, 1) == "1"


def test_a_given_up_task_that_waits_for_its_worker_does_not_run(pool: ProcessPool, tmp_path: Path) -> None:
    server = psutil.Process(pool._server.pid)
    server.suspend()  # it starts no worker
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(pool.run, noted, tmp_path / "runs")
        until(lambda: _has_unread(pool))
        pool.give_up()
        assert isinstance(running.exception(), WorkerDied)
    server.resume()
    assert pool.run(str, 1) == "1"
    assert not (tmp_path / "runs").exists()


def test_what_tasks_print_is_not_the_drivers_output(tmp_path: Path) -> None:
    code = (
        "from kbq_assets.adapters.process_pool.pool import ProcessPool\n"
        "from kbq_assets_tests.adapters.process_pool import serving, test_process_pool\n"
        "with ProcessPool(serving.MODULE, 1) as pool: pool.run(test_process_pool.shouted, 'aside')\n"
        "print('answer')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, "aside" in done.stderr) == ("answer\n", True)


def test_the_server_imports_what_the_driver_imports_whatever_is_in_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "kbq_assets").mkdir()
    (tmp_path / "kbq_assets" / "__init__.py").write_text("raise ImportError('another release')")
    (tmp_path / "socket.py").write_text("raise ImportError('the user has a file of this name')")
    code = (
        "import sys; sys.path.remove('')\n"
        f"sys.path.insert(0, {str(Path(kbq_assets.__file__).parents[1])!r})\n"
        "from kbq_assets.adapters.process_pool.pool import ProcessPool\n"
        "from kbq_assets_tests.adapters.process_pool import serving\n"
        "with ProcessPool(serving.MODULE, 1) as pool: print(pool.run(str, 1))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_no_process_outlives_a_pool() -> None:
    with ProcessPool(serving.MODULE, 1) as pool:
        processes = pool.run(parent_and_self, None)
        thread = threading.Thread(target=_run_forever, args=(pool,))
        thread.start()
        until(lambda: bool(pool._busy))
    thread.join()
    assert not any(map(psutil.pid_exists, processes)), (
        "the server collects its workers, and the pool the server"
    )


def test_no_process_outlives_a_killed_driver() -> None:
    command = [sys.executable, "-m", "kbq_assets_tests.adapters.process_pool.driver"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        processes = [int(number) for number in driver.stdout.readline().split()]
        assert len(processes) == 2
        driver.kill()
    until(lambda: all(map(is_gone, processes)))


@dataclass(frozen=True)
class Item:
    """An item of work on a table."""

    number: str
    table: str = "ds.t"


def number_of(item: Item) -> int:
    return int(item.number)


def test_items_have_their_outcomes_in_order(pool: ProcessPool) -> None:
    tasks = ProcessTasks(lambda: pool, number_of, "a load of")
    assert tasks([Item(str(number)) for number in range(7)]) == list(range(7))


def test_an_item_whose_task_fails_names_its_table(pool: ProcessPool) -> None:
    tasks = ProcessTasks(lambda: pool, number_of, "a load of")
    with pytest.raises(Unavailable, match=r"a task of a load of ds\.t failed: ValueError: .*\n.*tries again"):
        tasks([Item("1"), Item("x")])


def endless(item: Item) -> None:
    from kbq_assets_tests.adapters.process_pool.driver import forever

    Path(item.number).touch()
    forever(item)


def test_an_interrupt_does_not_wait_for_tasks(pool: ProcessPool, tmp_path: Path) -> None:
    class Interrupted(list[Item]):
        def __iter__(self) -> Iterator[Item]:
            yield from super().__iter__()
            until((tmp_path / "runs").exists)
            raise KeyboardInterrupt

    tasks = ProcessTasks(lambda: pool, endless, "a compaction of")
    with pytest.raises(KeyboardInterrupt):
        tasks(Interrupted([Item(str(tmp_path / "runs"))]))
    assert pool.run(str, 1) == "1"


def _run_forever(pool: ProcessPool) -> None:
    from kbq_assets_tests.adapters.process_pool.driver import forever

    with pytest.raises(WorkerDied):
        pool.run(forever, None)


def _has_unread(pool: ProcessPool) -> bool:
    """Whether a worker has not read all that the pool has sent."""
    sent = [fcntl.ioctl(worker._connection, termios.TIOCOUTQ, bytes(4)) for worker in pool._busy]
    return any(map(any, sent))
