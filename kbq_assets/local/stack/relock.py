"""Rewrites ``artifacts.txt``: ``python -m kbq_assets.local.stack.relock`` (maintainers only)."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kbq_assets.adapters.java import find_java
from kbq_assets.local.stack.artifact import Artifact
from kbq_assets.local.stack.ivy import RETRIEVE_PATTERN, ivy_jar

KAFKA = ("org.apache.kafka", "kafka_2.13", "4.3.1")
# The bridge from slf4j 1.7 to log4j, in log4j-api's revision. Kafka's distribution has it, but its POM does not.
LOGGING = ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4")
# The last revision that runs on Java 17.
REGISTRY = ("io.apicurio", "apicurio-registry-app", "3.0.9")

HEADER = """\
# Every file of the local stack, one per line:
# <package> <organisation>:<name>:<revision>:<extension>[:<classifier>] <bytes> <sha256>
# Written by relock.py; the installer accepts nothing else.
"""

_REGISTRY_MODULE = """<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
<info organisation="kbq" module="relock"/><configurations><conf name="default"/></configurations>
<dependencies defaultconf="default->default"><dependency org="{0}" name="{1}" rev="{2}" transitive="false">
<artifact name="{1}" type="tar.gz" ext="tar.gz" m:classifier="all"/></dependency></dependencies></ivy-module>
"""


def main() -> None:
    """Resolve the dependencies from POM files, and record the fetched files."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kafka, registry, module = folder / "kafka", folder / "registry", folder / "ivy.xml"
        _ivy(folder, kafka, "-dependency", *KAFKA, "-confs", "default")
        _ivy(folder, kafka, "-dependency", *LOGGING, "-confs", "default", "-notransitive")
        module.write_text(_REGISTRY_MODULE.format(*REGISTRY), encoding="utf-8")
        settings = Path(__file__).with_name("ivysettings.xml")
        _ivy(folder, registry, "-settings", settings, "-ivy", module)
        found = [*_artifacts(kafka), *_artifacts(registry)]
    lines = "".join(f"{artifact.format()}\n" for artifact in found)
    Path(__file__).with_name("artifacts.txt").write_text(HEADER + lines, encoding="utf-8")


def _ivy(folder: Path, target: Path, *arguments: str | Path) -> None:
    # The revision gets its own folder, since names may contain dashes.
    pattern = f"{target}/{RETRIEVE_PATTERN.replace('/', '/[revision]/', 1)}"
    java = find_java(folder).executable
    command = [java, "-jar", ivy_jar(), "-cache", folder / "cache", *arguments, "-retrieve", pattern]
    subprocess.run([os.fspath(part) for part in command], check=True)


def _artifacts(target: Path) -> Iterator[Artifact]:
    for path in sorted(target.rglob("*.*")):
        if path.is_file():
            organisation, revision, file_name = path.relative_to(target).parts
            name, _, rest = file_name.partition(f"-{revision}")
            classifier, _, extension = rest.partition(".")
            sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
            size, package = path.stat().st_size, target.name
            yield Artifact(package, organisation, name, revision, extension, classifier[1:], size, sha256)


if __name__ == "__main__":
    main()
