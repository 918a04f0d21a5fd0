"""A loading process killed at any moment: its job is DONE with all rows, or was never inserted."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kbq_assets.adapters.duckdb import DuckDbWarehouse
from kbq_assets.core.errors import JobAlreadyExists, Unavailable
from kbq_assets.core.loading.tables import TableOptions, columns_of
from kbq_assets.ports.warehouse import KafkaRange
from kbq_assets_tests.contracts.warehouse import SCHEMA, TABLE, avro_file, load_job, records

KILLS = 12
ROWS = 60_000
#: Loads one job after the other, saying when each begins and ends.
LOADER = """
import sys
from pathlib import Path
from kbq_assets.adapters.duckdb import DuckDbWarehouse
from kbq_assets_tests.contracts.warehouse import load_job
warehouse = DuckDbWarehouse(Path(sys.argv[1]))
print("ready", flush=True)
for job_id in sys.stdin:
    print("begin", job_id.strip(), flush=True)
    warehouse.insert_job(load_job(job_id.strip(), *sys.argv[2:]))
    print("end", job_id.strip(), flush=True)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "warehouse.duckdb"


@pytest.fixture
def uris(tmp_path: Path) -> tuple[str, ...]:
    """Files of `ROWS` rows in all."""
    third = ROWS // 3
    for i in range(3):
        (tmp_path / f"{i}.avro").write_bytes(
            avro_file(records(range(i * third, (i + 1) * third), note="x" * 50))
        )
    return tuple((tmp_path / f"{i}.avro").as_uri() for i in range(3))


def loader(path: Path, *uris: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", LOADER, str(path), *uris],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    expect(process, "ready")
    return process


def tell(process: subprocess.Popen[str], job_id: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{job_id}\n")
    process.stdin.flush()
    expect(process, f"begin {job_id}")


def expect(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == f"{line}\n"


@pytest.mark.slow
def test_a_killed_job_is_done_or_was_never_inserted(path: Path, uris: tuple[str, ...]) -> None:
    warehouse = DuckDbWarehouse(path)
    warehouse.create_table(TABLE, columns_of(SCHEMA), TableOptions())
    with loader(path, *uris) as process:  # how long a job takes here and now
        tell(process, "measured")
        started = time.monotonic()
        expect(process, "end measured")
        duration = time.monotonic() - started
        process.kill()
    seed = random.randrange(10**6)
    chance, done, lost = random.Random(seed), 1, 0
    for number in range(100):
        if number >= KILLS and done > 1 and lost:
            break
        job_id = f"job-{number}"
        with loader(path, *uris) as process:
            tell(process, job_id)
            time.sleep(duration * chance.uniform(0.8, 1.2))
            process.kill()
        status = warehouse.get_job(job_id, "local", "local")
        assert status is None or (status.output_rows, status.error) == (ROWS, None), f"seed {seed}"
        done, lost = done + (status is not None), lost + (status is None)
        # Follow the commit, wherever a machine that is more or less busy than a moment ago has it.
        duration *= 1.15 if status is None else 0.8
        counts = set(warehouse.positions(TABLE, KafkaRange("t", 0, 0)).values())
        assert counts == {done}, f"seed {seed}"
        if status is not None:
            with pytest.raises(JobAlreadyExists):
                warehouse.insert_job(load_job(job_id, *uris))
    else:
        pytest.fail(f"{done} jobs survived, {lost} did not: the kills show nothing, seed {seed}")


@pytest.mark.slow
def test_a_killed_first_write_leaves_a_warehouse_that_opens(path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from kbq_assets.adapters.duckdb import DuckDbWarehouse\n"
        "print('ready', flush=True)\n"
        "DuckDbWarehouse(Path(sys.argv[1])).burn_job('j', 'local', 'local')"
    )
    chance = random.Random(7)
    for number in range(8):
        target = path.with_name(f"{number}.duckdb")
        command = [sys.executable, "-c", code, str(target)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            expect(process, "ready")
            time.sleep(chance.uniform(0, 0.15))
            process.kill()
        warehouse = DuckDbWarehouse(target)
        if warehouse.get_job("j", "local", "local") is None:
            warehouse.burn_job("j", "local", "local")
        assert warehouse.get_job("j", "local", "local") is not None


def test_a_stopped_loader_is_named_and_goes_on_when_woken(path: Path, uris: tuple[str, ...]) -> None:
    warehouse = DuckDbWarehouse(path)
    warehouse.create_table(TABLE, columns_of(SCHEMA), TableOptions())
    with loader(path, *uris) as process:
        for number in range(1, 21):
            tell(process, f"zombie-{number}")
            caught = stopped_with_the_lock(process, path, f"zombie-{number}")
            process.send_signal(signal.SIGCONT)
            expect(process, f"end zombie-{number}")
            if caught:
                break
        process.kill()
    assert caught, "the loader was never seen with the lock"
    assert warehouse.kafka_ranges(TABLE) == {KafkaRange("t", 0, 0): number * ROWS}


def stopped_with_the_lock(process: subprocess.Popen[str], path: Path, job_id: str) -> bool:
    """Stop a loader while it holds the lock. Returns False if its job ended first."""
    hasty = DuckDbWarehouse(path, lock_timeout_seconds=0.2)
    try:
        while True:
            process.send_signal(signal.SIGSTOP)
            if hasty.get_job(job_id, "local", "local") is not None:
                return False
            process.send_signal(signal.SIGCONT)
            time.sleep(0.02)
    except Unavailable as error:
        assert f"process {process.pid}," in str(error)
    return True


#: Loads a job while no file may grow beyond this many bytes: to DuckDB, a full disk.
CRAMPED = """
import resource, signal, sys
from pathlib import Path
from kbq_assets.adapters.duckdb import DuckDbWarehouse
from kbq_assets.core.errors import TransientError
from kbq_assets_tests.contracts.warehouse import load_job
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
limit = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    DuckDbWarehouse(Path(sys.argv[1])).insert_job(load_job(*sys.argv[3:]))
    print("done")
except TransientError as error:
    print(type(error).__name__)
"""


@pytest.mark.slow
def test_a_full_disk_is_transient_and_leaves_all_or_nothing(path: Path, uris: tuple[str, ...]) -> None:
    warehouse = DuckDbWarehouse(path)
    warehouse.create_table(TABLE, columns_of(SCHEMA), TableOptions())
    size, ends, done = path.stat().st_size, [], 0
    for number, room in enumerate((0, 1 << 18, 1 << 20, 1 << 26)):
        command = [sys.executable, "-c", CRAMPED, str(path), str(size + room), f"job-{number}", *uris]
        ended = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        status = warehouse.get_job(f"job-{number}", "local", "local")
        assert status is None or (status.output_rows, status.error) == (ROWS, None)
        if ended != "UnknownOutcome":
            assert (status is not None) == (ended == "done")
        done += status is not None
        assert warehouse.kafka_ranges(TABLE) == ({KafkaRange("t", 0, 0): done * ROWS} if done else {})
        ends.append(ended)
    assert ends[-1] == "done"
    assert "done" not in ends[:2]
