"""An archive for `spark.archives` with all that workers import: this package, its requirements and a `bin/python`.

Spark's way of shipping Python (https://spark.apache.org/docs/latest/api/python/tutorial/python_packaging.html).
The hosts provide Spark and a Python of the same minor version.
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

#: Folder in the executor's that Spark unpacks the archive to: the part after `#` in `spark.archives`.
FOLDER: Final = "environment"
#: The workers' interpreter, relative to the executor's folder.
PYTHON: Final = f"./{FOLDER}/bin/python"
#: Packages that workers import; their requirements are added. The rest of KBQ's dependencies is for drivers.
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
#: Packed if one of the warehouses is a lake: its compaction runs on workers.
LAKE_PACKAGES: Final = ("fastavro", "pyarrow", "pyiceberg", "sqlalchemy")
#: Packed if installed here: some topics need protoc.
OPTIONAL: Final = ("grpcio-tools",)
_OWN: Final = "kbq-assets"
#: PySpark contains a whole Spark, which the cluster has.
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
    """Write the archive, from what is installed here. ``kernels`` are folders by their names below `wire`.

    Raises ConfigurationError where it cannot be written.
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
            next_step="name a file in a folder that is there, with room",
        ) from error
    finally:
        written.unlink(missing_ok=True)


def distributions(*, with_lake: bool = False) -> Iterator[importlib.metadata.Distribution]:
    """Installed distributions of `PACKAGES`, `OPTIONAL` and plug-ins for secrets, with all that they require."""
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
    # Keep fractions of seconds: without them Python takes compiled code for stale.
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
    """Whether workers need a file: no scripts, no tests, none of PySpark's jars."""
    if file.is_absolute() or ".." in file.parts or "tests" in file.parts:
        return False
    return file.parts[:2] not in _SPARKS_OWN


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    if path.is_file():
        tar.add(path, name, filter=_anonymous)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Drop the owner: files belong to the user who unpacks them."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
