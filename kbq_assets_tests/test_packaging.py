"""The wheel and the sdist work without the checkout; a slim install names what it lacks."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.optional_packages import install_command, missing_package
from kbq_assets.extras.doctor.check import Outcome
from kbq_assets.extras.doctor.cli import python_version

REPOSITORY = Path(__file__).parents[1]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]
#: Refuses what the extras `spark` and `google` bring, as if it were not installed.
_SLIM = """
import sys

class Missing:
    gone = ("pyspark", "dagster_pyspark", "py4j", "dagster_gcp", "google.cloud", "google.auth", "google.api_core")

    def find_spec(self, name, path=None, target=None):
        if any(name == each or name.startswith(each + ".") for each in self.gone):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from kbq_assets.definitions import main
main()
"""


def test_every_file_of_the_package_is_in_the_wheel() -> None:
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["kbq_assets"]
    package = REPOSITORY / "kbq_assets"
    shipped = [path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    others = [path for path in shipped if path.suffix not in (".py", ".md")]
    assert [path for path in others if not any(fnmatch(f"/{path}", f"*/{p}") for p in patterns)] == []


def test_the_default_install_is_complete_and_the_slim_one_is_the_rest() -> None:
    default = set(PROJECT["project"]["dependencies"])
    optional = {*EXTRAS["spark"], *EXTRAS["google"]}
    assert optional <= default
    slim = (REPOSITORY / "requirements-slim.txt").read_text(encoding="utf-8").splitlines()
    assert {line for line in slim if not line.startswith("#")} == default - optional


def test_every_installation_accepts_the_same_versions_of_python() -> None:
    """Otherwise, pip complains about the first dependency without a wheel, not about the version of Python."""
    accepted = SpecifierSet(PROJECT["project"]["requires-python"])
    dagster = SpecifierSet(metadata.metadata("dagster")["Requires-Python"])
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    [(oldest, newest)] = re.findall(r"\(3, (\d+)\) <= sys.version_info < \(3, (\d+)\)", makefile)
    for minor in range(9, 20):
        expected = int(oldest) <= minor < int(newest)
        assert accepted.contains(f"3.{minor}.0") is expected, minor
        assert (python_version((3, minor)).outcome is Outcome.OK) is expected, minor
        assert dagster.contains(f"3.{minor}.0") or not expected, minor


@pytest.mark.parametrize("path", ["Makefile", "deploy/docker/Dockerfile"])
def test_a_release_of_another_package_changes_no_installation(path: str) -> None:
    lines = (REPOSITORY / path).read_text(encoding="utf-8").splitlines()
    locked = [line for line in lines if "--require-hashes" in line]
    assert locked and all("--no-deps" in line for line in locked)


def test_the_image_gets_the_tested_versions_of_an_extra_s_packages_too(tmp_path: Path) -> None:
    dockerfile = (REPOSITORY / "deploy/docker/Dockerfile").read_text(encoding="utf-8")
    installs = [line for line in dockerfile.splitlines() if "pip install" in line]
    assert [line for line in installs if "--no-deps" not in line and "-c /tmp/kbq/versions" not in line] == []
    [command] = re.findall(r"(sed .*?/tmp/kbq/requirements-dev\.lock) > /tmp/kbq/versions", dockerfile)
    command = command.replace("/tmp/kbq", str(REPOSITORY))
    ran = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    versions = [Requirement(line) for line in ran.stdout.splitlines()]
    assert all(not each.extras for each in versions)  # pip refuses them in a list of versions
    names = {each.name for each in versions}
    assert {Requirement(each).name for extra in ("postgres", "protobuf") for each in EXTRAS[extra]} < names


def test_the_image_is_not_root_s_and_its_first_process_reaps_others() -> None:
    lines = (REPOSITORY / "deploy/docker/Dockerfile").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("USER")] == ["USER kbq"]
    assert lines.index("USER kbq") < lines.index("RUN python -m kbq_assets.worker.warm")
    assert lines[-1] == 'ENTRYPOINT ["tini", "--", "kbq"]'
    assert any("openjdk-17-jre-headless tini" in line for line in lines)


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-dev.lock"])
def test_a_lock_installed_without_a_resolver_lacks_nothing(lock: str) -> None:
    pins = [
        Requirement(line.rstrip(" \\"))
        for line in (REPOSITORY / lock).read_text(encoding="utf-8").splitlines()
        if "==" in line
    ]
    names = {canonicalize_name(pin.name) for pin in pins}
    missing = [
        f"{pin.name}: {need}"
        for pin in pins
        if pin.marker is None or pin.marker.evaluate()
        for need in map(Requirement, metadata.requires(pin.name) or ())
        for extra in ("", *pin.extras)
        if need.marker is None or need.marker.evaluate({"extra": extra})
        if canonicalize_name(need.name) not in names
    ]
    assert missing == []


@pytest.mark.parametrize("extra", ["spark", "google", "protobuf", "postgres", "demo"])
def test_each_package_of_an_extra_is_named_with_it(extra: str) -> None:
    wanted = f"pip install 'kbq-assets[{extra}]'"
    for text in EXTRAS[extra]:
        name = Requirement(text).name
        module = {"grpcio-tools": "grpc_tools"}.get(name, name.replace("-", "_"))
        module = re.sub(r"^google_cloud_", "google.cloud.", module)
        error = missing_package(ModuleNotFoundError(name=module))
        assert isinstance(error, ConfigurationError) and error.next_step == wanted, module
    assert missing_package(ModuleNotFoundError(name="surprise")) is None
    assert install_command("numpy") == ""


def slim(folder: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KBQ_")}
    return subprocess.run(
        [sys.executable, "-c", _SLIM, *arguments],
        cwd=folder,
        env={**kept, "PYTHONPATH": str(REPOSITORY), **environ},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.thorough
def test_a_loader_of_local_folders_needs_neither_spark_nor_google(tmp_path: Path) -> None:
    (tmp_path / "topics.txt").write_text("t dataset=d")
    loaded = slim(tmp_path, "load", KBQ_SOURCE_TOPICS="topics.txt")
    assert (loaded.returncode, "loaded 0 rows" in loaded.stdout) == (0, True), loaded.stderr


@pytest.mark.slow
def test_a_command_that_needs_a_missing_package_names_its_extra(tmp_path: Path) -> None:
    (tmp_path / "topics.txt").write_text("t dataset=d")
    bucket = slim(tmp_path, "load", KBQ_SOURCE_TOPICS="topics.txt", KBQ_STAGING="gs://bucket/kbq")
    assert (bucket.returncode, "kbq-assets[google]" in bucket.stderr) == (1, True), bucket.stderr


@pytest.mark.slow
def test_the_wheel_of_the_sdist_runs_from_an_empty_folder(tmp_path: Path) -> None:
    source, target, empty = tmp_path / "source", tmp_path / "site", tmp_path / "empty"
    empty.mkdir()
    shutil.copytree(
        REPOSITORY / "kbq_assets", source / "kbq_assets", ignore=shutil.ignore_patterns("__pycache__")
    )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source)
    run(tmp_path, sys.executable, "-m", "build", "--no-isolation", "-o", str(tmp_path / "dist"), str(source))
    [wheel] = (tmp_path / "dist").glob("*.whl")
    assert len([*(tmp_path / "dist").glob("*.tar.gz")]) == 1
    pip = (sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-compile")
    run(tmp_path, *pip, "--target", str(target), str(wheel))
    kbq = str(target / "bin" / "kbq")
    assert "Usage: kbq" in run(empty, kbq, "--help", PYTHONPATH=str(target))
    shown = run(empty, kbq, "settings", PYTHONPATH=str(target))
    assert str(empty / ".kbq") in shown.replace("\n", "")
    where = run(
        empty, sys.executable, "-c", "import kbq_assets; print(kbq_assets.__file__)", PYTHONPATH=str(target)
    )
    assert where.startswith(str(target))
    for arguments, code in ((("local", "status"), 1), (("doctor",), 1), (("local", "down"), 0)):
        ran = run(empty, kbq, *arguments, PYTHONPATH=str(target), code=code)
        assert "Traceback" not in ran
    assert "stopped" in run(empty, kbq, "local", "status", PYTHONPATH=str(target), code=1)


def run(folder: Path, *command: str, code: int = 0, **environ: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KBQ_", "PYTHONPATH"))}
    ran = subprocess.run(
        command, cwd=folder, env={**kept, **environ}, capture_output=True, text=True, check=False
    )
    assert ran.returncode == code, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr
