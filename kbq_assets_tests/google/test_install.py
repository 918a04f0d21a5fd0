"""Finding and installing: real files, no network."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kbq_assets_tests.fixtures.variables import Variables
from kbq_assets_tests.google import install, tools
from kbq_assets_tests.google.install import _once
from kbq_assets_tests.google.tools import NotInstallable


def test_a_python_of_another_version_is_not_taken(variables: Variables) -> None:
    variables["KBQ_TEST_PYTHON313"] = sys.executable
    is_wanted = sys.version_info[:2] == (3, 13)
    assert tools.find_python() == (Path(sys.executable) if is_wanted else None)


def test_a_python_that_is_not_there_is_not_taken(variables: Variables, tmp_path: Path) -> None:
    variables["KBQ_TEST_PYTHON313"] = str(tmp_path / "python3.13")
    assert tools.find_python() is None


def test_a_platform_without_a_python_gets_advice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("platform.machine", lambda: "vax")
    with pytest.raises(NotInstallable, match=r"pyenv install 3\.13"):
        tools.fetch_python(tmp_path)


def test_an_interrupted_installation_is_done_again_and_a_finished_one_is_not(tmp_path: Path) -> None:
    def interrupted(partial: Path) -> None:
        (partial / "half").touch()
        raise KeyboardInterrupt

    def whole(partial: Path) -> None:
        (partial / "program").touch()

    with pytest.raises(KeyboardInterrupt):
        _once(tmp_path, "server", interrupted)
    folder = _once(tmp_path, "server", whole)
    assert _once(tmp_path, "server", interrupted) == folder
    assert [path.name for path in folder.iterdir()] == ["program"]
    assert not list(tmp_path.glob("partial-*"))


@pytest.mark.parametrize("lock", [install.LOCK, tools.GO_LOCK])
def test_locks_pin_every_package_by_hash_and_name_no_host(lock: Path) -> None:
    text = lock.read_text(encoding="utf-8")
    packages = [line for line in text.splitlines() if line and not line.startswith(" ")]
    assert packages
    assert all("==" in line and line.endswith("\\") for line in packages)
    assert "://" not in text
