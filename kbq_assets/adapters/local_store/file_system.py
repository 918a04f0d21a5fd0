"""Checks whether a file system is suitable for a store."""

from __future__ import annotations

import contextlib
import os
import re
from functools import cache
from pathlib import Path
from typing import Final

from kbq_assets.adapters.local_store.temporary import Temporary
from kbq_assets.core.errors import ConfigurationError

_MOUNTS: Final = Path("/proc/self/mountinfo")
#: File systems whose locks, links or renames are not atomic between machines, or not supported.
_NETWORK: Final = frozenset(
    {
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "gfs2",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "smb3",
        "smbfs",
    }
)
#: Most file systems in user space are remote (sshfs, s3fs, gcsfuse). Rootless containers use this local one.
_LOCAL_FUSE: Final = frozenset({"fuse.fuse-overlayfs"})
_NEXT_STEP: Final = "keep the store on a local disk (ext4, xfs, btrfs, tmpfs), or in a bucket"


def check_place(root: Path) -> None:
    """Raise ConfigurationError or OSError if ``root`` cannot be a store. Writes nothing."""
    mounts = _MOUNTS.read_text(errors="surrogateescape") if _MOUNTS.exists() else ""
    kind = file_system_type(root, mounts)
    if is_remote(kind):
        raise ConfigurationError(f"{root} is on a network file system ({kind})", next_step=_NEXT_STEP)
    with contextlib.suppress(FileNotFoundError):
        os.listdir(root)


@cache  # because a Spark worker opens the store once per task
def check_file_system(root: Path, temporary: Path) -> None:
    """Raise ConfigurationError if a store at ``root`` could not keep the port's guarantees."""
    with Temporary(temporary) as probe:
        reason = _shortcoming(probe)
    if reason:
        raise ConfigurationError(f"the file system of {root} {reason}", next_step=_NEXT_STEP)


def file_system_type(path: Path, mountinfo: str) -> str:
    """The type of the file system of a resolved path, from proc(5)'s mountinfo; '' if none is listed."""
    point, kind = Path(), ""
    for line in mountinfo.splitlines():
        fields, _, tail = line.partition(" - ")
        mounted = Path(_unescape(fields.split(" ")[4]))
        # If several file systems are mounted at the same place, the last one listed is visible.
        if path.is_relative_to(mounted) and len(mounted.parts) >= len(point.parts):
            point, kind = mounted, tail.split(" ")[0]
    return kind


def is_remote(kind: str) -> bool:
    """Whether a file system of this type is shared between machines."""
    return kind in _NETWORK or (kind.startswith("fuse.") and kind not in _LOCAL_FUSE)


def _unescape(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _shortcoming(probe: Temporary) -> str:
    """The first capability that the file system of a temporary file lacks; '' if it lacks none."""
    generation = 1_700_000_000_123_456_789
    probe.seal(generation, durable=False)
    if os.stat(probe.path).st_mtime_ns != generation:
        return "does not keep modification times to the nanosecond"
    folder, name = os.path.split(probe.path)
    if os.path.exists(os.path.join(folder, name.upper())):
        return "does not distinguish names by case"
    try:
        os.link(probe.path, f"{probe.path}-link")
    except OSError:
        return "has no hard links"
    os.unlink(f"{probe.path}-link")
    return ""
