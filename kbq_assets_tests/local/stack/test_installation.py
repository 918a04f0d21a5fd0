"""Installation with the real Ivy, a folder as repository, and small files."""

from __future__ import annotations

import hashlib
import io
import subprocess
import tarfile
from pathlib import Path

import pytest
from rich.console import Console

from kbq_assets.adapters.java import find_java
from kbq_assets.core.errors import ConfigurationError, Unavailable
from kbq_assets.local.stack.artifact import Artifact
from kbq_assets.local.stack.installation import INSTALL_MARKER, find_installation, install, required_artifacts
from kbq_assets.local.stack.ivy import ivy_jar

SILENT = Console(quiet=True)
BROKER = b"the broker's jar"


def archive() -> bytes:
    """A registry of one file."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        member = tarfile.TarInfo("app-runner.jar")
        member.size = 3
        tar.addfile(member, io.BytesIO(b"jar"))
    return buffer.getvalue()


def artifact(package: str, coordinates: str, content: bytes) -> Artifact:
    return Artifact.parse(f"{package} {coordinates} {len(content)} {hashlib.sha256(content).hexdigest()}")


class Repository:
    """A Maven repository in a folder, and the Ivy settings that name it."""

    def __init__(self, folder: Path) -> None:
        registry = archive()
        self.artifacts = (
            artifact("kafka", "org.example:broker_2.13:4.3.1:jar", BROKER),
            artifact("registry", "org.example:app:3.0.9:tar.gz:all", registry),
        )
        self.broker = folder / "org.example" / "broker_2.13-4.3.1.jar"
        self.broker.parent.mkdir(parents=True)
        self.broker.write_bytes(BROKER)
        (folder / "org.example" / "app-3.0.9-all.tar.gz").write_bytes(registry)
        self.settings = folder / "ivysettings.xml"
        pattern = f"{folder}/[organisation]/[artifact]-[revision](-[classifier]).[ext]"
        self.settings.write_text(
            '<ivysettings><settings defaultResolver="here"/><resolvers><filesystem name="here">'
            f'<artifact pattern="{pattern}"/></filesystem></resolvers></ivysettings>'
        )


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


def install_from(repository: Repository, root: Path) -> Path:
    java = find_java(root.parent / "java")
    return install(root, repository.artifacts, java, SILENT, repository.settings).folder


@pytest.mark.parametrize("listed", required_artifacts(), ids=lambda listed: listed.name)
def test_a_listed_artifact_reads_back_as_it_was_written(listed: Artifact) -> None:
    assert Artifact.parse(listed.format()) == listed
    assert len(bytes.fromhex(listed.sha256)) == 32
    assert listed.size > 0


def test_the_list_names_a_broker_and_a_registry() -> None:
    files = {(listed.package, listed.file_name) for listed in required_artifacts()}
    assert ("kafka", "kafka_2.13-4.3.1.jar") in files
    assert [name for package, name in files if package == "registry"] == [
        "apicurio-registry-app-3.0.9-all.tar.gz"
    ]


# Brackets mean something in Ivy's patterns, spaces on command lines.
@pytest.mark.parametrize(
    "name", [pytest.param("installed", marks=pytest.mark.thorough), "inst alled (copy) [1] é"]
)
def test_an_installation_is_sorted_unpacked_and_found_again(
    repository: Repository, tmp_path: Path, name: str
) -> None:
    root = tmp_path / name
    assert find_installation(root, repository.artifacts) is None
    folder = install_from(repository, root)
    found = find_installation(root, repository.artifacts)
    assert found is not None
    assert found.folder == folder
    assert (folder / "kafka" / "broker_2.13-4.3.1.jar").read_bytes() == BROKER
    assert found.registry_jar.read_bytes() == b"jar"
    assert [path.name for path in root.iterdir()] == [folder.name]
    another_list = (*repository.artifacts, artifact("kafka", "org.example:more:1:jar", b"more"))
    assert find_installation(root, another_list) is None


@pytest.mark.thorough
def test_a_file_that_cannot_be_had_is_named_and_may_come_later(
    repository: Repository, tmp_path: Path
) -> None:
    repository.broker.unlink()
    with pytest.raises(Unavailable, match=r"broker_2\.13"):
        install_from(repository, tmp_path / "installed")
    repository.broker.write_bytes(BROKER)
    assert install_from(repository, tmp_path / "installed").is_dir()


def test_a_file_with_another_sha256_is_refused_nothing_is_installed_and_it_is_not_kept_for_good(
    repository: Repository, tmp_path: Path
) -> None:
    repository.broker.write_bytes(BROKER + b"!")
    with pytest.raises(ConfigurationError, match=r"broker_2\.13-4\.3\.1\.jar"):
        install_from(repository, tmp_path / "installed")
    assert find_installation(tmp_path / "installed", repository.artifacts) is None
    repository.broker.write_bytes(BROKER)
    assert install_from(repository, tmp_path / "installed").is_dir()


@pytest.mark.thorough
def test_what_a_killed_installation_left_is_swept(repository: Repository, tmp_path: Path) -> None:
    root = tmp_path / "installed"
    (root / "partial-killed" / "retrieved").mkdir(parents=True)
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho runs\nread -r _\n")  # until something writes
    program.chmod(0o755)
    command, pipe = [str(program), f"{INSTALL_MARKER}{root}"], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as orphan:
        assert (
            orphan.stdout is not None and orphan.stdout.readline()
        )  # until then its arguments may not be seen
        install_from(repository, root)
        assert not (root / "partial-killed").exists()
        orphan.wait(timeout=120)  # nothing has written: the sweep has ended it


def test_without_pyspark_the_extra_is_named_that_has_ivy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbq_assets.local.stack.ivy.util.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match="Ivy") as caught:
        ivy_jar()
    assert caught.value.next_step == "pip install 'kbq-assets[spark]'"
