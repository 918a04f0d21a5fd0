"""The cores that this process may use. A container's CPU limit is a quota of its control group, which no function of
the standard library reads."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

_ROOT: Final = Path("/")


def usable_cores(root: Path = _ROOT) -> int:
    """The number of cores of this process's affinity and of its CPU quota, rounded up, whichever is less. ``root`` has
    the folders `proc` and `sys`."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cores, *map(math.ceil, _quotas(root))]))


def _quotas(root: Path) -> Iterator[float]:
    """The quotas of this process's control group and of the groups around it (`man 7 cgroups`), in cores."""
    with suppress(OSError):  # not Linux
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            # A container sees its own group as the root, but may read the path that it has on the host.
            for group in (PurePosixPath(path), *PurePosixPath(path).parents):
                inside = str(group).lstrip("/")
                with suppress(OSError, ValueError, ZeroDivisionError):
                    if controllers:
                        yield _cores(
                            root / "sys/fs/cgroup/cpu" / inside, "cpu.cfs_quota_us", "cpu.cfs_period_us"
                        )
                    else:
                        yield _cores(root / "sys/fs/cgroup" / inside, "cpu.max")


def _cores(group: Path, *files: str) -> float:
    """The quota of a group by its period. Raises ValueError without a quota."""
    quota, period = " ".join((group / file).read_text() for file in files).split()
    if quota == "-1":
        raise ValueError("no quota")
    return int(quota) / int(period)
