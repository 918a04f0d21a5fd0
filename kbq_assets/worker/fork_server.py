"""The process that forks KBQ's own workers: its argument is the descriptor of a socket."""

from __future__ import annotations

import socket
import sys
from typing import Final

MODULE: Final = "kbq_assets.worker.fork_server"


def main() -> None:
    """Load what tasks need, then serve until the parent process closes its end of the socket."""
    from kbq_assets.adapters.process_pool.server import serve
    from kbq_assets.worker.daemon import load

    serve(socket.socket(fileno=int(sys.argv[1])), load)


if __name__ == "__main__":
    main()
