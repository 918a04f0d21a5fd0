"""Starts a program that forks workers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Final, Protocol

from kbq_assets.adapters.forking.signals import held_back
from kbq_assets.adapters.forking.spare import taken

#: Time that a program gets for a clean end.
_END_SECONDS: Final = 10.0
#: Runs a module with the paths of this process. ``python -m`` would prefer modules of the current folder, so it could
#: import another release of KBQ than the driver.
_RUN_MODULE: Final = """\
import sys
sys.path[:] = {path!r}
import runpy
runpy.run_module({module!r}, run_name="__main__", alter_sys=True)
"""


class RunningProgram(Protocol):
    """A running program, with members of `subprocess.Popen`."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def kill(self) -> None: ...


def start_program(module: str, descriptors: Sequence[int]) -> RunningProgram:
    """Run ``module`` in a process that inherits ``descriptors``, which are its arguments: in the spare if there is one
    (`spare.spare_process`), else in a new one. It must call `signals.ignore_all`."""
    if spare := taken():
        try:
            spare.run(module, descriptors)
            return spare
        except OSError:  # it is gone
            spare.discard()
    # A signal to all processes of a service must not end the program before it ignores signals.
    with held_back():
        return subprocess.Popen(
            [
                sys.executable,
                "-c",
                _RUN_MODULE.format(path=sys.path, module=module),
                *map(str, descriptors),
            ],
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
        )


def wait_for_end(program: RunningProgram) -> None:
    """Wait for a program that was asked to end. Kill it if it takes too long."""
    try:
        program.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        program.kill()
        program.wait()
