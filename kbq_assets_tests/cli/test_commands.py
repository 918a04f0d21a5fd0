"""The command line as a whole: help, start-up time, exit codes."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from kbq_assets.cli import LazyGroup
from kbq_assets.cli.context import ExitCode, exit_code
from kbq_assets.core import errors
from kbq_assets.core.errors import KbqError
from kbq_assets.definitions import command_line


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command and group below a group."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, f"{name} is listed, but not there"
        yield (*path, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


def refuse() -> object:
    raise AssertionError("help needs no platform")


@pytest.mark.parametrize("path", list(commands(command_line())), ids=" ".join)
@pytest.mark.parametrize("option", ["-h", "--help"])
def test_every_command_explains_itself_whatever_the_environment(path: tuple[str, ...], option: str) -> None:
    result = CliRunner().invoke(command_line(), [*path, option], obj=refuse)
    assert result.exit_code == 0
    assert f"Usage: kbq {' '.join(path)}" in result.stdout
    assert len(result.stdout.splitlines()) > 4


def test_the_help_lists_every_command_an_example_and_the_exit_codes() -> None:
    text = CliRunner().invoke(command_line(), ["--help"], obj=refuse).stdout
    group = command_line()
    assert isinstance(group, LazyGroup)
    for section, members in group.sections.items():
        assert f"\n{section}:\n" in text
        assert all(f"\n  {name} " in text and command.help in text for name, command in members.items())
    assert all(f"\n    {code.value:<4}" in text for code in ExitCode)


def test_the_version_is_the_package_s() -> None:
    assert CliRunner().invoke(command_line(), ["--version"], obj=refuse).stdout.startswith("kbq, version ")


_START = """
import json, sys
from kbq_assets.definitions import main
sys.argv = ["kbq", "--help"]
try:
    main()
except SystemExit:
    pass
print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


def test_help_is_quick_because_it_imports_next_to_nothing() -> None:
    ran = subprocess.run([sys.executable, "-c", _START], capture_output=True, text=True, check=True)
    modules = json.loads(ran.stderr)
    imported = {name.partition(".")[0] for name in modules}
    heavy = {
        "confluent_kafka",
        "dagster",
        "duckdb",
        "google",
        "numba",
        "numpy",
        "pandas",
        "pyarrow",
        "pyspark",
        "rich",
    }
    assert imported & heavy == set()
    # Counted, as seconds are the machine's: the 200 that there are take a sixth of one, `requests` brings 200 more.
    assert len(modules) < 300


_END = """
import atexit, gc, sys
# What was registered first is called last.
atexit.register(lambda: print(gc.get_freeze_count(), len(gc.get_objects())))
from kbq_assets.definitions import main
sys.argv = ["kbq", "--version"]
main()
"""


def test_the_end_of_a_command_looks_for_no_garbage() -> None:
    ran = subprocess.run([sys.executable, "-c", _END], capture_output=True, text=True, check=True)
    frozen, searched = map(int, ran.stdout.split()[-2:])
    assert frozen > 100 * searched


def test_the_end_of_a_command_with_duckdb_prints_nothing() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", f"import duckdb\n{_END}"], capture_output=True, text=True, check=True
    )
    assert (ran.stdout.split()[-2], ran.stderr) == ("0", "")


def test_a_driver_imports_no_kernels() -> None:
    """Half a second, and 80 MB, of every run: the workers' business."""
    code = "import sys, kbq_assets.pipelines.spine, kbq_assets.cli.run\nprint({'numba', 'numpy'} & {*sys.modules})"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"


def tree(cls: type[KbqError]) -> Iterator[type[KbqError]]:
    yield cls
    for child in cls.__subclasses__():
        yield from tree(child)


@pytest.mark.parametrize("cls", list(tree(KbqError)), ids=lambda cls: cls.__name__)
def test_every_error_has_an_exit_code_and_no_traceback(cls: type[KbqError]) -> None:
    def fail() -> object:
        raise cls("what happened", next_step="what to do")

    result = CliRunner().invoke(command_line(), ["status"], obj=fail)
    assert result.exit_code == exit_code(cls("")) != 0
    assert result.stderr == "error: what happened\n  next: what to do\n"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.Refused(""), ExitCode.REFUSED),
        (errors.Unavailable(""), ExitCode.TRY_AGAIN),
        (errors.UnknownOutcome(""), ExitCode.TRY_AGAIN),
        (errors.PreconditionFailed(""), ExitCode.TRY_AGAIN),
        (errors.MissingState(""), ExitCode.FAILED),
        (errors.InvalidName(""), ExitCode.FAILED),
    ],
)
def test_exit_codes_show_a_scheduler_whether_to_try_again(error: KbqError, code: ExitCode) -> None:
    assert exit_code(error) is code


def test_a_misspelled_command_names_the_nearest_one() -> None:
    found = CliRunner().invoke(command_line(), ["extarct"], obj=refuse)
    assert (found.exit_code, "Did you mean 'extract'?" in found.output) == (2, True)


def test_an_interrupted_command_says_that_nothing_is_lost() -> None:
    def interrupt() -> object:
        raise KeyboardInterrupt

    found = CliRunner().invoke(command_line(), ["load"], obj=interrupt)
    assert (found.exit_code, "nothing is lost; run it again" in found.output) == (1, True)


@pytest.mark.parametrize(
    ("number", "code", "advice"),
    [
        (errno.EACCES, ExitCode.FAILED, "give this user the permission"),
        (errno.EROFS, ExitCode.FAILED, "choose a folder that can be written"),
        (errno.ENOSPC, ExitCode.TRY_AGAIN, "free some space"),
    ],
)
def test_a_file_that_the_system_refuses_is_a_message_not_a_traceback(
    number: int, code: ExitCode, advice: str, monkeypatch: pytest.MonkeyPatch, current_folder: Path
) -> None:
    def refuse(path: Path, *args: object, **options: object) -> None:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Path, "write_text", refuse)
    result = CliRunner().invoke(command_line(), ["init", "--company", "shop"], obj=refuse)
    assert (result.exit_code, type(result.exception)) == (code, SystemExit)
    assert f"error: kbq.toml: {os.strerror(number)}\n  next: {advice}" in result.output


def test_other_errors_of_the_system_keep_their_traceback() -> None:
    def fail() -> object:
        raise FileNotFoundError(errno.ENOENT, "gone", "module.py")

    assert isinstance(CliRunner().invoke(command_line(), ["status"], obj=fail).exception, FileNotFoundError)
