"""An archive for `spark.archives` with everything that workers import: this package, its requirements and a
`bin/python`.

This is Spark's way to ship Python (https://spark.apache.org/docs/latest/api/python/tutorial/python_packaging.html).
The hosts must have Spark and a Python with the same minor version.
"""

from __future__ import annotations

import importlib.metadata
import io
import re
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

from kbq_assets.adapters import secrets
from kbq_assets.core.errors import ConfigurationError

#: Subfolder of the executor's folder to which Spark unpacks the archive: the part after `#` in `spark.archives`.
FOLDER: Final = "environment"
#: The workers' interpreter, relative to the executor's folder.
PYTHON: Final = f"./{FOLDER}/bin/python"
#: Packages that workers import; their requirements are added. KBQ's other dependencies are for drivers.
PACKAGES: Final = (
    "confluent-kafka",
    "cramjam",
    "cryptography",
    "google-cloud-storage",
    "google-crc32c",
    "isal",
    "jsonschema-rs",
    "numba",
    "pyspark",
    "requests",
    "zstandard",
)
#: Packed if one of the warehouses is a lake, because workers run its compaction.
LAKE_PACKAGES: Final = ("fastavro", "pyarrow", "pyiceberg", "sqlalchemy")
#: Packed if installed here, because some topics need protoc.
OPTIONAL: Final = ("grpcio-tools",)
_OWN: Final = "kbq-assets"
#: Parts of PySpark that are left out: PySpark contains all of Spark, which the cluster already has.
_SPARKS_OWN: Final = {
    ("pyspark", name) for name in ("bin", "data", "examples", "jars", "licenses", "python", "sbin")
}
_PACKAGE: Final = Path(__file__).parents[2]
_SCRIPT: Final = f"""#!/bin/sh
# This host's Python, with the packages next to this file and none of the user's own.
here=$(cd "$(dirname "$0")/.." && pwd) || exit 1
PYTHONPATH="$here/packages${{PYTHONPATH:+:$PYTHONPATH}}"
PYTHONNOUSERSITE=1
export PYTHONPATH PYTHONNOUSERSITE
exec python{sys.version_info.major}.{sys.version_info.minor} "$@"
"""


def write_environment(archive: Path, kernels: Mapping[str, Path], *, with_lake: bool = False) -> None:
    """Write the archive from the packages installed here. ``kernels`` has folders by their name below `wire`.

    Raises ConfigurationError if the archive cannot be written.
    """
    from isal import igzip  # not for every driver

    gzip: Any = igzip
    written = archive.with_name(f".{archive.name}.part")
    try:
        with gzip.open(written, "wb", compresslevel=2) as stream:
            _fill(stream, kernels, distributions(with_lake=with_lake))
        written.replace(archive)
    except OSError as error:
        raise ConfigurationError(
            f"{archive} was not written: {error}",
            next_step="name a file in an existing folder with enough space",
        ) from error
    finally:
        written.unlink(missing_ok=True)


def distributions(*, with_lake: bool = False) -> Iterator[importlib.metadata.Distribution]:
    """Installed distributions of `PACKAGES`, `OPTIONAL` and plug-ins for secrets, with all their requirements."""
    from packaging.requirements import Requirement  # not for every driver

    seen = {_OWN}  # plug-ins require KBQ; it is packed separately, without the drivers' requirements
    waiting = [*PACKAGES, *(name for name in OPTIONAL if _is_installed(name)), *_plug_ins()]
    waiting += LAKE_PACKAGES if with_lake else ()
    while waiting:
        name = waiting.pop()
        if _normal(name) in seen:
            continue
        seen.add(_normal(name))
        found = importlib.metadata.distribution(name)
        yield found
        needed = [Requirement(text) for text in found.requires or ()]
        waiting += [r.name for r in needed if r.marker is None or r.marker.evaluate({"extra": ""})]


def _plug_ins() -> Iterator[str]:
    for point in importlib.metadata.entry_points(group=secrets.GROUP):
        if point.dist is not None:
            yield point.dist.name


def _normal(name: str) -> str:
    """A distribution's normalized name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _is_installed(name: str) -> bool:
    return next(iter(importlib.metadata.distributions(name=name)), None) is not None


def _fill(
    stream: io.BufferedIOBase,
    kernels: Mapping[str, Path],
    packed: Iterable[importlib.metadata.Distribution],
) -> None:
    # Keep fractions of seconds in timestamps: without them, Python considers compiled code stale.
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        script = tarfile.TarInfo("bin/python")
        script.mode, script.size = 0o755, len(_SCRIPT)
        tar.addfile(script, io.BytesIO(_SCRIPT.encode()))
        for found in packed:
            for file in found.files or ():
                if _is_shipped(file):
                    _add(tar, Path(str(found.locate_file(file))), f"packages/{file}")
        for path in sorted(_PACKAGE.rglob("*")):
            if path.suffix == ".pyc" or "__pycache__" not in path.parts:
                _add(tar, path, f"packages/{path.relative_to(_PACKAGE.parent)}")
        for name, folder in kernels.items():
            tar.add(folder, f"packages/kbq_assets/wire/{name}", filter=_anonymous)


def _is_shipped(file: PurePosixPath) -> bool:
    """Whether workers need a file. They need no scripts, no tests, and none of PySpark's jars."""
    if file.is_absolute() or ".." in file.parts or "tests" in file.parts:
        return False
    return file.parts[:2] not in _SPARKS_OWN


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    if path.is_file():
        tar.add(path, name, filter=_anonymous)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Drop the owner, so that files belong to the user who unpacks them."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
