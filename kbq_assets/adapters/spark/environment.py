"""What workers import, as one archive for `spark.archives`: this package, what it needs, and a `bin/python`.

Spark's way of shipping Python (https://spark.apache.org/docs/latest/api/python/tutorial/python_packaging.html).
Hosts bring the interpreter, of the same minor version, and Spark its jars.
"""

from __future__ import annotations

import importlib.metadata
import io
import re
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

from kbq_assets.adapters import routes, secrets
from kbq_assets.core.errors import ConfigurationError

#: The folder that Spark unpacks it to, in the executor's: what follows `#` in `spark.archives`.
FOLDER: Final = "environment"
#: What workers then run, from the executor's folder.
PYTHON: Final = f"./{FOLDER}/bin/python"
#: What the code of workers imports; their own requirements follow from them. The rest of this package's dependencies
#: is for drivers.
PACKAGES: Final = (
    "confluent-kafka",
    "cramjam",
    "cryptography",
    "google-cloud-storage",
    "google-crc32c",
    "isal",
    "numba",
    "pyspark",
    "requests",
)
#: What they import for some topics, if it is installed here: protoc.
OPTIONAL: Final = ("grpcio-tools",)
#: Entry points of other packages that workers look up.
PLUG_INS: Final = (routes.GROUP, secrets.GROUP)
_OWN: Final = "kbq-assets"
#: PySpark brings a whole Spark.
_SPARKS_OWN: Final = {
    ("pyspark", name) for name in ("bin", "data", "examples", "jars", "licenses", "python", "sbin")
}
_PACKAGE: Final = Path(__file__).parents[2]
_SCRIPT: Final = f"""#!/bin/sh
# This host's Python, with the packages beside this file and none of the user's own.
here=$(cd "$(dirname "$0")/.." && pwd) || exit 1
PYTHONPATH="$here/packages${{PYTHONPATH:+:$PYTHONPATH}}"
PYTHONNOUSERSITE=1
export PYTHONPATH PYTHONNOUSERSITE
exec python{sys.version_info.major}.{sys.version_info.minor} "$@"
"""


def write_environment(archive: Path, kernels: Mapping[str, Path]) -> None:
    """Write the archive, from what is installed here; 120 MB. ``kernels`` are folders by their names below `wire`.

    Raises ConfigurationError where it cannot be written.
    """
    from isal import igzip  # not for every driver

    gzip: Any = igzip
    written = archive.with_name(f".{archive.name}.part")
    try:
        with gzip.open(written, "wb", compresslevel=2) as stream:
            _fill(stream, kernels)
        written.replace(archive)
    except OSError as error:
        raise ConfigurationError(
            f"{archive} was not written: {error}",
            next_step="name a file in a folder that is there, with room",
        ) from error
    finally:
        written.unlink(missing_ok=True)


def distributions() -> Iterator[importlib.metadata.Distribution]:
    """`PACKAGES` as they are installed, those of `OPTIONAL` that are, workers' plug-ins, and all they require here."""
    from packaging.requirements import Requirement  # not for every driver

    seen = {_OWN}  # plug-ins require it; it is packed by itself, without what drivers need
    waiting = [*PACKAGES, *(name for name in OPTIONAL if _is_installed(name)), *_plug_ins()]
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
    for group in PLUG_INS:
        for point in importlib.metadata.entry_points(group=group):
            if point.dist is not None:
                yield point.dist.name


def _normal(name: str) -> str:
    """A distribution's name as all its spellings are (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _is_installed(name: str) -> bool:
    return next(iter(importlib.metadata.distributions(name=name)), None) is not None


def _fill(stream: io.BufferedIOBase, kernels: Mapping[str, Path]) -> None:
    # Times of files are kept to the fraction: compiled code is taken for stale without.
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        script = tarfile.TarInfo("bin/python")
        script.mode, script.size = 0o755, len(_SCRIPT)
        tar.addfile(script, io.BytesIO(_SCRIPT.encode()))
        for found in distributions():
            for file in found.files or ():
                if _is_shipped(file):
                    _add(tar, Path(str(found.locate_file(file))), f"packages/{file}")
        for path in sorted(_PACKAGE.rglob("*")):
            if path.suffix == ".pyc" or "__pycache__" not in path.parts:
                _add(tar, path, f"packages/{path.relative_to(_PACKAGE.parent)}")
        for name, folder in kernels.items():
            tar.add(folder, f"packages/kbq_assets/wire/{name}", filter=_anonymous)


def _is_shipped(file: PurePosixPath) -> bool:
    """No scripts, no tests, and of PySpark no jars: the cluster has them."""
    if file.is_absolute() or ".." in file.parts or "tests" in file.parts:
        return False
    return file.parts[:2] not in _SPARKS_OWN


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    if path.is_file():
        tar.add(path, name, filter=_anonymous)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """It belongs to whom unpacks it."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
