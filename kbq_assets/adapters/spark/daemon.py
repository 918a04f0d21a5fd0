"""PySpark's daemon, which forks the Python workers, with the tasks' code preloaded.

Spark starts its daemon for the first task, which then waits half a second until the code is loaded. On one machine,
the driver therefore starts a standby while Java starts (`standby.standby`). The daemon that Spark starts hands over its
environment and its standard streams, and a fork of the standby serves Spark in its place. If no standby answers, the
daemon loads the code itself, as on a cluster.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Callable
from typing import Final

from kbq_assets.adapters.forking.handover import hand_over

#: The environment variable with the path of the standby's socket.
STANDBY: Final = "KBQ_STANDBY"
#: Standard input, output and error, which the daemon hands over.
STREAMS: Final = (0, 1, 2)
#: The standby's answer: it serves Spark from now on.
READY: Final = b"r"


def serve(load: Callable[[], None]) -> None:
    """Fork workers until Spark closes standard input, after loading once (`load_for_workers`). Descriptors on the
    command line are those of a standby (`standby.standby`)."""
    if sys.argv[1:] and all(map(str.isdecimal, sys.argv[1:])):
        from kbq_assets.adapters.spark.standby import stand_by

        listener, control = (socket.socket(fileno=int(each)) for each in sys.argv[1:])
        stand_by(listener, control, load)
    elif not _is_handed_over(os.environ.get(STANDBY, "")):
        load_code(load)
        fork_workers()


def load_code(load: Callable[[], None]) -> None:
    """Load the tasks' code and PySpark's, before any fork."""
    from kbq_assets.adapters.forking.loading import load_for_workers

    # Spark reads the port from standard output, so nothing else may print there.
    with contextlib.redirect_stdout(sys.stderr):
        load_for_workers(load)
        import pyspark.worker  # noqa: F401 (workers would import it one by one)


def fork_workers() -> None:
    """Serve Spark as PySpark's daemon does, then end this process."""
    from pyspark.daemon import manager

    try:
        manager()
    except SystemExit as end:
        os._exit(end.code if isinstance(end.code, int) else 1)  # Python's own end takes longer


def _is_handed_over(path: str) -> bool:
    """Hand over to the standby at ``path``, and wait for the end of the process that serves Spark. Returns False if
    there is none."""
    if not path:
        return False
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)
            hand_over(connection, STREAMS, argv=sys.argv)
            if connection.recv(1) != READY:
                return False
            connection.recv(1)  # until it ends
            return True
    except OSError:  # the standby has ended
        return False
