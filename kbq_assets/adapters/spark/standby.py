"""Starts the standby of Spark's daemon (see `daemon`)."""

from __future__ import annotations

import logging
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from kbq_assets.adapters.forking.starting import start_program, wait_for_end
from kbq_assets.adapters.spark.daemon import STANDBY

_LOGGER: Final = logging.getLogger("kbq.extract")


@contextmanager
def standby(module: str) -> Iterator[dict[str, str]]:
    """Until the block ends, a process that runs ``module``, the program of Spark's daemon, has its code loaded. Yields
    the options with which Spark's daemon finds it; none if it cannot start."""
    with ExitStack() as stack:
        folder = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="kbq-")
        )  # only this user can enter it
        path = Path(folder, "standby")
        control, theirs = socket.socketpair()
        try:
            program = _start(module, path, theirs)
        except OSError as error:  # the path is too long for a socket, or no process can start
            control.close()
            _LOGGER.warning("no standby, so Spark's first task waits until its code is loaded: %s", error)
            yield {}
            return
        finally:
            theirs.close()
        stack.callback(wait_for_end, program)
        stack.callback(control.close)
        yield {f"spark.executorEnv.{STANDBY}": str(path)}


def _start(module: str, path: Path, control: socket.socket) -> subprocess.Popen[bytes]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        return start_program(module, [listener.fileno(), control.fileno()])
