"""How many processes `processes[*]` starts: no more than the container's CPU limit feeds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kbq_assets.adapters.process_pool.cores import usable_cores

#: Cores of the machine, or of the affinity of this process.
MACHINE = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@pytest.mark.parametrize(
    ("groups", "files", "cores"),
    [
        pytest.param("0::/", {"cpu.max": "100000 100000"}, 1, id="a container"),
        pytest.param("0::/", {"cpu.max": "20000 100000"}, 1, id="a fifth of a core"),
        pytest.param("0::/", {"cpu.max": "max 100000"}, MACHINE, id="a container without a limit"),
        pytest.param("0::/", {"cpu.max": "99900000 100000"}, MACHINE, id="a limit above the machine's cores"),
        pytest.param(
            "0::/kbq.slice/kbq.service", {"kbq.slice/cpu.max": "100000 100000"}, 1, id="a slice around it"
        ),
        pytest.param("0::/on/the/host", {"cpu.max": "100000 100000"}, 1, id="a path of the host"),
        pytest.param("0::/", {}, MACHINE, id="no files"),
        pytest.param("0::/", {"cpu.max": "x"}, MACHINE, id="another format"),
        pytest.param(
            "5:memory:/docker/1\n4:cpu,cpuacct:/docker/1\n0::/",
            {"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "50000\n"},
            1,
            id="version 1",
        ),
        pytest.param(
            "4:cpu,cpuacct:/",
            {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"},
            MACHINE,
            id="version 1 without a limit",
        ),
    ],
)
def test_a_cpu_quota_limits_the_cores(tmp_path: Path, groups: str, files: dict[str, str], cores: int) -> None:
    written = {"proc/self/cgroup": groups, **{f"sys/fs/cgroup/{name}": text for name, text in files.items()}}
    for name, text in written.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert usable_cores(tmp_path) == cores


def test_without_control_groups_the_machine_counts(tmp_path: Path) -> None:
    assert usable_cores(tmp_path) == MACHINE
